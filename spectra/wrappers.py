"""What others put around a model, an optimizer or a process, seen through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from spectra.errors import InputError


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside torch.compile, DistributedDataParallel and DataParallel."""
    inner = getattr(model, "_orig_mod", None)
    if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
        inner = model.module
    return model if not isinstance(inner, nn.Module) else unwrap(inner)


def innermost(optimizer: Any) -> Optimizer | None:
    """Return the torch optimizer inside the wrappers of accelerate and others.

    Raises:
        InputError: neither an optimizer nor None.
    """
    while isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        optimizer = optimizer.optimizer
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise InputError(f"optimizer is a {type(optimizer).__name__}; a torch.optim.Optimizer or None is needed")
    return optimizer


def closure_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Return the closure among the arguments of Optimizer.step, self included, or None."""
    closure: Callable[[], Any] | None = kwargs.get("closure", args[1] if len(args) > 1 else None)
    return closure


def with_closure(
    args: tuple[Any, ...], kwargs: dict[str, Any], closure: Callable[[], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of Optimizer.step with another closure."""
    return ((*args[:1], closure, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": closure})


def in_process_group() -> bool:
    """Return whether gradients may be reduced over several processes."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def processes() -> int:
    """Return over how many processes gradients are averaged."""
    return torch.distributed.get_world_size() if in_process_group() else 1


def is_main_process() -> bool:
    """Return whether this process records: rank 0; the others hold the same reduced gradients."""
    return not in_process_group() or torch.distributed.get_rank() == 0
