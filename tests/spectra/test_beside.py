"""What is recorded beside the gradient equals what the optimizer really did."""

import warnings

import numpy as np
import pytest
import torch
from spectra_models import TinyLM, batch, train

import spectra
from spectra import InputError, kronecker_values, singular_triplets, singular_values, subspace
from spectra.beside import Beside
from spectra.layers import inventory

LAYER = "block.mlp_in.weight"


def record(also, steps=range(6), every=2, optimizer=torch.optim.AdamW, **options):
    model = TinyLM()
    opt = optimizer(model.parameters(), lr=1e-2, **options)
    weights, gradients, momenta = [model.block.mlp_in.weight.detach().clone()], [], []

    def after_backward():
        gradients.append(model.block.mlp_in.weight.grad.clone())

    with spectra.GradientRecorder(model, opt, every=every, also=also) as rec:
        for step in steps:
            train(model, opt, range(step, step + 1), after_backward)
            weights.append(model.block.mlp_in.weight.detach().clone())
            state = opt.state[model.block.mlp_in.weight]
            momenta.append(state.get("exp_avg", state.get("momentum_buffer")))
            momenta[-1] = None if momenta[-1] is None else momenta[-1].clone()
    return rec.run, weights, gradients, momenta


def close(run, step, quantity, matrix):
    np.testing.assert_allclose(
        run.values(step, LAYER, quantity), singular_values(matrix).values, rtol=1e-4, atol=1e-6 * float(matrix.norm())
    )


def test_momentum_update_and_weight_change_are_read_after_the_step():
    run, weights, _, momenta = record(["momentum", "update", "weight_change"])
    for step in (0, 2, 4):
        close(run, step, "momentum", momenta[step])
        close(run, step, "update", weights[step + 1] - weights[step])
    close(run, 4, "weight_change", weights[5] - weights[3])
    with pytest.raises(InputError, match="was not recorded"):
        run.values(0, LAYER, "weight_change")
    assert len(run.gradients()) == 3 * 5


def test_sgd_momentum_is_found_and_plain_sgd_has_none():
    run, _, _, momenta = record(["momentum"], optimizer=torch.optim.SGD, momentum=0.9)
    close(run, 4, "momentum", momenta[4])
    run, *_ = record(["momentum"], optimizer=torch.optim.SGD)
    assert set(run.frame["quantity"]) == {"gradient"}


def test_a_closure_step_writes_its_update_too():
    model = TinyLM()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    before = model.block.mlp_in.weight.detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = model.loss(batch(0))
        loss.backward()
        return loss

    with spectra.GradientRecorder(model, optimizer, every=1, also=["update"]) as rec:
        optimizer.step(closure)
    close(rec.run, 0, "update", model.block.mlp_in.weight.detach() - before)


def test_kronecker_values_stand_beside_the_plain_ones(monkeypatch):
    run, _, gradients, _ = record(["kronecker"])
    np.testing.assert_allclose(run.values(2, LAYER, "kronecker"), kronecker_values(gradients[2]), rtol=1e-5, atol=1e-7)
    row = run.frame.query(f"step == 2 and layer == '{LAYER}' and quantity == 'kronecker'").iloc[0]
    assert (row["rows"], row["cols"]) == (8 * 4, 8 * 4)
    monkeypatch.setattr("spectra.beside.LARGEST_REARRANGED", 20)
    large, *_ = record(["kronecker"])
    row = large.frame.query(f"step == 2 and layer == '{LAYER}' and quantity == 'kronecker'").iloc[0]
    exact = run.frame.query(f"step == 2 and layer == '{LAYER}' and quantity == 'kronecker'").iloc[0]
    assert (row["status"], row["rows"], row["cols"]) == ("moments only", 32, 32)
    for name in ("participation_ratio", "frobenius_norm"):
        assert row[name] == pytest.approx(exact[name], rel=1e-6)
    with pytest.raises(InputError, match="moments only"):
        large.values(2, LAYER, "kronecker")


def test_lags_hold_overlap_and_captured_energy_of_earlier_subspaces():
    run, _, gradients, _ = record(["lags"])
    lags = run.lags.query(f"layer == '{LAYER}'").set_index(["step", "lag"])
    assert sorted(lags.index) == [(2, 2), (4, 2), (4, 4)]
    first, last = (singular_triplets(gradients[step], 8).v for step in (0, 4))
    assert lags.loc[(4, 4), "overlap"] == pytest.approx(subspace.overlap(first, last).value, rel=1e-5)
    found = subspace.captured_energy(gradients[4], right=first)
    assert lags.loc[(4, 4), "captured"] == pytest.approx(found.energy, rel=1e-5)
    assert lags.loc[(4, 4), "chance"] == pytest.approx(found.chance)


def test_a_resumed_run_says_what_starts_anew():
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match="lags and weight_change compare with captures of this process only.*step 7"):
        spectra.GradientRecorder(model, optimizer, start_step=7, also=["weight_change", "lags"]).start().close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        spectra.GradientRecorder(model, optimizer, also=["lags"]).start().close()
        spectra.GradientRecorder(model, optimizer, start_step=7, also=["update"]).start().close()


def test_what_cannot_be_recorded_is_refused():
    with pytest.raises(InputError, match="did you mean 'momentum'"):
        spectra.GradientRecorder(TinyLM(), also=["momentun"])
    with pytest.raises(InputError, match="needs the optimizer"):
        spectra.GradientRecorder(TinyLM(), also=["update"])


def test_training_is_bitwise_the_same_with_everything_recorded():
    plain = TinyLM()
    train(plain, torch.optim.AdamW(plain.parameters(), lr=1e-2), range(4))
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with spectra.GradientRecorder(model, optimizer, every=1, also=["kronecker", "lags", "momentum", "update"]):
        train(model, optimizer, range(4))
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_only_the_last_captures_are_followed(monkeypatch):
    monkeypatch.setattr("spectra.beside.LAG_CAPTURES", 2)
    run, *_ = record(["lags"], every=1)
    lags = run.lags[run.lags["layer"] == LAYER]
    assert sorted(lags.loc[lags["step"] == 5, "lag"]) == [1, 2]


def test_a_loss_scale_is_divided_out_of_the_moments_of_a_large_rearrangement(monkeypatch):
    monkeypatch.setattr("spectra.beside.LARGEST_REARRANGED", 20)
    model = TinyLM()
    layer = next(layer for layer, _ in inventory(model, "*") if layer.name == LAYER)
    gradient = torch.randn_like(model.block.mlp_in.weight)
    beside = Beside(["kronecker"], None)
    (plain,) = beside.at_gradient(0, [(layer, gradient)], [], 1.0)
    (scaled,) = beside.at_gradient(0, [(layer, 8 * gradient)], [], 8.0)
    assert plain["status"] == "moments only"
    assert scaled["frobenius_norm"] == pytest.approx(plain["frobenius_norm"], rel=1e-12)
