"""What the optimizer keeps for each parameter, and how it survives a save.

Every parameter has an entry from construction: its kept factors, the step they were drawn at, and momentum if any. Only
tensors, numbers and lists: the state passes through `torch.load(weights_only=True)` and torch.distributed.checkpoint.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kronzo.errors import InputError
from kronzo.layout import Entry, compute_dtype
from kronzo.noise import Noise
from kronzo.spaces.base import Kept, Space
from kronzo.transfer import shipped

DRAWN_AT, MOMENTUM = "refreshed", "momentum"
SHARED = ("seed", "step", "window")
"""Scalars of the whole optimizer; they live in every param group, where torch.distributed.checkpoint looks."""


def draw_kept(parameter: Tensor, space: Space, index: int, noise: Noise) -> Kept:
    """The kept factors that the address (seed, step, index) gives, on the parameter's device."""
    kept = space.make_kept(lambda k, shape: noise.kept(index, k, shape))
    return {key: shipped(v, parameter.device, compute_dtype(parameter.dtype)) for key, v in kept.items()}


def initial(parameter: Tensor, space: Space, index: int, noise: Noise, momentum: bool) -> dict[str, Tensor]:
    """A parameter's entry at construction."""
    state = {**draw_kept(parameter, space, index, noise), DRAWN_AT: torch.tensor(noise.step)}
    if momentum:
        shape = space.coordinates if space.coordinates is not None else space.matrix
        state[MOMENTUM] = torch.zeros(shape, dtype=compute_dtype(parameter.dtype), device=parameter.device)
    return state


def recall(entry: Entry, state: dict[str, Any], fresh: Noise | None) -> None:
    """Kept factors and momentum of the coming step, on the parameter's device and in its precision of today.

    `fresh` draws the factors that are due anew; momentum is then carried over to them.
    """
    there = (entry.parameter.device, compute_dtype(entry.parameter.dtype))
    entry.kept = {key: value.to(*there) for key, value in state.items() if key not in (DRAWN_AT, MOMENTUM)}
    entry.momentum = state[MOMENTUM].to(*there) if MOMENTUM in state else None
    if fresh is None:
        return
    old, entry.kept = entry.kept, draw_kept(entry.parameter, entry.space, entry.index, fresh)
    if entry.momentum is not None and old:
        entry.momentum = entry.space.carry(entry.momentum, old, entry.kept)


def remember(state: dict[str, Any], kept: Kept, momentum: Tensor | None, drawn_at: int) -> None:
    """Write kept factors and momentum into a parameter's entry."""
    state.update(kept)
    state[DRAWN_AT].fill_(drawn_at)
    if momentum is not None:
        state[MOMENTUM] = momentum


def check_loaded(saved: dict[str, Any], groups: list[dict[str, Any]], live: dict[Tensor, Any]) -> None:
    """Refuse a state that was saved by a differently built optimizer.

    Raises:
        InputError: no state of an optimizer, other group sizes, another length of window, missing scalars, or entries
            of other shapes.
    """
    lacks = [key for key in ("state", "param_groups") if key not in saved]
    if lacks:
        raise InputError(f"the state has no {' and no '.join(lacks)}: give what an optimizer's state_dict() returned.")
    mine, theirs = ([len(g["params"]) for g in side] for side in (groups, saved["param_groups"]))
    if mine != theirs:
        raise InputError(f"the state has groups of {theirs} parameters, this optimizer {mine}: load the matching one.")
    for group in saved["param_groups"]:
        missing = [key for key in SHARED if key not in group]
        if missing:
            raise InputError(f"the state has no {', '.join(missing)}: it is not of a zeroth-order optimizer.")
        if len(group["window"]) != len(groups[0]["window"]):
            raise InputError(
                f"the state was saved with window={len(group['window'])}, this optimizer has "
                f"window={len(groups[0]['window'])}: build it with the settings of the run."
            )
    for i, (key, parameter) in enumerate(pairs(saved, groups)):
        found = {k: tuple(v.shape) for k, v in saved["state"].get(key, {}).items()}
        expected = {k: tuple(v.shape) for k, v in live[parameter].items()}
        if found != expected:
            raise InputError(
                f"the state of parameter {i} holds {found}, this optimizer needs {expected}: it was saved by another "
                "method, rank, factor rule or momentum; build the optimizer with the settings of the run."
            )


def load_exact(saved: dict[str, Any], groups: list[dict[str, Any]], live: dict[Tensor, Any]) -> None:
    """Copy the entries as they are: float32 factors stay float32 beside weights of lower precision."""
    for key, parameter in pairs(saved, groups):
        for name, value in saved["state"].get(key, {}).items():
            device = "cpu" if name == DRAWN_AT else parameter.device
            live[parameter][name] = value.detach().clone().to(device)


def pairs(saved: dict[str, Any], groups: list[dict[str, Any]]) -> list[tuple[Any, Tensor]]:
    """(key in the saved state, parameter), in order."""
    keys = [key for group in saved["param_groups"] for key in group["params"]]
    return list(zip(keys, (p for group in groups for p in group["params"]), strict=True))
