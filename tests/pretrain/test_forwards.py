"""Faster and leaner forwards: bfloat16, torch.compile, recomputed blocks; what they change and what they do not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_runs import small_config

import kronzo
from kronzo.errors import InputError
from kronzo.pretrain import gpt2, precision
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.loop import pretrain

SHAPE = gpt2.GPT2Config(vocab_size=128, context=32, layers=2, heads=2, width=32)
X, Y = torch.randint(0, 128, (2, 4, 32), generator=torch.Generator().manual_seed(0)).unbind()


def test_bfloat16_forwards_are_near_in_training_and_exact_in_evaluation() -> None:
    model, plain = gpt2.GPT2(SHAPE).use(precision="bfloat16"), gpt2.GPT2(SHAPE)
    losses, exact = model.token_losses(X, Y), plain.token_losses(X, Y)
    assert losses.dtype == torch.float32 and not torch.equal(losses, exact)
    torch.testing.assert_close(losses, exact, rtol=2e-2, atol=0)
    assert torch.equal(model.eval().token_losses(X, Y), exact)
    assert {p.dtype for p in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("rows", [None, 40])
def test_gradients_of_bfloat16_forwards_are_near(monkeypatch: pytest.MonkeyPatch, rows: int | None) -> None:
    if rows:
        monkeypatch.setattr(gpt2, "MAX_LOGITS", rows * SHAPE.vocab_size)
    gradients = []
    for kind in ("float32", "bfloat16"):
        model = gpt2.GPT2(SHAPE).use(precision=kind)
        model.loss(X, Y).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert gradients[0].dtype == gradients[1].dtype == torch.float32
    assert torch.cosine_similarity(gradients[0], gradients[1], dim=0) > 0.999


def test_weights_of_low_precision_are_the_same_draws_rounded() -> None:
    low, plain = gpt2.GPT2(SHAPE, seed=3, dtype=torch.bfloat16), gpt2.GPT2(SHAPE, seed=3)
    for a, b in zip(low.parameters(), plain.parameters(), strict=True):
        assert a.dtype == torch.bfloat16 and torch.equal(a, b.bfloat16())


def test_the_error_of_coefficients_grows_as_one_over_eps() -> None:
    model = gpt2.GPT2(SHAPE)
    before = [p.detach().clone() for p in model.parameters()]
    wide, narrow = (precision.coefficient_error(model, X, Y, eps, directions=8) for eps in (1e-2, 1e-4))
    assert 25 < narrow.error / wide.error < 400 and not wide.unresolved
    assert narrow.coefficient == pytest.approx(wide.coefficient, rel=0.7)
    assert precision.CoefficientError(1e-6, 0.5, 0.6).unresolved and "0.6" in str(precision.CoefficientError(1, 1, 0.6))
    assert model.autocast is False and all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("method", ["kronzo", "adamw"])
def test_a_run_in_bfloat16_differs_a_little_and_evaluates_in_float32(tmp_path: Path, method: str) -> None:
    def losses(name: str, *settings: str) -> list[float]:
        pretrain(small_config(f"optimizer.method={method}", *settings), tmp_path / name, progress=False)
        return read_metrics(tmp_path / name)["val_loss"].dropna().tolist()

    plain, low = losses("plain"), losses("low", "forward.precision=bfloat16")
    assert plain[0] == low[0], "the initial weights, evaluated in float32"
    assert plain[-1] != low[-1] and low == pytest.approx(plain, abs=0.02)


def test_an_eps_too_small_for_bfloat16_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = small_config("optimizer.method=kronzo", "forward.precision=bfloat16", "optimizer.eps=1e-6", "budget.steps=1")
    pretrain(run, tmp_path, progress=False)
    said = " ".join(capsys.readouterr().err.split())
    assert "eps = 1e-06: forwards in bfloat16 change a coefficient by" in said and "raise optimizer.eps" in said


def test_an_unknown_precision_names_the_nearest() -> None:
    with pytest.raises(InputError, match=r"forward\.precision = 'bf16'.*'bfloat16'"):
        small_config("forward.precision=bf16")


def test_the_config_reaches_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function: compiled.append(function.__name__) or function)
    pretrain(small_config("forward.compile=true", "budget.steps=1"), tmp_path, progress=False)
    assert compiled == ["hidden"]


@pytest.mark.slow
def test_compiled_forwards_follow_weights_that_a_zeroth_order_step_moves() -> None:
    shape = gpt2.GPT2Config(vocab_size=64, context=8, layers=1, heads=1, width=16)
    x, y = torch.randint(0, 64, (2, 2, 8)).unbind()
    losses = []
    for compiled in (False, True):
        model = gpt2.GPT2(shape).use(compile=compiled)
        optimizer = kronzo.KronZO(model.named_parameters(), lr=1e-2, directions=2)
        losses.append([float(optimizer.step(lambda model=model: model.loss(x, y))) for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-4) and len(set(losses[1])) == 4
