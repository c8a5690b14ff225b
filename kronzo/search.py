"""Where the weights stand during a step: `goto` moves all of them inside their search spaces.

A position is a linear combination of the step's directions, {direction: coefficient}. Going somewhere is one sweep that
adds the difference of the coordinates, so the way back from a probe is fused with the way to the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kronzo.coordinates import Coordinates
from kronzo.interrupts import uninterrupted
from kronzo.layout import Entry, Restore, Section, capacity, compute_dtype, identity, needs_snapshot, sections_of
from kronzo.noise import Noise, Scalar
from kronzo.sharded import is_sharded, reshard
from kronzo.spaces.dense import Dense
from kronzo.spaces.kronecker import KroneckerSpace

Kind = Literal["probe", "update"]
Combination = Mapping[int, Scalar]

CHUNK = 2**20
"""Numbers of a weight that exist a second time while it is swept, where it cannot be swept in place."""


class Search:
    """The weights, their spaces and the directions of the current step.

    Args:
        entries: the parameters to move.
        restore: "snapshot" keeps a copy of the weights and leaves from it, which is bit-exact and doubles them;
            "arithmetic" goes back by the opposite sweep, whose rounding stays (about one ulp of the largest number on
            the way); "auto" is arithmetic unless a weight is of lower precision than float32.
        directions: of a step; their coordinates are kept within it as far as memory allows, see `kronzo.layout`.
        model: whose modules gather sharded weights; None where no weight is sharded.
    """

    def __init__(
        self, entries: Sequence[Entry], restore: Restore, directions: int, model: nn.Module | None = None
    ) -> None:
        self.entries, self._model = list(entries), model
        self._sharded = [e.parameter for e in self.entries if is_sharded(e.parameter)]
        self.sections = sections_of(self.entries)
        self._covered = [identity(e.parameter) for e in self.entries]
        self.widest = min((torch.finfo(e.parameter.dtype).max for e in self.entries), default=math.inf)
        """The largest number that every weight's format holds."""
        self.snapshot = needs_snapshot(restore, [e.parameter for e in self.entries])
        self.sweeps = 0
        self.recalled_at: int | None = None
        """The step whose kept factors the entries hold, and whether the optimizer's state has yet to take them."""
        self.unsaved = False
        self._sorted_at: int | None = -1
        kept, _ = capacity([(e.parameter, e.space) for e in self.entries])
        self._coordinates = Coordinates(self.sections, min(kept, directions))

    def covers(self, parameters: Sequence[Tensor]) -> bool:
        """Whether these are the parameters of this search, on the device and in the format they had."""
        return [identity(p) for p in parameters] == self._covered

    def begin(self, noise: Noise, base_eps: float) -> None:
        """Start a step at the present weights, decayed: theta = (1 - lr weight_decay) W for matrices."""
        self.noise, self.base_eps, self.sweeps = noise, base_eps, 0
        self._coordinates.begin(noise)
        reshard(self._model, self._sharded)
        shares = {id(section.group): kept_share(section.group) for section in self.sections}
        for entry in self.entries:
            entry.keep = shares[id(entry.group)] if entry.parameter.ndim >= 2 else 1.0
            if self.snapshot:
                entry.snapshot = entry.weight.clone() if entry.snapshot is None else entry.snapshot
                entry.snapshot.copy_(entry.weight)
            if entry.keep != 1.0:
                entry.weight.mul_(entry.keep)
        for section in self.sections:
            section.now = {}
            if self._sorted_at != self.recalled_at:
                self._sort(section)
        self._sorted_at = self.recalled_at

    def _sort(self, section: Section) -> None:
        """Which weights are swept together in this step and which one after the other."""
        section.sums, section.products, section.spreads, section.singly = [[], []], [[], [], []], [[], []], []
        for entry in section.entries:
            whole, space = entry.weight, entry.space
            if whole.ndim != 2 and whole.is_contiguous():
                whole = whole.view(-1, space.matrix[1])
            in_place = not self.snapshot and whole.dtype == section.dtype and entry.move is not None
            in_place &= whole.numel() == entry.parameter.numel()
            if in_place and isinstance(space, Dense):
                _append(section.sums, (entry.weight, _stored(entry)))
            elif in_place and isinstance(space, KroneckerSpace) and whole.ndim == 2:
                product = space.as_product(whole, _stored(entry), entry.kept)
                _append(section.products, product[:3])
                _append(section.spreads, product.spread or ())
            else:
                section.singly.append(entry)

    def abandon(self) -> None:
        """Undo the step: the weights before `begin`, bit-equal with snapshots, otherwise within the rounding."""
        reshard(self._model, self._sharded)
        if not self.snapshot:
            self.restore()
        for entry in self.entries:
            if self.snapshot:
                entry.weight.copy_(_theta(entry))
            elif entry.keep != 1.0:
                entry.weight.div_(entry.keep)
        for section in self.sections:
            section.now = {}

    def factor(self, group: dict[str, Any], kind: Kind) -> float:
        """What a unit coefficient moves a group by: eps scale for a probe, lr scale eps_0 / eps for an update."""
        if kind == "probe":
            return float(group["eps"]) * float(group["scale"])
        return float(group["lr"]) * float(group["scale"]) * self.base_eps / float(group["eps"])

    @uninterrupted()
    def goto(self, kind: Kind, combination: Combination) -> None:
        """Move every weight to theta + sum_i factor * coefficient_i * Z_i, in one sweep."""
        swept = False
        reshard(self._model, self._sharded)
        for section in self.sections:
            target = _scaled(combination, self.factor(section.group, kind), section.device)
            moves = target if self.snapshot else _difference(target, section.now)
            if not moves and not (self.snapshot and section.now):
                continue
            if moves:
                self._combine(section, moves)
                self._sweep(section, moves)
            else:
                for entry in section.entries:
                    torch.mul(_theta(entry), entry.keep, out=entry.weight)
            section.now, swept = target, True
        self.sweeps += swept

    def restore(self) -> None:
        """Back to theta: bit-equal with snapshots, otherwise by the opposite sweep."""
        self.goto("probe", {})

    def settle_with_momentum(self, combination: Combination, momentum: float) -> None:
        """End the step at theta + factor * M, with M <- momentum M + (1 - momentum) sum_i coefficient_i Z_i.

        M lives in the coordinates of each space, so this is one sweep as well; a regenerated dense M is as large as the
        weight.
        """
        reshard(self._model, self._sharded)
        for section in self.sections:
            fresh = _scaled(combination, 1 - momentum, section.device)
            self._combine(section, fresh)
            for entry in section.entries:
                assert entry.momentum is not None
                if entry.move is not None:
                    entry.momentum = entry.momentum * momentum + entry.move
                else:
                    entry.momentum.mul_(momentum)
                    self.noise.add_dense_(entry.momentum.view(-1), fresh, entry.index, 0)
            moves = {} if self.snapshot else _difference({}, section.now)
            self._combine(section, moves)
            self._sweep(section, moves, self.factor(section.group, "update"))
            section.now = {}
        self.sweeps += 1

    def direction(self, entry: Entry, i: int) -> Tensor:
        """Z_i of one parameter written out as a matrix: for tests and teaching."""
        out = torch.zeros(entry.space.matrix, dtype=compute_dtype(entry.parameter.dtype), device=entry.parameter.device)
        if entry.space.coordinates is None:
            self.noise.add_dense_(out.view(-1), {i: 1.0}, entry.index, 0)
            return out
        for section, flat in zip(self.sections, self._coordinates[i], strict=True):
            if entry in section.entries:
                x = flat[section.spans[entry.index]].view(entry.space.coordinates)
                entry.space.add_rows_(out, x, entry.kept, 0)
        return out

    def _combine(self, section: Section, moves: Combination) -> None:
        """section.move = sum_i scale_i X_i."""
        if section.move.numel() == 0:
            return
        where = self.sections.index(section)
        for k, (i, scale) in enumerate(moves.items()):
            x = self._coordinates[i][where]
            if k == 0:
                torch.mul(x, scale, out=section.move)
            else:
                section.move.add_(x * scale)
        if not moves:
            section.move.zero_()

    def _sweep(self, section: Section, moves: Combination, momentum_factor: float = 0.0) -> None:
        """Add space(move) to every weight of the section, and momentum_factor * space(M): one read and write of each.

        When a weight cannot be moved (no memory is left, or its space raises), those before it are moved back.
        """
        if momentum_factor:
            for entry in section.entries:
                if entry.move is not None and entry.momentum is not None:
                    entry.move.add_(entry.momentum, alpha=momentum_factor)
        for k, entry in enumerate(section.singly):
            try:
                self._sweep_one(section, entry, moves, momentum_factor)
            except BaseException:
                if not self.snapshot:
                    section.move.neg_()
                    back = {i: -scale for i, scale in moves.items()}
                    for moved in section.singly[:k]:
                        self._sweep_one(section, moved, back, -momentum_factor)
                raise
        weights, xs = section.sums
        if weights:
            torch._foreach_add_(weights, xs)
        wide, narrow = section.spreads
        if wide:
            torch._foreach_copy_(wide, narrow)
        weights, a, b = section.products
        if weights:
            torch._foreach_addcmul_(weights, a, b)

    def _sweep_one(self, section: Section, entry: Entry, moves: Combination, momentum_factor: float) -> None:
        if entry.move is None:
            self._sweep_regenerated(entry, moves, momentum_factor)
        elif not self.snapshot and entry.weight.dtype == section.dtype and entry.weight.ndim == 2:
            entry.space.add_rows_(entry.weight, entry.move, entry.kept, entry.first_row)
        else:
            for weights, row in _pieces(entry, section.dtype):
                entry.space.add_rows_(weights, entry.move, entry.kept, entry.first_row + row)

    def _sweep_regenerated(self, entry: Entry, moves: Combination, momentum_factor: float) -> None:
        for weights, row in _pieces(entry, compute_dtype(entry.parameter.dtype)):
            flat, start = weights.view(-1), entry.first_row * entry.space.matrix[1] + row * weights.shape[1]
            if moves:
                self.noise.add_dense_(flat, moves, entry.index, start)
            if momentum_factor and entry.momentum is not None:
                flat.add_(entry.momentum.view(-1)[start : start + flat.numel()], alpha=momentum_factor)


