"""What a step reports, and the warnings that are said once when steps have become meaningless."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from kronzo.trial import OpenStep


@dataclass(frozen=True)
class StepReport:
    """What one step saw and did; losses are those the closure returned."""

    step: int
    loss: float
    coefficients: tuple[float, ...]
    accepted: bool
    candidate_loss: float | None
    threshold: float | None
    forwards: int
    sweeps: int
    resolution: float
    """Smallest difference that the loss's number format can show in a coefficient: ulp(loss) / (2 eps)."""
    reason: str


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
    for entry in current.search.entries:
        low = entry.parameter.dtype in (torch.float16, torch.bfloat16)
        if low and current.search.snapshot and entry.snapshot is not None:
            moved = (entry.parameter != entry.snapshot).float().mean().item()
            if moved < 0.01:
                said.add("unmoved")
                warnings.warn(
                    f"the update moved {moved:.2%} of {entry.name} ({entry.parameter.dtype}): steps below its "
                    "resolution are lost; raise lr or keep the weights in float32.",
                    stacklevel=5,
                )
                return


def _unresolved(report: StepReport) -> bool:
    below = sum(abs(c) <= report.resolution for c in report.coefficients)
    return 2 * below > len(report.coefficients)
