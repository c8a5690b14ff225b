"""Where the weights stand during a step: `goto` moves all of them inside their search spaces.

A position is a linear combination of the step's directions, {direction: coefficient}. Going somewhere is one sweep that
adds the difference of the coordinates, so the way back from a probe is fused with the way to the next one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kronzo.noise import Noise, Scalar
from kronzo.spaces.base import Kept, Space, as_matrix

Kind = Literal["probe", "update"]
Combination = Mapping[int, Scalar]

CHUNK = 2**20
"""Numbers of a weight that exist in float32 at a time when the weight itself is of lower precision."""
CACHE_BYTES = 2**21
"""Coordinates kept within a step; directions beyond it are drawn again, so memory does not grow with their number."""


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
    low: int = 0
    """Where its coordinates begin in the section's flat buffer."""

    @property
    def size(self) -> int:
        """Stored coordinates."""
        return int(np.prod(self.space.coordinates)) if self.space.coordinates is not None else 0


@dataclass(eq=False)
class Section:
    """Parameters of one group, device and precision: their coordinates are one flat buffer a direction."""

    group: dict[str, Any]
    device: torch.device
    dtype: torch.dtype
    entries: list[Entry]
    size: int = 0
    now: dict[int, Scalar] = field(default_factory=dict)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Precision of a sweep: float64 for float64 weights, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def sections_of(entries: Sequence[Entry]) -> list[Section]:
    """Group the entries and lay their coordinates out, in order."""
    found: dict[tuple[int, torch.device, torch.dtype], Section] = {}
    for entry in entries:
        w = entry.parameter
        key = (id(entry.group), w.device, compute_dtype(w.dtype))
        section = found.setdefault(key, Section(entry.group, key[1], key[2], []))
        entry.low = section.size
        section.size += entry.size
        section.entries.append(entry)
    return list(found.values())


