from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kronzo.errors import InputError
from kronzo.pretrain import gpt2
from kronzo.pretrain.gpt2 import GPT2, GPT2Config

SMALL = GPT2Config(vocab_size=37, context=9, layers=2, heads=3, width=12)
PUBLISHED = {"gpt2": 124_439_808, "gpt2-medium": 354_823_168, "gpt2-large": 774_030_080, "gpt2-xl": 1_557_611_200}


def small_model(dtype: torch.dtype = torch.float64, **overrides: object) -> GPT2:
    """Random gains and biases too, so that a forgotten one shows."""
    model = GPT2(GPT2Config(**(SMALL.__dict__ | overrides)), seed=1, dtype=dtype)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator).to(dtype))
    return model.eval()


def tokens(batch: int, time: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    ids = torch.randint(SMALL.vocab_size, (batch, time + 1), generator=torch.Generator().manual_seed(seed))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def naive_logits(model: GPT2, x: Tensor) -> Tensor:
    """GPT-2 written out: one sequence, one head, one position at a time where that is clearest."""
    p = dict(model.named_parameters())

    def norm(v: Tensor, name: str) -> Tensor:
        centred = v - v.mean(-1, keepdim=True)
        return centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * p[name + ".weight"] + p[name + ".bias"]

    def linear(v: Tensor, name: str) -> Tensor:
        return v @ p[name + ".weight"].T + p[name + ".bias"]

    rows = []
    size, heads = model.config.width // model.config.heads, model.config.heads
    for sequence in x:
        v = torch.stack([p["wte.weight"][token] + p["wpe.weight"][i] for i, token in enumerate(sequence)])
        for layer in range(model.config.layers):
            q, k, u = linear(norm(v, f"h.{layer}.ln_1"), f"h.{layer}.attn.c_attn").split(model.config.width, dim=-1)
            mixed = torch.zeros_like(v)
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                for i in range(len(sequence)):
                    weights = torch.softmax(k[: i + 1, part] @ q[i, part] / math.sqrt(size), dim=0)
                    mixed[i, part] = weights @ u[: i + 1, part]
            v = v + linear(mixed, f"h.{layer}.attn.c_proj")
            inner = linear(norm(v, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
            gelu = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
            v = v + linear(gelu, f"h.{layer}.mlp.c_proj")
        rows.append(norm(v, "ln_f") @ p["wte.weight"].T)
    return torch.stack(rows)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name: str) -> None:
    assert GPT2(gpt2.config(name, vocab_size=50257), device="meta").num_parameters == PUBLISHED[name]


def test_logits_equal_the_naive_model_with_and_without_gradients() -> None:
    model = small_model()
    x, _ = tokens(3, 9)
    expected = naive_logits(model, x)
    torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(model(x), expected, rtol=1e-12, atol=1e-12)


def test_loss_is_the_mean_cross_entropy_in_float64() -> None:
    model = small_model(torch.float32)
    x, y = tokens(3, 9)
    logits = naive_logits(model, x).double()
    expected = -torch.log_softmax(logits, -1).gather(-1, y[..., None])[..., 0]
    assert model.loss(x, y).dtype == torch.float64 and model.loss(x, y).shape == ()
    assert model.token_losses(x, y).dtype == torch.float32
    torch.testing.assert_close(model.loss(x, y), expected.mean(), rtol=1e-5, atol=0)
    torch.testing.assert_close(model.losses(x, y), expected.mean(-1), rtol=1e-5, atol=0)
    assert torch.equal(model.loss(x, y), model.token_losses(x, y).double().mean())


class LogitRows(TorchDispatchMode):
    """Notes how many rows of logits the largest tensor of them has."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and result.shape[-1:] == (SMALL.vocab_size,) and len(result) != SMALL.width:
            self.most = max(self.most, result.numel() // SMALL.vocab_size)
        return result


@pytest.mark.parametrize("rows", [1, 5, 26])
def test_a_chunked_loss_has_the_values_and_gradients_of_a_whole_one(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    model = small_model()
    x, y = tokens(3, 9)
    weights = torch.linspace(-1, 2, 27).view(3, 9)
    with LogitRows() as seen:
        expected = model.token_losses(x, y)
        whole = torch.autograd.grad((expected * weights).sum(), list(model.parameters()))
    assert seen.most == 27
    monkeypatch.setattr(gpt2, "MAX_LOGITS", rows * SMALL.vocab_size)
    with LogitRows() as seen:
        losses = model.token_losses(x, y)
        parts = torch.autograd.grad((losses * weights).sum(), list(model.parameters()))
        with torch.no_grad():
            torch.testing.assert_close(model.token_losses(x, y), expected, rtol=1e-6, atol=0)
    assert seen.most == rows
    torch.testing.assert_close(losses, expected, rtol=1e-6, atol=0)
    for one, other in zip(whole, parts):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-6)


def test_a_chunked_loss_of_bfloat16_weights_has_gradients_of_their_type(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = tokens(3, 9)
    exact = small_model()
    model = small_model(torch.bfloat16)
    whole = torch.autograd.grad(exact.loss(x, y), list(exact.parameters()))
    monkeypatch.setattr(gpt2, "MAX_LOGITS", 5 * SMALL.vocab_size)
    parts = torch.autograd.grad(model.loss(x, y), list(model.parameters()))
    assert all(part.dtype == torch.bfloat16 for part in parts)
    for one, other in zip(whole, parts):
        assert torch.nn.functional.cosine_similarity(one.flatten(), other.double().flatten(), dim=0) > 0.99


def test_a_position_does_not_see_later_tokens() -> None:
    model = small_model()
    x, _ = tokens(2, 9)
    changed = x.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % SMALL.vocab_size
    torch.testing.assert_close(model(x)[:, :5], model(changed)[:, :5], rtol=0, atol=1e-12)
    assert not torch.allclose(model(x)[:, 5:], model(changed)[:, 5:])


@given(st.lists(st.floats(-30, 30), min_size=1, max_size=50))
@settings(max_examples=50, deadline=None)
def test_gelu_without_gradients_is_gelu(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float64)
    kept = x.clone()
    with torch.no_grad():
        torch.testing.assert_close(gpt2._gelu(x), F.gelu(x, approximate="tanh"), rtol=1e-12, atol=1e-14)
    assert torch.equal(x, kept)


def test_initial_weights_follow_gpt2_and_the_seed() -> None:
    config = gpt2.config("micro", layers=8)
    model = GPT2(config, seed=3)
    for name, parameter in model.named_parameters():
        if "ln_" in name:
            assert torch.all(parameter == float(name.endswith("weight")))
        elif name.endswith("bias"):
            assert torch.all(parameter == 0)
        else:
            expected = 0.02 / 4 if name.endswith("c_proj.weight") else 0.02
            assert abs(parameter.detach().std().item() / expected - 1) < 0.05, name
    same, other = GPT2(config, seed=3), GPT2(config, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters()))
    assert not torch.equal(model.wpe.weight, other.wpe.weight)


def test_building_a_model_leaves_the_random_stream_alone() -> None:
    before = torch.get_rng_state()
    GPT2(SMALL)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_head_is_the_embedding() -> None:
    model = small_model()
    x, y = tokens(1, 4)
    model.loss(x, y).backward()
    absent = [token for token in range(SMALL.vocab_size) if token not in x]
    assert model.wte.weight.grad is not None and torch.all(model.wte.weight.grad[absent].abs().sum(1) > 0)
    assert sum("wte" in name or "head" in name for name, _ in model.named_parameters()) == 1


def test_without_bias_no_parameter_is_one() -> None:
    names = [name for name, _ in GPT2(GPT2Config(**(SMALL.__dict__ | {"bias": False}))).named_parameters()]
    assert names and not [name for name in names if name.endswith("bias")]


def test_dropout_acts_only_while_training() -> None:
    model = small_model(dropout=0.5)
    x, y = tokens(2, 9)
    assert model.loss(x, y) == model.loss(x, y)
    model.train()
    assert model.loss(x, y) != model.loss(x, y)
    torch.manual_seed(0)
    first = model.loss(x, y)
    torch.manual_seed(0)
    assert model.loss(x, y) == first


def test_bfloat16_weights_give_float32_token_losses() -> None:
    model = small_model(torch.bfloat16)
    x, y = tokens(2, 9)
    assert model.token_losses(x, y).dtype == torch.float32
    torch.testing.assert_close(model.loss(x, y), small_model(torch.float32).loss(x, y), rtol=0.05, atol=0)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: gpt2.config("gpt2-mediun"), "did you mean 'gpt2-medium'"),
        (lambda: gpt2.config("gpt2", heads=5), "not a multiple of model.heads = 5"),
        (lambda: gpt2.config("gpt2", layers=0), "model.layers = 0"),
        (lambda: gpt2.config("gpt2", dropout=1.0), "model.dropout = 1.0"),
        (lambda: small_model().hidden(tokens(1, 10)[0]), "10 tokens exceeds model.context = 9"),
    ],
)
def test_refusals(make: object, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()  # type: ignore[operator]
