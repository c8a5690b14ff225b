from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from test_cli_pretrain import command

from kronzo.errors import InputError
from kronzo.pretrain import gpt2, memory
from kronzo.pretrain.memory import Job, largest_batch, predict

SMALL = gpt2.GPT2Config(vocab_size=512, context=64, layers=3, heads=2, width=64)


def saved_bytes(job: Job) -> int:
    """Bytes that autograd keeps after a forward without the head, weights aside, each storage once."""
    model = gpt2.GPT2(job.shape).use(checkpoint_blocks=job.checkpoint_blocks)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.hidden(torch.zeros(job.batch, job.context, dtype=torch.long))
    kept[hidden.untyped_storage().data_ptr()] = hidden.untyped_storage().nbytes()
    return sum(kept.values())


def test_predicted_activations_are_those_that_autograd_keeps() -> None:
    job = Job(SMALL, batch=8, context=64, method="adamw")
    assert predict(job).activations == pytest.approx(saved_bytes(job), rel=0.03)
    job = replace(job, checkpoint_blocks=True)
    assert predict(job).activations == pytest.approx(saved_bytes(job), rel=0.15)
    assert predict(job).activations < predict(replace(job, checkpoint_blocks=False)).activations / 5


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    x, y = torch.randint(0, 512, (2, 4, 64)).unbind()
    gradients = []
    for checkpointed in (False, True):
        model = gpt2.GPT2(SMALL).use(checkpoint_blocks=checkpointed)
        model.loss(x, y).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_predictions_follow_the_method() -> None:
    weights = 4 * gpt2.GPT2(SMALL).num_parameters
    parts = {method: predict(Job(SMALL, 2, 64, method)) for method in ("adamw", "sgd", "kronzo", "lozo", "mezo")}
    assert {method: found.weights for method, found in parts.items()} == dict.fromkeys(parts, weights)
    assert (parts["adamw"].optimizer, parts["sgd"].optimizer) == (2 * weights, weights)
    assert 0 < parts["kronzo"].optimizer < parts["lozo"].optimizer < weights / 10 and parts["mezo"].optimizer == 0
    assert parts["kronzo"].activations < parts["adamw"].activations / 4
    low = predict(Job(SMALL, 2, 64, "kronzo", dtype="bfloat16"))
    assert low.weights == weights // 2 and low.optimizer > low.weights, "a snapshot copies weights of low precision"
    whole = predict(Job(gpt2.config("gpt2"), 4, 1024, "adamw", full_logits=True))
    assert whole.logits > 30 * predict(Job(gpt2.config("gpt2"), 4, 1024, "adamw")).logits


@pytest.mark.parametrize("job", [Job(SMALL, method="adamw", context=64), Job(SMALL, context=32)])
def test_the_largest_batch_is_the_last_that_fits(job: Job) -> None:
    budget = predict(replace(job, batch=37)).peak + 5
    assert largest_batch(job, budget) == 37
    assert largest_batch(job, predict(job).peak - 1) == 0


def test_bad_jobs_are_refused() -> None:
    for wrong, words in (
        ({"method": "kronz"}, "'kronzo'"),
        ({"dtype": "float16"}, "'bfloat16'"),
        ({"context": 65}, "context of 64"),
        ({"checkpoint_blocks": True}, "keeps no activations"),
    ):
        with pytest.raises(InputError, match=words):
            Job(SMALL, **({"context": 64} | wrong))  # type: ignore[arg-type]


def test_the_command_predicts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    line = ("memory", "gpt2-xl", "--method", "adamw", "--checkpoint-blocks", "--budget", "24", "--predict")
    code, said = command(monkeypatch, capsys, *line)
    assert code == 0 and max(map(len, said.splitlines())) <= 80 and "largest batch predicted for 24.00 GiB" in said
    code, said = command(monkeypatch, capsys, *line, "--json")
    found = json.loads(said)
    assert found["measured"] is None and found["predicted"]["weights"] == 4 * (1_557_611_200 + 47 * 1600)
    assert found["predicted"]["peak"] == sum(value for key, value in found["predicted"].items() if key != "peak")
    code, said = command(monkeypatch, capsys, "memory", "gpt2-xxl")
    assert code == 2 and "did you mean 'gpt2-xl'" in said


def test_what_does_not_fit_is_not_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "measured", lambda job: pytest.fail("measured"))
    monkeypatch.setattr(memory, "available_bytes", lambda device: 10)
    found = memory.examine(Job(SMALL, context=64))
    assert found.measured is None and found.largest_batch == 0
    assert memory.as_text(found, "small").endswith("not even one sequence")


def test_a_stage_that_fails_says_why() -> None:
    with pytest.raises(InputError, match=r"measuring weights failed: .*CUDA.* --predict"):
        memory.measure(Job(SMALL, context=64, device="cuda:7"), "weights")


def test_only_a_cpu_keeps_what_was_freed_and_only_where_a_backward_ends() -> None:
    job = Job(gpt2.config("gpt2"), 1, 1024, "adamw")
    blocks, gradients = predict(job).activations, 4 * 12 * 7_087_872
    on_gpu = predict(replace(job, device="cuda"))
    assert predict(job).peak > on_gpu.peak + gradients and predict(job).activations == on_gpu.activations
    assert predict(job).peak == 4 * predict(job).weights + blocks + 4 * 50304 * 768
    recomputed = replace(job, checkpoint_blocks=True)
    assert predict(recomputed).peak - predict(replace(recomputed, device="cuda")).peak > gradients
    whole = replace(job, full_logits=True)
    assert predict(whole) == predict(replace(whole, device="cuda")), "it peaks where the backward starts"


@pytest.mark.slow
def test_what_fresh_processes_take_is_near_the_prediction() -> None:
    job = Job(gpt2.GPT2Config(vocab_size=8192, context=256, layers=2, heads=8, width=512), 4, 256, "adamw")
    (weights, interpreter, _), (peak, _, seconds) = memory.measure(job, "weights"), memory.measure(job, "peak")
    assert weights == pytest.approx(predict(job).weights, abs=2**23) and interpreter > 2**26
    assert peak == pytest.approx(predict(job).peak, rel=0.25) and seconds > 0


def test_measured_parts_add_up_to_the_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(zip(memory.STAGES, (100, 300, 250, 280, 700), strict=True))
    monkeypatch.setattr(memory, "measure", lambda job, stage: memory.Stage(found[stage] * 2**20, 2**28, 0.0))
    seen = memory.examine(Job(SMALL, context=64))
    assert seen.measured is not None and seen.measured.peak == 700 * 2**20 and seen.interpreter == 2**28
    assert [value // 2**20 for value in vars(seen.measured).values()] == [100, 200, 150, 30, 220]
    text = memory.as_text(seen, "small")
    assert "on top" in text and max(map(len, text.splitlines())) <= 80


def test_measured_parts_add_up_and_what_the_heap_keeps_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    took = {"weights": 1000, "optimizer": 1040, "activations": 1100, "logits": 1120, "peak": 1130}
    monkeypatch.setattr(memory, "measure", lambda job, stage: memory.Stage(took[stage], 7, 0.0))
    parts, interpreter = memory.measured(Job(SMALL, 2, 64, "kronzo"))
    assert parts == memory.Parts(1000, 10, 100, 20, 0) and parts.peak == took["peak"] and interpreter == 7
    took["peak"] = 1500
    assert memory.measured(Job(SMALL, 2, 64, "adamw"))[0] == memory.Parts(1000, 40, 100, 20, 340)