class Search:
    """The weights, their spaces and the directions of the current step.

    Args:
        entries: the parameters to move, kept factors set.
        snapshot: keep a copy of the weights and leave from it, which is bit-exact and doubles them; otherwise the way
            back is the opposite sweep, whose float32 rounding stays (about one ulp of the largest number on the way).
    """

    def __init__(self, entries: Sequence[Entry], snapshot: bool) -> None:
        self.entries = list(entries)
        self.sections = sections_of(self.entries)
        self.snapshot = snapshot
        self.sweeps = 0
        self._cache: OrderedDict[int, list[Tensor]] = OrderedDict()
        total = sum(section.size for section in self.sections)
        self._capacity = max(2, CACHE_BYTES // max(1, 4 * total))

    def begin(self, noise: Noise, base_eps: float) -> None:
        """Start a step at the present weights, decayed: theta = (1 - lr weight_decay) W for matrices."""
        self.noise, self.base_eps, self.sweeps = noise, base_eps, 0
        self._cache.clear()
        for section in self.sections:
            section.now = {}
            for entry in section.entries:
                entry.keep = kept_share(entry)
                if self.snapshot:
                    if entry.snapshot is None:
                        entry.snapshot = torch.empty_like(entry.parameter)
                    entry.snapshot.copy_(entry.parameter)
                if entry.keep != 1.0:
                    entry.parameter.mul_(entry.keep)

    def abandon(self) -> None:
        """Undo the step: the weights before `begin`, bit-equal with snapshots, otherwise within the rounding."""
        if not self.snapshot:
            self.restore()
        for entry in self.entries:
            if entry.snapshot is not None:
                entry.parameter.copy_(entry.snapshot)
            elif entry.keep != 1.0:
                entry.parameter.div_(entry.keep)
        for section in self.sections:
            section.now = {}

    def factor(self, group: dict[str, Any], kind: Kind) -> float:
        """What a unit coefficient moves a group by: eps scale for a probe, lr scale eps_0 / eps for an update."""
        if kind == "probe":
            return float(group["eps"]) * float(group["scale"])
        return float(group["lr"]) * float(group["scale"]) * self.base_eps / float(group["eps"])

    def goto(self, kind: Kind, combination: Combination) -> None:
        """Move every weight to theta + sum_i factor * coefficient_i * Z_i, in one sweep."""
        swept = False
        for section in self.sections:
            target = _scaled(combination, self.factor(section.group, kind), section.device)
            moves = target if self.snapshot else _difference(target, section.now)
            if not moves and not section.now:
                continue
            section.now, swept = target, True
            flat = self._combine(section, moves)
            for entry in section.entries:
                if not moves:
                    self._leave_from_(entry, entry.parameter, slice(None))
                elif entry.space.coordinates is None:
                    self._sweep_dense(entry, moves)
                else:
                    self._sweep(entry, _coordinates(entry, flat))
        self.sweeps += swept

    def restore(self) -> None:
        """Back to theta: bit-equal with snapshots, otherwise by the opposite sweep."""
        self.goto("probe", {})

    def settle(self, combination: Combination, momentum: float) -> None:
        """End the step at theta + factor * M, with M <- momentum M + (1 - momentum) sum_i coefficient_i Z_i.

        Without momentum this is `goto("update", combination)`. With it, M lives in the coordinates of each space.
        """
        if not momentum:
            self.goto("update", combination)
            return
        self.restore()
        self.sweeps += 1
        for section in self.sections:
            factor = self.factor(section.group, "update")
            weighted = _scaled(combination, 1 - momentum, section.device)
            flat = self._combine(section, weighted)
            for entry in section.entries:
                m = entry.momentum
                assert m is not None
                m.mul_(momentum)
                if entry.space.coordinates is None:
                    self.noise.add_dense_(m.view(-1), list(weighted.items()), entry.index, 0)
                    entry.parameter.add_(m.view_as(entry.parameter), alpha=factor)
                else:
                    m.add_(_coordinates(entry, flat))
                    self._sweep(entry, m * factor)

    def direction(self, entry: Entry, i: int) -> Tensor:
        """Z_i of one parameter written out as a matrix: for tests and teaching."""
        out = torch.zeros(entry.space.matrix, dtype=compute_dtype(entry.parameter.dtype), device=entry.parameter.device)
        if entry.space.coordinates is None:
            self.noise.add_dense_(out.view(-1), [(i, 1.0)], entry.index, 0)
            return out
        for section, flat in zip(self.sections, self._flat(i), strict=True):
            if entry in section.entries:
                entry.space.add_rows_(out, _coordinates(entry, flat), entry.kept, 0)
        return out

    def _combine(self, section: Section, moves: Combination) -> Tensor:
        """sum_i scale_i X_i over the section's flat buffer."""
        where = self.sections.index(section)
        total = torch.zeros(section.size, dtype=section.dtype, device=section.device)
        for i, scale in moves.items():
            x = self._flat(i)[where]
            total.add_(x * scale)
        return total

    def _flat(self, i: int) -> list[Tensor]:
        """The coordinates of direction i: a flat tensor a section, drawn on the CPU, moved once."""
        if i in self._cache:
            self._cache.move_to_end(i)
            return self._cache[i]
        drawn = []
        for section in self.sections:
            buffer = np.empty(section.size, np.float32)
            for entry in section.entries:
                if entry.size:
                    self.noise.coordinates(i, entry.index, buffer[entry.low : entry.low + entry.size])
            drawn.append(torch.from_numpy(buffer).to(device=section.device, dtype=section.dtype))
        while len(self._cache) >= self._capacity:
            self._cache.popitem(last=False)
        self._cache[i] = drawn
        return drawn

    def _leave_from_(self, entry: Entry, out: Tensor, rows: slice) -> None:
        """With snapshots: out = theta[rows]. Without, the weight stays where it is."""
        if entry.snapshot is None or not self.snapshot:
            return
        theta = entry.snapshot.view_as(out) if rows == slice(None) else _matrix_of(entry.snapshot)[rows]
        if entry.keep == 1.0:
            out.copy_(theta)
        else:
            torch.mul(theta, entry.keep, out=out)

    def _sweep(self, entry: Entry, x: Tensor) -> None:
        """One read and write of a weight: add space(x); lower precisions in float32 chunks, cast once."""
        w = _matrix_of(entry.parameter)
        rows = w.shape[0] if w.dtype == x.dtype else max(1, CHUNK // max(1, w.shape[1]))
        for start in range(0, w.shape[0], rows):
            part = w[start : start + rows]
            self._leave_from_(entry, part, slice(start, start + rows))
            wide = part if part.dtype == x.dtype else part.to(x.dtype)
            entry.space.add_rows_(wide, x, entry.kept, start)
            if wide is not part:
                part.copy_(wide)
        if w.data_ptr() != entry.parameter.data_ptr():
            entry.parameter.copy_(w.view_as(entry.parameter))

    def _sweep_dense(self, entry: Entry, moves: Combination) -> None:
        """The same for regenerated dense noise, in chunks of whole blocks of the flattened weight."""
        self._leave_from_(entry, entry.parameter, slice(None))
        w = entry.parameter
        flat = w.view(-1) if w.is_contiguous() else w.reshape(-1)
        wide_dtype = compute_dtype(w.dtype)
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK]
            wide = part.to(wide_dtype)
            self.noise.add_dense_(wide, list(moves.items()), entry.index, start)
            if wide is not part:
                part.copy_(wide)
        if not w.is_contiguous():
            w.copy_(flat.view_as(w))


def kept_share(entry: Entry) -> float:
    """1 - lr weight_decay for matrices, 1 for vectors: what decoupled decay leaves of a weight in one step."""
    if entry.parameter.ndim < 2:
        return 1.0
    return 1.0 - float(entry.group["lr"]) * float(entry.group["weight_decay"])


def _scaled(combination: Combination, factor: float, device: torch.device) -> dict[int, Scalar]:
    """Factor * coefficients; those known to be zero are left out, a tensor is never inspected."""
    out: dict[int, Scalar] = {}
    for i, c in combination.items():
        if isinstance(c, Tensor):
            out[i] = c.to(device) * factor
        elif c * factor != 0.0:
            out[i] = c * factor
    return out


def _difference(target: Combination, now: Combination) -> dict[int, Scalar]:
    """Target - now without the terms that vanish; a tensor is never inspected."""
    out: dict[int, Scalar] = {}
    for i in [*now, *(j for j in target if j not in now)]:
        delta = target.get(i, 0.0) - now.get(i, 0.0)
        if isinstance(delta, Tensor) or delta != 0.0:
            out[i] = delta
    return out


def _coordinates(entry: Entry, flat: Tensor) -> Tensor:
    assert entry.space.coordinates is not None
    return flat[entry.low : entry.low + entry.size].view(entry.space.coordinates)


def _matrix_of(w: Tensor) -> Tensor:
    """The parameter as (m, n), sharing its memory wherever its strides allow; otherwise a copy that is written back."""
    return w if w.ndim == 2 else w.reshape(as_matrix(w.shape))
