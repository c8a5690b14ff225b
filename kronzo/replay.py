"""The log of scalars <-> the weights: a step is its place in the noise and a few numbers, so it can be taken again.

    journal = kronzo.replay.Journal(optimizer)
    write(journal.header())
    for ...:
        optimizer.step(closure)
        write(journal.line())          # a JSON object of about 80 bytes when one direction is applied

`read` gives the log back and `apply` takes its steps without a forward: bit-equal weights, momentum and window where
the run had snapshots. Under arithmetic restore the run's own probes leave rounding behind, about an ulp a sweep, which
the replayed weights do not have (`drift_bound`).
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kronzo.distributed import checksums
from kronzo.errors import InputError
from kronzo.layout import needs_snapshot
from kronzo.rules import Outcome

if TYPE_CHECKING:
    from kronzo.optim import ZeroOrder

VALUES = ("lr", "eps", "scale", "weight_decay")
"""Numbers of a group that decide a step and may change between steps."""
_FORMAT = 1
_MUST_AGREE = ("format", "method", "seed", "rule", "directions", "refresh_every", "momentum", "law", "replay", "spaces")


@dataclass(frozen=True)
class Record:
    """What one step applied.

    Attributes:
        step: its number, from 0.
        update: direction -> coefficient, in units of lr; empty when the weights stayed.
        accepted: False when the rule kept theta (then momentum is not advanced).
        window: the acceptance window after the step.
        groups: the `VALUES` of every group during the step.
    """

    step: int
    update: Mapping[int, float]
    accepted: bool
    window: tuple[float, ...]
    groups: tuple[tuple[float, ...], ...]


def record_of(groups: Sequence[Mapping[str, Any]], outcome: Outcome) -> Record:
    """The record of a step that is about to be taken with the present values of the groups."""
    values = tuple(tuple(float(group[name]) for name in VALUES) for group in groups)
    return Record(groups[0]["step"], outcome.update, outcome.accepted, tuple(outcome.window), values)


@dataclass(frozen=True)
class Log:
    """A log that was read: its header and one record a step, in order."""

    header: dict[str, Any]
    records: list[Record]


class Journal:
    """Turns an optimizer's steps into JSON objects, each with what has changed since the one before.

    Args:
        optimizer: whose steps are told; 50 000 steps with one applied direction take about 4 MB.
    """

    def __init__(self, optimizer: ZeroOrder) -> None:
        self._optimizer = optimizer
        self._before: Record | None = None

    def header(self) -> dict[str, Any]:
        """What the steps depend on beside the lines; one pass over the weights for their checksum."""
        return _describe(self._optimizer)

    def line(self) -> dict[str, Any]:
        """The optimizer's last step.

        Raises:
            InputError: no step has been taken.
        """
        if self._optimizer.last is None:
            raise InputError("line() before the first step: call step(closure), then write its line.")
        record, before = self._optimizer.last.record, self._before
        self._before = record
        line: dict[str, Any] = {"step": record.step, "update": {str(i): c for i, c in record.update.items()}}
        if not record.accepted:
            line["accepted"] = False
        for k, name in enumerate(VALUES):
            now = [values[k] for values in record.groups]
            if before is None or now != [values[k] for values in before.groups]:
                line[name] = now
        return line | _window_change(None if before is None else before.window, record.window)


def _window_change(before: tuple[float, ...] | None, now: tuple[float, ...]) -> dict[str, Any]:
    """{"best": value} where the window has moved on by one, else {"window": {place: value}} of what changed."""
    if now == before:
        return {}
    if before is not None and now[:-1] == before[1:]:
        return {"best": now[-1]}
    changed = [k for k, value in enumerate(now) if before is None or value != before[k]]
    return {"window": {str(k): now[k] if math.isfinite(now[k]) else None for k in changed}}


def _describe(optimizer: ZeroOrder) -> dict[str, Any]:
    s, parameters = optimizer.settings, [p for group in optimizer.param_groups for p in group["params"]]
    spaces = [optimizer.space_of(p) for p in parameters]
    shapes = [
        (p.requires_grad, str(p.dtype), x.name, x.matrix, x.coordinates, x.kept_shapes, getattr(x, "alpha", 1.0))
        for p, x in zip(parameters, spaces, strict=True)
    ]
    return {
        "format": _FORMAT,
        "method": type(optimizer).__name__,
        "seed": optimizer.param_groups[0]["seed"],
        "rule": s.rule.name,
        "directions": s.directions,
        "refresh_every": s.refresh_every,
        "momentum": s.momentum,
        "law": s.law,
        "replay": s.replay,
        "spaces": hashlib.sha256(repr(shapes).encode()).hexdigest()[:16],
        "restore": "snapshot" if needs_snapshot(optimizer.restore, parameters) else "arithmetic",
        "noise": _noise_of(s.noise, parameters),
        "numpy": np.__version__,
        "torch": str(torch.__version__),
        "step": optimizer.param_groups[0]["step"],
        "weights": hashlib.sha256(repr(checksums(parameters)).encode()).hexdigest()[:16],
    }


def _noise_of(source: str | None, parameters: list[Tensor]) -> str:
    """Where dense noise comes from: "portable", or the kind of device that draws it."""
    device = next((p.device for p in parameters if p.device.type != "cpu"), None)
    if source != "device" or device is None:
        return "portable"
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def read(path: Path | str) -> Log:
    """Read a log of JSON lines, header first; an unfinished last line is left out.

    Raises:
        InputError: missing, empty, of another format, or a line that is damaged or out of order.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: no log of scalars can be read there ({error.strerror}).") from error
    lines = [line for line in text.splitlines(keepends=True) if line.endswith("\n")]
    records: list[Record] = []
    header: dict[str, Any] = {}
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            if number == 1:
                header = values
            else:
                records.append(_record(values, records[-1] if records else None))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: line {number} is damaged; replay from a checkpoint after it.") from error
        if records and records[-1].step != header.get("step", 0) + len(records) - 1:
            raise InputError(f"{path}: line {number} is of step {records[-1].step}, out of order.")
    if header.get("format") != _FORMAT:
        raise InputError(f"{path}: no log of format {_FORMAT}; write one with kronzo.replay.Journal.")
    return Log(header, records)


