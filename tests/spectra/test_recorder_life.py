"""A recorder's life: when it captures, what it selects, what it leaves behind, what it refuses."""

import copy
import pickle
import warnings
import weakref

import pytest
from spectra_models import TinyLM, batch, make, train
from torch import nn

import spectra
from spectra import InputError


def test_schedules():
    for every, expected in [(3, [0, 3, 6]), ([1, 4], [1, 4]), (lambda step: step in (2, 5), [2, 5])]:
        model, optimizer = make()
        with spectra.GradientRecorder(model, optimizer, every=every, layers="wpe.weight") as rec:
            train(model, optimizer, range(7))
        assert rec.run.steps == expected
    assert spectra.logarithmic(1000, 5) == [0, 1, 6, 32, 178, 999]


@pytest.mark.parametrize("every", [0, -1, [1, -2], [0.5], "5", None])
def test_bad_schedules_are_refused(every):
    with pytest.raises(InputError, match="every="):
        spectra.GradientRecorder(TinyLM(), every=every)


def test_layers_by_glob_kind_list_and_callable():
    def chosen(layers):
        rec = spectra.GradientRecorder(TinyLM(), layers=layers)
        return {entry["layer"] for entry in rec.run.manifest["inventory"] if entry["status"] == "captured"}

    assert chosen("block.mlp*") == {"block.mlp_in.weight", "block.mlp_out.weight"}
    assert chosen("attention") == {"block.c_attn.weight"}
    assert chosen(["embedding", "block.mlp_in.weight"]) == {"wte.weight", "wpe.weight", "block.mlp_in.weight"}
    assert chosen(lambda name, p: p.shape[0] == 16) == {"block.mlp_out.weight"}
    with pytest.raises(InputError, match=r"did you mean 'wte\.weight'"):
        spectra.GradientRecorder(TinyLM(), layers="wte.wieght")


def test_without_an_optimizer_step_is_called_by_hand():
    model = TinyLM()
    with spectra.GradientRecorder(model, every=1) as rec:
        model.loss(batch(0)).backward()
        rec.step()
    assert rec.run.steps == [0] and rec.next_step == 1
    with pytest.raises(InputError, match="not started"):
        rec.step()
    other, optimizer = make()
    with pytest.raises(InputError, match="whose own step is hooked"), spectra.GradientRecorder(other, optimizer) as rec:
        rec.step()


def test_it_removes_exactly_its_own_hook_and_leaves_the_model_picklable():
    model, optimizer = make()
    calls = []
    mine = optimizer.register_step_pre_hook(lambda *_: calls.append(1))
    rec = spectra.GradientRecorder(model, optimizer, every=1)
    with rec:
        train(model, optimizer, range(1))
        pickle.dumps(model)
        copy.deepcopy(model)
        with pytest.raises(InputError, match="already started"):
            rec.start()
    train(model, optimizer, range(1, 2))
    assert calls == [1, 1] and rec.run.steps == [0]
    assert list(optimizer._optimizer_step_pre_hooks) == [mine.id]


def test_an_error_in_the_analysis_warns_and_training_goes_on(monkeypatch):
    model, optimizer = make()
    monkeypatch.setattr("spectra.hooks.analyse", lambda *_: 1 / 0)
    with (
        pytest.warns(UserWarning, match="stopped recording at step 0: ZeroDivisionError"),
        spectra.GradientRecorder(model, optimizer, every=1) as rec,
    ):
        train(model, optimizer, range(3))
    assert rec.run.steps == []


def test_expensive_recording_is_said_once_and_changes_nothing():
    model, optimizer = make()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        with spectra.GradientRecorder(model, optimizer, every=1) as rec:
            train(model, optimizer, range(12))
    assert sum("of the training time" in str(w.message) for w in seen) == 1
    assert rec.run.steps == list(range(12)) and rec.overhead.captures == 12 and rec.overhead.share > 0.05


def test_a_wrapped_optimizer_is_unwrapped_and_anything_else_refused():
    class Accelerated:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model, optimizer = make()
    with spectra.GradientRecorder(model, Accelerated(optimizer), every=1) as rec:
        train(model, optimizer, range(1))
    assert rec.run.steps == [0]
    with pytest.raises(InputError, match=r"torch\.optim\.Optimizer"):
        spectra.GradientRecorder(model, object())


def test_sharded_models_and_models_without_matrices_are_refused():
    class FullyShardedDataParallel(nn.Linear):
        pass

    with pytest.raises(InputError, match="DistributedDataParallel"):
        spectra.GradientRecorder(nn.Sequential(FullyShardedDataParallel(2, 2)))
    with pytest.raises(InputError, match="no weight matrix"):
        spectra.GradientRecorder(nn.LayerNorm(3))
    with pytest.raises(InputError, match="start_step"):
        spectra.GradientRecorder(TinyLM(), start_step=-1)


def test_many_captures_keep_no_gradient_alive():
    model, optimizer = make()
    seen = []
    with spectra.GradientRecorder(model, optimizer, every=1, layers="wpe.weight") as rec:
        train(model, optimizer, range(20), after_backward=lambda: seen.append(weakref.ref(model.wpe.weight.grad)))
        optimizer.zero_grad()
    assert len(rec.run.steps) == 20 and not any(gradient() for gradient in seen)