def _pieces(entry: Entry, dtype: torch.dtype) -> Iterator[tuple[Tensor, int]]:
    """The weight as (rows, n) tensors in `dtype` with their first row, starting from theta; changes to them count.

    In place and whole where format and strides allow; otherwise copies of at most CHUNK numbers that are written back,
    rounded once. With a snapshot theta is read from it. A contiguous weight whose noise is regenerated comes as one
    column, so that pieces are whole blocks.
    """
    w, theta, n = entry.weight, entry.snapshot, entry.space.matrix[1]
    regenerated = entry.move is None
    contiguous = w.is_contiguous()
    if contiguous:
        n = 1 if regenerated else n
        w, theta = w.view(-1, n), None if theta is None else theta.view(-1, n)
    elif w.ndim == 1:
        w, theta = w[:, None], None if theta is None else theta[:, None]
    in_place = w.dtype == dtype and w.ndim == 2 and (contiguous or not regenerated)
    rows = max(1, w.shape[0] if in_place else CHUNK // n)
    for row in range(0, w.shape[0], rows):
        part = w[row : row + rows]
        source = part if theta is None else theta[row : row + rows]
        if in_place:
            if theta is not None:
                torch.mul(source, entry.keep, out=part)
            yield part, row
        else:
            wide = source.to(dtype, copy=True, memory_format=torch.contiguous_format).view(-1, n)
            yield wide if theta is None else wide.mul_(entry.keep), row
            part.copy_(wide.view(part.shape))


def _append(columns: list[list[Tensor]], row: Sequence[Tensor]) -> None:
    for column, tensor in zip(columns, row, strict=False):
        column.append(tensor)


def _theta(entry: Entry) -> Tensor:
    assert entry.snapshot is not None
    return entry.snapshot


def _stored(entry: Entry) -> Tensor:
    assert entry.move is not None
    return entry.move


def kept_share(group: dict[str, Any]) -> float:
    """1 - lr weight_decay: what decoupled decay leaves of a group's matrices in one step."""
    return 1.0 - float(group["lr"]) * float(group["weight_decay"])


def _scaled(combination: Combination, factor: float, device: torch.device) -> dict[int, Scalar]:
    """Factor * coefficients without those known to be zero; only on the CPU is a tensor inspected."""
    out: dict[int, Scalar] = {}
    for i, c in combination.items():
        if isinstance(c, Tensor):
            c = c.item() if device.type == "cpu" else c.to(device)
        if isinstance(c, Tensor) or c * factor != 0.0:
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