def _record(line: dict[str, Any], before: Record | None) -> Record:
    past = {} if before is None else dict(zip(VALUES, zip(*before.groups, strict=True), strict=True))
    groups = zip(*(line.get(name) or past[name] for name in VALUES), strict=True)
    window = () if before is None else before.window
    if "best" in line:
        window = (*window[1:], line["best"])
    elif "window" in line:
        changed = {int(k): math.inf if value is None else value for k, value in line["window"].items()}
        window = tuple(changed.get(k, old) for k, old in enumerate(window or (math.inf,) * len(changed)))
    update = {int(i): c for i, c in line["update"].items()}
    return Record(line["step"], update, line.get("accepted", True), window, tuple(groups))


def apply(optimizer: ZeroOrder, log: Log, step: int | None = None) -> None:
    """Take recorded steps from where the optimizer stands (at construction, or at a loaded state) without a forward.

    Args:
        optimizer: built as in the run, its parameters holding the weights of its present step.
        log: see `read`.
        step: finished steps to stop at; None goes to the end of the log.

    Raises:
        InputError: another method, seed, shapes, start or kind of device, or the log lacks these steps.

    Cost: a sweep over the weights a step.
    """
    present, first, end = optimizer.param_groups[0]["step"], log.header["step"], log.header["step"] + len(log.records)
    check(optimizer, log.header)
    step = end if step is None else step
    if not first <= present <= step <= end:
        raise InputError(
            f"steps {present} to {step} are not in the log, which goes from {first} to {end}: start from an earlier "
            "state, or ask for a step between."
        )
    for record in log.records[present - first : step - first]:
        optimizer.replay(record)


def check(optimizer: ZeroOrder, header: Mapping[str, Any]) -> None:
    """Refuse a log of another optimizer.

    Raises:
        InputError: naming the first setting that differs.
    """
    mine = _describe(optimizer)
    for key in _MUST_AGREE:
        if mine[key] != header.get(key):
            raise InputError(
                f"the log has {key} = {header.get(key)!r}, this optimizer {mine[key]!r}: build it as in the run."
            )
    if mine["noise"] != header["noise"]:
        raise InputError(
            f"the dense noise of this log was drawn by {header['noise']!r} and here it would be by {mine['noise']!r}: "
            'replay it there, or run with noise="portable".'
        )
    if mine["step"] == header["step"] and mine["weights"] != header["weights"]:
        raise InputError("these weights are not the ones that the log starts from: begin with those of the run.")
    if mine["numpy"] != header["numpy"]:
        warnings.warn(
            f"the log was written with numpy {header['numpy']}, here is {mine['numpy']}: its normal numbers may differ "
            "between versions; compare with a checkpoint.",
            stacklevel=3,
        )


def drift_bound(weight: Tensor, records: list[Record], sweeps_per_step: int) -> float:
    """How far rounding can have carried a float32 or float64 run under arithmetic restore from its replay.

    Every sweep rounds a number once, by at most half an ulp of the largest one on the way: that of the weight, or of a
    probe or step of 20 standard deviations.
    """
    radius = max((values[1] * values[2] for r in records for values in r.groups), default=0.0)
    moves = (abs(c) * values[0] * values[2] for r in records for c in r.update.values() for values in r.groups)
    largest = weight.abs().max().item() + 20 * max(radius, max(moves, default=0.0))
    return len(records) * sweeps_per_step * largest * torch.finfo(weight.dtype).eps / 2
