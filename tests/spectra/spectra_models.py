"""A tiny language model, its data, and training that can be repeated bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH = 40, 12, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(WIDTH)
        self.c_attn = nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp_in = nn.Linear(WIDTH, 4 * WIDTH)
        self.mlp_out = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.c_attn(self.ln(x)).chunk(3, -1)
        x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.mlp_out(functional.gelu(self.mlp_in(x)))


class TinyLM(nn.Module):
    """Tied embeddings, one block, fused q, k, v: small enough for hundreds of captures in a test."""

    def __init__(self, seed: int = 0, tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.wte = nn.Embedding(VOCABULARY, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH)
        self.block = Block()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.wte.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.wte(x) + self.wpe(torch.arange(x.shape[1]))))

    def loss(self, x: Tensor) -> Tensor:
        return functional.cross_entropy(self(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def batch(step: int, size: int = 4) -> Tensor:
    """Tokens as a pure function of the step."""
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, VOCABULARY, (size, CONTEXT + 1), generator=generator)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: range,
    after_backward: Callable[[], object] = lambda: None,
) -> None:
    """Plain training on `batch(step)`."""
    for step in steps:
        optimizer.zero_grad()
        model.loss(batch(step)).backward()
        after_backward()
        optimizer.step()


def reference(gradient):
    return np.linalg.svd(gradient.detach().flatten(1).double().numpy(), compute_uv=False)


def assert_captured(run, step, named_gradients):
    for name, gradient in named_gradients:
        np.testing.assert_allclose(
            run.values(step, name),
            reference(gradient),
            rtol=2e-6,
            atol=1e-6 * float(gradient.abs().max()),
            err_msg=name,
        )


def matrices(model, x):
    """Gradients from scratch, by autograd.grad."""
    named = [(name, p) for name, p in model.named_parameters() if p.ndim > 1 and p.requires_grad]
    return list(
        zip([name for name, _ in named], torch.autograd.grad(model.loss(x), [p for _, p in named]), strict=True)
    )


def make(tied=True):
    model = TinyLM(tied=tied)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)
