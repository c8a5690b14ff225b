"""What is searched and how its coordinates lie in memory: an entry a parameter, a section a flat buffer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kronzo.noise import Scalar
from kronzo.sharded import rows_of
from kronzo.spaces.base import Family, Kept, Space
from kronzo.spaces.kronecker import KroneckerSpace

Restore = Literal["auto", "arithmetic", "snapshot"]

SMALL_BYTES = 2**26
"""Models below keep SMALL_BYTES / 2 of coordinates within a step, larger ones 1/256 of their weights."""


@dataclass(eq=False)
class Entry:
    """One parameter that is searched."""

    parameter: Tensor
    space: Space
    index: int
    group: dict[str, Any]
    name: str
    kept: Kept = field(default_factory=dict)
    momentum: Tensor | None = None
    snapshot: Tensor | None = None
    keep: float = 1.0
    """What weight decay leaves of it in this step."""
    move: Tensor | None = None
    """Coordinates of the present sweep; None when they are regenerated instead of stored."""

    def __post_init__(self) -> None:
        self.weight, self.first_row = rows_of(self.parameter)
        """What this process moves: the parameter, or its own rows of a sharded one and the number of the first."""


@dataclass(eq=False)
class Section:
    """Parameters of one group, device and precision: their coordinates are one flat buffer a direction."""

    group: dict[str, Any]
    device: torch.device
    dtype: torch.dtype
    entries: list[Entry] = field(default_factory=list)
    spans: dict[int, slice] = field(default_factory=dict)
    """Where the coordinates of a parameter index lie in the buffer."""
    move: Tensor = field(default_factory=lambda: torch.empty(0))
    now: dict[int, Scalar] = field(default_factory=dict)
    """Where the section stands: what each direction has been added with."""
    sums: list[list[Tensor]] = field(default_factory=lambda: [[], []])
    """Weights and their moves: swept by one call for all."""
    products: list[list[Tensor]] = field(default_factory=lambda: [[], [], []])
    """Weights and the two sides of their broadcast products: swept by one call for all."""
    spreads: list[list[Tensor]] = field(default_factory=lambda: [[], []])
    """Destinations and sources of what must be copied before the products."""
    singly: list[Entry] = field(default_factory=list)
    """Swept one after the other."""


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Precision of a sweep: float64 for float64 weights, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sections_of(entries: Sequence[Entry]) -> list[Section]:
    """Group the entries and lay their coordinates out, in order."""
    found: dict[tuple[int, torch.device, torch.dtype], Section] = {}
    for entry in entries:
        key = (id(entry.group), entry.parameter.device, compute_dtype(entry.parameter.dtype))
        found.setdefault(key, Section(entry.group, key[1], key[2])).entries.append(entry)
    for section in found.values():
        stored = [e for e in section.entries if e.space.coordinates is not None]
        stops = np.cumsum([0, *(math.prod(e.space.coordinates or ()) for e in stored)]).tolist()
        section.move = torch.zeros(stops[-1], dtype=section.dtype, device=section.device)
        for entry, low, high in zip(stored, stops, stops[1:], strict=False):
            section.spans[entry.index] = slice(low, high)
            entry.move = section.move[low:high].view(entry.space.coordinates or ())
    return list(found.values())


def name_of(group: Mapping[str, Any], k: int) -> str:
    """What to call parameter k of a group in messages."""
    names = group.get("param_names", [])
    return str(names[k]) if k < len(names) else f"parameter {k} of its group"


def searched(groups: Sequence[dict[str, Any]]) -> list[Tensor]:
    """The parameters that are searched now: those that require gradients and hold numbers."""
    return [p for group in groups for p in group["params"] if p.requires_grad and p.numel()]


def entries_of(groups: Sequence[dict[str, Any]], family: Family) -> list[Entry]:
    """Entries of the searched parameters; the index counts all of them, frozen ones too."""
    numbered = [(group, k, p) for group in groups for k, p in enumerate(group["params"])]
    return [
        Entry(p, family(p.shape), index, group, name_of(group, k))
        for index, (group, k, p) in enumerate(numbered)
        if p.requires_grad and p.numel()
    ]


def identity(parameter: Tensor) -> tuple[int, int, torch.device, torch.dtype]:
    """What must not change while a parameter is searched: itself, its memory, its device and format."""
    return id(parameter), rows_of(parameter)[0].data_ptr(), parameter.device, parameter.dtype


def needs_snapshot(restore: Restore, parameters: Sequence[Tensor]) -> bool:
    """Whether a step copies the weights: on request, and under "auto" when one is of lower precision than float32."""
    low = any(compute_dtype(p.dtype) != p.dtype for p in parameters)
    return restore == "snapshot" or (restore == "auto" and low)


def capacity(spaces: Sequence[tuple[Tensor, Space]]) -> tuple[int, int]:
    """How many directions' coordinates are kept within a step, and the bytes of one; at least two."""
    weights = sum(p.numel() * p.element_size() for p, _ in spaces)
    budget = SMALL_BYTES // 2 if weights <= SMALL_BYTES else weights // 256
    stored = sum(
        math.prod(space.coordinates) * compute_dtype(p.dtype).itemsize
        for p, space in spaces
        if space.coordinates is not None
    )
    return max(2, budget // max(1, stored)), stored


def direction_budget(spaces: Sequence[tuple[Tensor, Space]], directions: int) -> int:
    """Bytes of coordinates in a step: the kept directions, the buffer of the present sweep, copies that sweeps need."""
    kept, stored = capacity(spaces)
    copies = sum(
        space.widened * p.element_size()
        for p, space in spaces
        if isinstance(space, KroneckerSpace) and p.device.type == "cpu"
    )
    return stored * (min(directions, kept) + 1) + copies
