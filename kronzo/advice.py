"""What a step reports, and what is said aloud when steps are meaningless or shapes are badly chosen."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
from torch import Tensor

from kronzo.errors import Collapse
from kronzo.layout import Entry
from kronzo.replay import Record
from kronzo.rules import Outcome
from kronzo.search import CHUNK
from kronzo.spaces.base import Space
from kronzo.spaces.kronecker import KroneckerSpace, best_pair
from kronzo.trial import OpenStep
from kronzo.validation import resolution_of

EARLY_STEPS = 10
_FAR = 5.0
_BAD_SIDE = 8
"""A side is badly factored when its larger factor exceeds the smaller one this many times."""


@dataclass(frozen=True)
class StepReport:
    """What one step saw and did; losses and coefficients are of the loss that the closure returned."""

    step: int
    loss: float
    coefficients: tuple[float, ...]
    """c_i, NaN where a loss was not finite and the probe was rejected."""
    accepted: bool
    candidate_loss: float | None
    threshold: float | None
    forwards: int
    sweeps: int
    resolution: float
    """Smallest difference that the loss's number format can show in a coefficient: ulp(loss) / (2 eps)."""
    reason: str
    record: Record = field(repr=False)
    """What was applied, for `kronzo.replay`."""
    sent_bytes: int = 0
    """What this process has handed to the others of torch.distributed."""

    @property
    def rejected_probes(self) -> int:
        """Directions left out because a loss was NaN or infinite."""
        return sum(math.isnan(c) for c in self.coefficients)


def report_of(record: Record, outcome: Outcome, current: OpenStep) -> StepReport:
    """The report of a concluded step."""
    sign = current.sign
    return StepReport(
        record.step,
        sign * outcome.loss,
        tuple(sign * c for c in outcome.coefficients),
        outcome.accepted,
        None if outcome.candidate_loss is None else sign * outcome.candidate_loss,
        None if outcome.threshold is None else sign * outcome.threshold,
        current.forwards,
        current.search.sweeps,
        resolution_of(outcome.loss, current.loss_dtype, current.eps),
        outcome.reason,
        record,
        0 if current.team is None else current.team.sent_bytes,
    )


def refuse_collapse(step: int, outcome: Outcome, current: OpenStep) -> None:
    """Abort a run whose first steps measure losses far above the loss they should be near.

    The typical probe is compared with the loss at theta, or under two-sided averaging with the lowest probe.

    Raises:
        Collapse: in one of the first 10 steps it is higher by 5 times the size of that loss, or by 5.
    """
    probes = sorted(v for row in current.rows for v in row[: 1 if current.rule.one_sided else 2] if math.isfinite(v))
    if step >= EARLY_STEPS or not probes or not math.isfinite(outcome.loss):
        return
    measured = current.rule.whole_step or current.rule.one_sided
    loss, typical = (outcome.loss if measured else probes[0]), probes[len(probes) // 2]
    if typical - loss > _FAR * max(1.0, abs(loss)):
        raise Collapse(
            f"collapse in step {step}: the loss of the probes is {current.sign * typical:.4g} against "
            f"{current.sign * loss:.4g}; lower eps={current.eps:g}, the weights are as before this step."
        )


def warn_once(said: set[str], report: StepReport, current: OpenStep) -> None:
    """Warn of losses too coarse for eps and of updates that low-precision weights cannot take."""
    if "resolution" not in said and _unresolved(report):
        said.add("resolution")
        warnings.warn(
            f"most coefficients are below {report.resolution:.3g}, the resolution of a {current.loss_dtype} loss of "
            f"{report.loss:.4g} at eps={current.eps:g}: return the loss in float32 or float64, or raise eps.",
            stacklevel=5,
        )
    if "unmoved" in said or not report.accepted or report.step & (report.step - 1):
        return
    low = [e for e in current.search.entries if e.parameter.dtype in (torch.float16, torch.bfloat16)]
    low = [e for e in low if e.snapshot is not None and e.weight.numel() and float(e.group["lr"]) != 0.0]
    for entry, moved in zip(low, _moved(low), strict=True):
        if moved < 0.01:
            said.add("unmoved")
            warnings.warn(
                f"the update moved {moved:.2%} of {entry.name} ({entry.parameter.dtype}): steps below its resolution "
                "are lost; raise lr or keep the weights in float32.",
                stacklevel=5,
            )
            return


def _moved(entries: Sequence[Entry]) -> list[float]:
    """The share of numbers that each weight's update has changed, read from every device at once."""
    shares = [_different(e.weight, e.snapshot) / e.weight.numel() for e in entries if e.snapshot is not None]
    return torch.stack([share.to(shares[0].device) for share in shares]).tolist() if shares else []


def _different(now: Tensor, before: Tensor) -> Tensor:
    """How many numbers differ, counted in pieces: a comparison of whole weights would take half their size."""
    rows = max(1, CHUNK * len(now) // now.numel()) if now.ndim else 1
    pairs = zip(now.split(rows), before.split(rows), strict=True) if now.ndim else [(now, before)]
    return torch.stack([torch.count_nonzero(a != b) for a, b in pairs]).sum()


def _unresolved(report: StepReport) -> bool:
    below = sum(abs(c) <= report.resolution for c in report.coefficients)
    return 2 * below > len(report.coefficients)


def warn_of_shapes(said: set[str], named: Sequence[tuple[str, Space]]) -> None:
    """Warn once of a prime or badly factored side, with the padding that would help."""
    for name, space in named:
        if "factors" in said or not isinstance(space, KroneckerSpace):
            continue
        for side in space.matrix:
            small, large = best_pair(side)
            if side >= 64 and large > _BAD_SIDE * small and _is_pair(space, small, large):
                said.add("factors")
                padded = next(k for k in count(-(-side // 64) * 64, 64) if best_pair(k)[1] <= 2 * best_pair(k)[0])
                pair = best_pair(padded)
                warnings.warn(
                    f"{name} {space.matrix}: {side} = {small} * {large} gives factors {small} x {large}, which store "
                    f"more than they need; pad that side to {padded} = {pair[0]} * {pair[1]} or pass factors=.",
                    stacklevel=4,
                )
                break


def _is_pair(space: KroneckerSpace, small: int, large: int) -> bool:
    """Whether the space uses these factors, and not others that the user has chosen."""
    (m1, n1), (m2, n2) = space.coordinates or (0, 0), space.kept_shapes["B"]
    return (small, large) in ((m1, m2), (n1, n2))
