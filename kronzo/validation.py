"""What a caller can get wrong, refused with what was given, what is needed and what to do."""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from kronzo.errors import InputError, UnknownKeyword
from kronzo.sharded import check_placement, is_sharded


def one_of(name: str, value: object, allowed: Iterable[object]) -> None:
    """Refuse a value that is not among the allowed ones."""
    choices = list(allowed)
    if value not in choices:
        raise InputError(f"{name}={value!r}: give one of {', '.join(repr(c) for c in choices)}.")


def whole(name: str, value: object, least: int) -> None:
    """Refuse anything but a whole number >= least."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}: give a whole number >= {least}.")


def number(name: str, given: Any, low: float, *, open_low: bool = False, below: float = math.inf) -> None:
    """Refuse a number (or 0-dim tensor) outside [low, below), or (low, below) with open_low."""
    plain = given.item() if isinstance(given, Tensor) and given.ndim == 0 else given
    if (
        isinstance(plain, bool)
        or not isinstance(plain, numbers.Real)
        or not math.isfinite(value := float(plain))
        or not (value > low if open_low else value >= low)
        or value >= below
    ):
        bound = f"{'>' if open_low else '>='} {low:g}" + ("" if below == math.inf else f" and < {below:g}")
        raise InputError(f"{name}={given!r}: give a finite number {bound}.")


def check_values(group: Mapping[str, Any]) -> None:
    """The numbers of one parameter group, which schedulers may change between steps."""
    number("lr", group["lr"], 0.0)
    number("eps", group["eps"], 0.0, open_low=True)
    number("scale", group["scale"], 0.0)
    number("weight_decay", group["weight_decay"], 0.0)
    if float(group["lr"]) * float(group["weight_decay"]) >= 1:
        raise InputError(
            f"lr * weight_decay = {float(group['lr']) * float(group['weight_decay']):g}: the decay of one step must be "
            "below 1; lower one of them."
        )


FLAGS = ("foreach", "fused", "capturable", "differentiable")
"""Keywords of torch's own optimizers."""


def knowing(constructor: Callable[..., None]) -> Callable[..., None]:
    """A constructor that refuses keywords which it does not take, before Python does so without a word of what to do.

    Raises:
        UnknownKeyword: by the constructor; the keyword, and what to do.
    """
    parameters = inspect.signature(constructor).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return constructor
    known = list(parameters)[1:]

    @functools.wraps(constructor)
    def checked(self: Any, *args: Any, **keywords: Any) -> None:
        for name in keywords:
            _check_keyword(type(self).__name__, name, known)
        constructor(self, *args, **keywords)

    return checked


def _check_keyword(optimizer: str, name: str, known: list[str]) -> None:
    if name in known:
        return
    if name in FLAGS:
        raise UnknownKeyword(f"{name}= is for torch's own optimizers, zeroth-order steps have none: leave it out.")
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
    raise UnknownKeyword(f"{optimizer} has no keyword {name}; did you mean {near}? It takes {', '.join(known)}.")


def check_group(group: Mapping[str, Any], restore: str) -> None:
    """The numbers and tensors of one parameter group."""
    check_values(group)
    for flag in FLAGS:
        if group.get(flag):
            raise InputError(f"{flag}=True is for torch's own optimizers, zeroth-order steps have none: leave it out.")
    for i, parameter in enumerate(group["params"]):
        _check_parameter(parameter, i, float(group["weight_decay"]))
        if restore == "arithmetic" and parameter.dtype in (torch.float16, torch.bfloat16):
            raise InputError(
                f'restore="arithmetic" on parameter {i} of {parameter.dtype}: there and back does not cancel in this '
                'format and the weights drift by percents in a hundred steps; use restore="snapshot" or float32.'
            )


