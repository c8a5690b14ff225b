"""Weights spread over processes as DTensors (`fully_shard`, FSDP2): factors are drawn whole, each rank moves its rows.

FSDP gathers a module's weights before its forward and may leave them gathered, so that a later change of the rows would
not be seen: `reshard` puts them away, after every forward of a step and before its first sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from kronzo.errors import InputError

_ENGINES = {
    "ds_id": "DeepSpeed ZeRO-3",
    "_is_flat_param": "FSDP1 (FullyShardedDataParallel)",
    "_fsdp_flattened": "FSDP1 (FullyShardedDataParallel)",
}
"""Attributes by which other engines mark the placeholders that they leave for weights kept elsewhere."""


def is_sharded(parameter: Tensor) -> bool:
    """Whether it is a DTensor; torch.distributed.tensor is not imported for the question."""
    return type(parameter) not in (Tensor, nn.Parameter) and hasattr(parameter, "placements")


def check_placement(parameter: Any, what: str) -> None:
    """Refuse a tensor whose rows this process cannot move.

    Raises:
        InputError: a placeholder of another engine, columns or sums instead of rows, rows divided twice.
    """
    for mark, engine in _ENGINES.items():
        if getattr(parameter, mark, None) is not None:
            raise InputError(
                f"{what} is a placeholder of {engine}, sharded where no optimizer of ours reaches it: use "
                "torch.distributed.fsdp.fully_shard (FSDP2), or whole weights."
            )
    if not is_sharded(parameter):
        return
    bad = [p for p in parameter.placements if not (p.is_replicate() or (type(p).__name__ == "Shard" and p.dim == 0))]
    if bad or len(_sharding(parameter)) > 1:
        found = ", ".join(map(str, parameter.placements))
        raise InputError(
            f"{what} is a DTensor placed as ({found}): its rows must be divided once, Shard(0), which is what "
            "fully_shard does unless it is given a shard_placement_fn."
        )


def _sharding(parameter: Any) -> list[int]:
    """Dimensions of the mesh along which the rows are divided."""
    return [k for k, placement in enumerate(parameter.placements) if not placement.is_replicate()]


def rows_of(parameter: Any) -> tuple[Tensor, int]:
    """The rows of a parameter that this process holds, sharing its memory, and the number of the first."""
    if not is_sharded(parameter):
        return parameter, 0
    with torch.no_grad():
        mine = parameter.to_local()
    first = 0
    for k in _sharding(parameter):
        mesh, rows = parameter.device_mesh, parameter.shape[0]
        first = min(rows, mesh.get_local_rank(k) * -(-rows // mesh.size(k)))
    return mine, first


def group_of(parameter: Any) -> Any:
    """The process group over which a parameter's rows are divided; None where this process holds all."""
    divided = _sharding(parameter) if is_sharded(parameter) else []
    mesh = parameter.device_mesh if divided else None
    return mesh.get_group(divided[0]) if mesh is not None and mesh.size(divided[0]) > 1 else None


def reshard(model: nn.Module | None, sharded: Sequence[Tensor]) -> None:
    """Make every FSDP module gather its weights again in its next forward.

    Args:
        model: the attached one.
        sharded: its parameters that will move.

    Raises:
        InputError: one of them is not among those of `model` afterwards, so its forward would not see it change.
    """
    if not sharded:
        return
    if model is None:
        raise InputError(
            f"{len(sharded)} parameters are sharded (DTensor): call opt.attach(model) with the model that fully_shard "
            "has returned, so that its modules can be resharded before their weights move."
        )
    modules: list[Any] = [m for m in model.modules() if any(c.__name__ == "FSDPModule" for c in type(m).__mro__)]
    for module in modules:
        module.reshard()
    if lost := _gathered(model, sharded):
        for module in modules:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()
        lost = _gathered(model, sharded)
    if lost:
        raise InputError(
            f"{lost} sharded parameters are not in the attached model: attach the one whose parameters these are."
        )


def _gathered(model: nn.Module, sharded: Sequence[Tensor]) -> int:
    """How many of the sharded parameters do not stand in the model; whole ones may stand there for them."""
    held = set(map(id, model.parameters()))
    return sum(id(p) not in held for p in sharded)


def check_parallel(parameters: Iterable[Tensor], parallel: str | int | None) -> None:
    """Refuse shared directions on sharded weights: rows of different probes would be gathered into one weight.

    Raises:
        InputError: ranks are to share directions.
    """
    if parallel not in (None, "data", 1) and any(map(is_sharded, parameters)):
        raise InputError(
            f"parallel={parallel!r}: ranks that share directions stand at different probes, and sharded weights can "
            'stand at one only; use parallel="data" with fully_shard.'
        )
