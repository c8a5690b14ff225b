"""How much of the gradient a zeroth-order step sees: the cosine between its estimate and the gradient, layer by layer.

A weight l of m x n numbers moves by space(x_i) with k coordinates x_i; h_l is the gradient in these coordinates and
rho_l = |g_l|^2 / |g|^2 its layer's share. The coefficient c_i = sum_l <h_l, x_i> is common to all layers, so what the
others contribute is noise here. Given the c_i, the average of c_i x_i is normal, and with q directions

    E cos^2(estimate_l, g_l) = (k / mn) (1 + rho_l (q - 1)) / (k + rho_l (q - 1))
    E cos^2(estimate, g)     = q / (sum_l m_l n_l + (q - 1) sum_l rho_l m_l n_l / k_l)

where k / mn is the share of the gradient's energy that a space with fresh factors holds in expectation, and ratios of
expectations stand for the expected ratios. Exact for one dense weight, q / (mn + q - 1); derived here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from kronzo.errors import InputError
from kronzo.optim import ZeroOrder
from kronzo.spaces.base import Space
from spectra.layers import kind_of

if TYPE_CHECKING:
    import pandas as pd

WHOLE = "all"
"""The name of the row that holds the cosine over all weights together."""

Build = Callable[[Iterable[tuple[str, nn.Parameter]], int], ZeroOrder]
"""(named parameters, seed) -> an optimizer that averages."""


def captured_share(space: Space) -> float:
    """Return the expected share of a gradient's energy in a space with fresh factors: coordinates / numbers."""
    m, n = space.matrix
    return 1.0 if space.coordinates is None else math.prod(space.coordinates) / (m * n)


def predicted_cosine(space: Space, directions: int, share: float = 1.0) -> float:
    """Return the root of the expected squared cosine between estimate and gradient of one weight.

    Args:
        space: of the weight.
        directions: q, averaged.
        share: of the weight in the squared norm of the whole gradient; 1 where it is searched alone.
    """
    held = captured_share(space)
    coordinates = held * math.prod(space.matrix)
    return math.sqrt(held * (1 + share * (directions - 1)) / (coordinates + share * (directions - 1)))


def predicted_whole(spaces: Sequence[Space], directions: int, shares: Sequence[float]) -> float:
    """Return the same over all weights together; `shares` of the weights add up to 1."""
    numbers = sum(math.prod(space.matrix) for space in spaces)
    narrow = sum(share / captured_share(space) for space, share in zip(spaces, shares, strict=True))
    return math.sqrt(directions / (numbers + (directions - 1) * narrow))


def alignment(model: nn.Module, loss: Callable[[], Tensor], build: Build, seeds: Sequence[int]) -> pd.DataFrame:
    """Measure the cosine between the step that is taken and the negative gradient, at the model's present weights.

    The estimate is what one step with lr = 1 moves the weights by, so everything between draw and update counts. The
    weights are put back.

    Args:
        model: every parameter that requires a gradient is searched.
        loss: the loss of one fixed batch; called once with gradients and then as the optimizer's closure.
        build: makes a fresh optimizer; its rule has to average and it may neither decay nor keep momentum.
        seeds: one estimate each.

    Returns:
        A row for each seed and weight, and one called "all": seed, layer, kind, rows, cols, directions, cosine in
        [-1, 1], predicted (root of the expected square).

    Raises:
        InputError: an optimizer with another rule, momentum or decay; a gradient that is zero.

    Cost: one backward, and a step of every seed.
    """
    import pandas as pd

    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = dict(zip(named, torch.autograd.grad(loss(), list(named.values())), strict=True))
    total = math.fsum(float(g.double().square().sum()) for g in gradients.values())
    if not total > 0:
        raise InputError(
            f"alignment: the squared norm of the gradient is {total}; take a batch whose loss has a slope."
        )
    shares = {name: float(g.double().square().sum()) / total for name, g in gradients.items()}
    kinds = _kinds(model)
    rows: list[dict[str, Any]] = []
    for seed in seeds:
        optimizer = build(named.items(), seed)
        _check(optimizer)
        estimates = _estimates(optimizer, named, loss)
        directions = optimizer.settings.directions
        spaces = {name: optimizer.space_of(p) for name, p in named.items()}
        for name, space in spaces.items():
            size = dict(zip(("rows", "cols"), space.matrix, strict=True))
            cosine = _cosine([estimates[name]], [gradients[name]])
            predicted = predicted_cosine(space, directions, shares[name])
            rows.append(_row(seed, name, kinds[name], directions, cosine, predicted) | size)
        cosine = _cosine(list(estimates.values()), list(gradients.values()))
        predicted = predicted_whole(list(spaces.values()), directions, list(shares.values()))
        rows.append(_row(seed, WHOLE, WHOLE, directions, cosine, predicted))
    return pd.DataFrame(rows).astype({"rows": "Int64", "cols": "Int64"})


def _row(seed: int, layer: str, kind: str, directions: int, cosine: float, predicted: float) -> dict[str, Any]:
    about = {"seed": seed, "layer": layer, "kind": kind, "directions": directions}
    return about | {"cosine": cosine, "predicted": predicted}


def _kinds(model: nn.Module) -> dict[str, str]:
    """Parameter name -> "embedding", "attention", "mlp" or "other"."""
    owners = dict(model.named_modules())
    return {name: kind_of(name, owners[name.rpartition(".")[0]]) for name, _ in model.named_parameters()}


def _check(optimizer: ZeroOrder) -> None:
    settings = optimizer.settings
    decays = any(group["weight_decay"] for group in optimizer.param_groups)
    scaled = any(group["scale"] != 1.0 for group in optimizer.param_groups)
    if settings.rule.name != "average" or settings.momentum or decays or scaled:
        raise InputError(
            f"alignment: rule {settings.rule.name!r}, momentum {settings.momentum:g}: the rule 'average' without "
            "momentum, weight decay and scale is needed; build the optimizer so."
        )


@torch.no_grad()
def _estimates(optimizer: ZeroOrder, named: dict[str, nn.Parameter], loss: Callable[[], Tensor]) -> dict[str, Tensor]:
    """Return what a step with lr = 1 subtracts from each weight, and put the weights back."""
    for group in optimizer.param_groups:
        group["lr"] = 1.0
    before = {name: p.clone() for name, p in named.items()}
    try:
        optimizer.step(loss)
        return {name: before[name] - p for name, p in named.items()}
    finally:
        for name, p in named.items():
            p.copy_(before[name])


def _cosine(left: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The cosine between two lists of tensors, each taken as one vector, in float64."""
    a, b = (torch.cat([part.detach().double().flatten() for part in parts]) for parts in (left, right))
    return float(a @ b / (a.norm() * b.norm()))