def _check_parameter(p: Tensor, i: int, weight_decay: float) -> None:
    what = f"parameter {i} {tuple(p.shape)}"
    check_placement(p, what)
    if p.is_complex() or not p.is_floating_point():
        raise InputError(f"{what} is {p.dtype}: zeroth-order steps move real floating-point weights; leave it out.")
    if p.layout != torch.strided:
        raise InputError(f"{what} is {p.layout}: only dense (strided) weights can be swept; convert with to_dense().")
    if p.device.type == "meta":
        raise InputError(f"{what} is on the meta device and has no numbers: materialise the model first.")
    if any(size > 1 and stride == 0 for size, stride in zip(p.shape, p.stride(), strict=True)):
        raise InputError(f"{what} is expanded, several entries are one number in memory: pass a .contiguous() copy.")
    if weight_decay and p.ndim >= 2 and p.dtype in (torch.float16, torch.bfloat16):
        raise InputError(
            f"weight_decay={weight_decay:g} on {what} of {p.dtype}: a decay of lr * weight_decay is below what this "
            "format resolves and would do nothing; use weight_decay=0 or float32 weights."
        )


def same_tensor_once(params: Iterable[Any]) -> list[Any]:
    """The params argument as a list, each tensor's memory once: tied weights are searched once.

    Two different parameters over the same memory (tied by assigning `.data`) count as one as well.

    Raises:
        InputError: there is nothing to search, or one memory is given in two shapes.
    """
    seen: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def fresh(item: Any) -> bool:
        tensor = item[1] if isinstance(item, tuple) else item
        if not isinstance(tensor, Tensor):
            raise InputError(f"params holds a {type(tensor).__name__}: give tensors, (name, tensor) pairs or groups.")
        if tensor.layout != torch.strided or tensor.device.type == "meta" or tensor.numel() == 0:
            return True
        layout = (tuple(tensor.shape), tensor.stride())
        memory = id(tensor) if is_sharded(tensor) else tensor.data_ptr()
        earlier = seen.setdefault((tensor.device, memory), layout)
        if earlier is not layout and earlier != layout:
            raise InputError(
                f"params holds one memory as shape {earlier[0]} and as {layout[0]} (strides {earlier[1]} and "
                f"{layout[1]}): both would move it; pass it once."
            )
        return earlier is layout

    if isinstance(params, Tensor):
        raise InputError("params is one tensor: give a list of tensors, e.g. [weight] or model.parameters().")
    if isinstance(params, nn.Module):
        raise InputError(f"params is a module, {type(params).__name__}: give its .parameters().")
    items = list(params)
    if not items:
        raise InputError("params is empty: give at least one tensor, e.g. model.parameters().")
    if not isinstance(items[0], dict):
        return [item for item in items if fresh(item)]
    groups = []
    for group in items:
        if "params" not in group:
            raise InputError(f'a group with the keys {sorted(group)} has no tensors: give them under "params".')
        inside = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        groups.append({**group, "params": [item for item in inside if fresh(item)]})
    return groups


def loss_tensor(value: Any) -> tuple[Tensor, torch.dtype]:
    """A closure's return as a 0-dim float64 tensor on its device, and the format it came in.

    Raises:
        InputError: it is not one real number.
    """
    if isinstance(value, Tensor):
        if value.ndim != 0 or value.is_complex():
            raise InputError(
                f"the closure returned a tensor of shape {tuple(value.shape)}, {value.dtype}: return one real number, "
                "a 0-dim tensor or a float (take the mean of the losses)."
            )
        wide = torch.float32 if value.device.type == "mps" else torch.float64
        return value.detach().to(wide), value.dtype if value.is_floating_point() else torch.float64
    if isinstance(value, numbers.Real):
        return torch.tensor(float(value), dtype=torch.float64), torch.float64
    raise InputError(f"the closure returned {type(value).__name__}: return the loss, a 0-dim tensor or a float.")


def resolution_of(loss: float, dtype: torch.dtype, eps: float) -> float:
    """ulp(loss) / (2 eps): the least coefficient other than zero that losses in this format can give."""
    if not math.isfinite(loss):
        return math.nan
    exponent = math.floor(math.log2(abs(loss))) if loss else 0
    return torch.finfo(dtype).eps * 2.0**exponent / (2 * eps)
