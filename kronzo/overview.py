"""What an optimizer will do to a model, before the first step: `summary(model, opt)`."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from kronzo.errors import InputError
from kronzo.layout import direction_budget, needs_snapshot, searched
from kronzo.optim import ZeroOrder
from kronzo.spaces.base import Space, stored_numbers

WIDTH = 80
_HEAD = ("parameter", "shape", "factors", "stored", "compression", "rank")


@dataclass(frozen=True)
class Row:
    """One searched parameter."""

    parameter: str
    shape: tuple[int, ...]
    space: str
    factors: str
    numbers: int
    stored: int
    """Numbers one direction stores: coordinates and kept factors; 0 when they are regenerated."""
    rank: int
    full_rank: int

    @property
    def compression(self) -> float:
        """Numbers of the weight for each stored one; infinite when nothing is stored."""
        return self.numbers / self.stored if self.stored else float("inf")


@dataclass(frozen=True)
class Summary:
    """A table of what is searched, with the memory of a step; renders as text and as HTML.

    Args:
        rows: a row a searched parameter, in the optimizer's order.
        frozen: numbers of parameters that are not searched.
        weight_bytes: of the searched parameters.
        state_bytes: held between steps: kept factors and momentum.
        step_bytes: held during a step beyond weights, state and forward: coordinates and copies of the weights.
        snapshot: whether a step keeps a copy of the weights.
        forwards: closure calls of a step.
    """

    rows: tuple[Row, ...]
    frozen: int
    weight_bytes: int
    state_bytes: int
    step_bytes: int
    snapshot: bool
    forwards: int

    def __str__(self) -> str:
        """The table at 80 columns."""
        cells = [_HEAD, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(_HEAD))]
        widths[0] = min(widths[0], WIDTH - sum(widths[1:]) - 2 * (len(_HEAD) - 1))
        lines = [
            "  ".join(
                [_shortened(line[0], widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]
            )
            for line in cells
        ]
        lines.insert(1, "-" * len(lines[0]))
        return "\n".join([*lines, lines[1], *self.remarks()])

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in _HEAD)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in _cells(row)) + "</tr>" for row in self.rows
        )
        remarks = "<br>".join(html.escape(line) for line in self.remarks())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{remarks}</p>"

    def remarks(self) -> Iterator[str]:
        """Totals, memory, and what deserves a warning, a line each."""
        numbers, stored = sum(r.numbers for r in self.rows), sum(r.stored for r in self.rows)
        ratio = f"{numbers / stored:.0f} times fewer" if stored else "regenerated, nothing is kept"
        yield f"{numbers:,} numbers searched, {self.frozen:,} not; {stored:,} stored a direction, {ratio}"
        yield f"weights {_size(self.weight_bytes)}, optimizer state {_size(self.state_bytes)}"
        yield f"a step: {self.forwards} forwards, {_size(self.step_bytes)} beyond weights, state and one forward"
        if self.snapshot:
            yield "! restore by snapshot: a step copies the weights, which doubles their memory"
        poor = [r for r in self.rows if r.rank < r.full_rank and r.space == "kronecker"]
        if poor:
            yield f"! {poor[0].parameter}: its moves have rank {poor[0].rank} at most, of {poor[0].full_rank}"


def summary(model: nn.Module, opt: ZeroOrder) -> Summary:
    """What `opt` searches of `model`, and what a step of it costs in memory.

    Args:
        model: gives the names; parameters that the optimizer does not hold count as not searched.
        opt: any zeroth-order optimizer.

    Raises:
        InputError: the optimizer holds no parameter of the model.
    """
    held, named = set(map(id, searched(opt.param_groups))), list(model.named_parameters())
    parameters = [p for _, p in named if id(p) in held]
    if not parameters:
        raise InputError("summary(model, opt): the optimizer holds no trainable parameter of this model; pass its own.")
    state = [v for p in parameters for v in opt.state[p].values()]
    snapshot = needs_snapshot(opt.settings.restore, parameters)
    weight_bytes = sum(p.numel() * p.element_size() for p in parameters)
    spaces = [(p, opt.space_of(p)) for p in parameters]
    return Summary(
        tuple(_row(name, p, opt.space_of(p)) for name, p in named if id(p) in held),
        sum(p.numel() for _, p in named) - sum(p.numel() for p in parameters),
        weight_bytes,
        sum(v.numel() * v.element_size() for v in state),
        direction_budget(spaces, opt.settings.directions) + (weight_bytes if snapshot else 0),
        snapshot,
        opt.forwards_per_step,
    )


def _row(name: str, p: Tensor, space: Space) -> Row:
    parts = [("X", space.coordinates), *space.kept_shapes.items()]
    factors = " ".join(f"{key} {_shape(shape)}" for key, shape in parts if shape is not None)
    dense = space.name == "dense"
    text = ("dense" if space.coordinates is not None else "regenerated") if dense else factors
    return Row(name, tuple(p.shape), space.name, text, p.numel(), stored_numbers(space), space.rank, min(space.matrix))


def _cells(row: Row) -> tuple[str, ...]:
    rank = f"{row.rank}" if row.rank == row.full_rank else f"{row.rank} of {row.full_rank}"
    return (
        row.parameter,
        _shape(row.shape),
        row.factors,
        f"{row.stored:,}",
        f"{row.compression:.0f}" if row.stored else "-",
        rank,
    )


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _shortened(name: str, width: int) -> str:
    return name.ljust(width) if len(name) <= width else ".." + name[len(name) - width + 2 :]


def _size(num_bytes: int) -> str:
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if num_bytes >= size:
            return f"{num_bytes / size:.1f} {unit}"
    return f"{num_bytes} B"
