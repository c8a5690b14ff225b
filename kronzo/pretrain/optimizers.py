"""From the [optimizer] section to a torch optimizer and its learning-rate schedule, for every method alike."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from kronzo.errors import InputError
from kronzo.pretrain.config import FIRST_ORDER, OptimizerConfig
from kronzo.pretrain.tables import nearest

_SCHEDULE_KEYS = ("method", "published", "schedule", "warmup", "min_lr_ratio", "scale", "extra")
_FIRST_ORDER_DEFAULTS: dict[str, dict[str, Any]] = {
    "adamw": {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "clip": 1.0},
    "sgd": {"lr": 0.1, "weight_decay": 0.0, "momentum": 0.9, "clip": 1.0},
}


def resolve(given: OptimizerConfig) -> OptimizerConfig:
    """Return the section with every keyword of its method written out.

    Raises:
        InputError: an unknown method, or a keyword the method does not take.
    """
    if given.method in FIRST_ORDER:
        defaults = _FIRST_ORDER_DEFAULTS[given.method]
        if given.published:
            raise InputError(f"optimizer.published: {given.method} has no published settings here; set optimizer.lr.")
        taken = set(defaults)
    else:
        defaults, taken = _zeroth_order_defaults(given)
    keys = {field.name for field in fields(OptimizerConfig)} - set(_SCHEDULE_KEYS)
    named = {key: getattr(given, key) for key in keys if getattr(given, key) is not None}
    for key in sorted(named.keys() | given.extra.keys()):
        if key not in taken:
            section = "optimizer.extra" if key in given.extra else "optimizer"
            raise InputError(f"{section}.{key}: {given.method} takes no {key}, only {', '.join(sorted(taken))}.")
    values = defaults | named
    extra = {key: value for key, value in defaults.items() if key not in keys} | given.extra
    return replace(given, published=False, extra=extra, **{key: values[key] for key in keys & values.keys()})


def _zeroth_order_defaults(given: OptimizerConfig) -> tuple[dict[str, Any], set[str]]:
    """Return the method's default or published keywords that a TOML file can hold, and all keywords it takes."""
    import kronzo

    if given.method not in kronzo.METHODS:
        known = (*FIRST_ORDER, *kronzo.METHODS)
        raise InputError(
            f"optimizer.method = {given.method!r} is unknown: {', '.join(known)} are known; "
            f"did you mean {nearest(given.method, known)!r}?"
        )
    parameters = inspect.signature(kronzo.METHODS[given.method]).parameters
    taken = set(parameters) - {"params", "seed"}
    keys = {field.name for field in fields(OptimizerConfig)} - set(_SCHEDULE_KEYS)
    defaults = {key: parameters[key].default for key in taken & keys}
    if given.published:
        defaults |= kronzo.published(given.method)
    plain = {key: value for key, value in defaults.items() if isinstance(value, bool | int | float | str | tuple)}
    return plain, taken


def is_zeroth_order(config: OptimizerConfig) -> bool:
    """Whether the method only evaluates losses."""
    return config.method not in FIRST_ORDER


def build(model: nn.Module, config: OptimizerConfig, seed: int) -> torch.optim.Optimizer:
    """Build the optimizer of a resolved section.

    Args:
        model: its named parameters are trained.
        config: a section that `resolve` returned.
        seed: of the search directions.

    Raises:
        InputError: a scale whose glob matches no parameter, or what the method itself refuses.
    """
    if config.method == "adamw":
        return torch.optim.AdamW(_decay_groups(model, config), lr=_need(config.lr), betas=config.betas, fused=True)  # type: ignore[arg-type]
    if config.method == "sgd":
        return torch.optim.SGD(_decay_groups(model, config), lr=_need(config.lr), momentum=config.momentum or 0.0)
    return build_zeroth_order(_scale_groups(model, config.scale), config, seed)


def build_zeroth_order(params: list[Any], config: OptimizerConfig, seed: int) -> torch.optim.Optimizer:
    """Build a method of kronzo.METHODS on parameters or groups, with a resolved section's keywords."""
    import kronzo

    keys = {field.name for field in fields(OptimizerConfig)} - set(_SCHEDULE_KEYS)
    keywords: dict[str, Any] = {key: getattr(config, key) for key in keys if getattr(config, key) is not None}
    keywords |= config.extra
    return kronzo.METHODS[config.method](params, seed=seed, **keywords)


def _need(value: float | None) -> float:
    assert value is not None, "the optimizer section is not resolved"
    return value


def _decay_groups(model: nn.Module, config: OptimizerConfig) -> list[dict[str, Any]]:
    """Split the parameters: weight decay acts on matrices only."""
    if config.scale:
        raise InputError(f"optimizer.scale: {config.method} has no search to scale; drop it.")
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def _scale_groups(model: nn.Module, scale: dict[str, float]) -> list[Any]:
    """Return the named parameters, in groups of equal `scale` when globs give some."""
    named = list(model.named_parameters())
    for glob in scale:
        if not any(fnmatchcase(name, glob) for name, _ in named):
            raise InputError(
                f"optimizer.scale: {glob!r} matches no parameter; did you mean {nearest(glob, dict(named))!r}?"
            )
    if not scale:
        return named
    groups: dict[float, list[Any]] = {}
    for name, parameter in named:
        matches = [factor for glob, factor in scale.items() if fnmatchcase(name, glob)]
        groups.setdefault(matches[-1] if matches else 1.0, []).append((name, parameter))
    return [{"params": members, "scale": factor} for factor, members in groups.items()]


def lr_factor(config: OptimizerConfig, steps: int) -> Callable[[int], float]:
    """Return step -> lr / optimizer.lr for steps 0, 1, ..., steps - 1.

    A linear rise over the first warmup * steps steps, reaching 1; then 1, or half a cosine down to min_lr_ratio.
    """
    rise = round(config.warmup * steps)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        if config.schedule == "constant":
            return 1.0
        done = (step - rise) / max(1, steps - 1 - rise)
        return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))

    return factor
