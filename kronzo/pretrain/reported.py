"""The numbers that the KronZO paper reports, as data: shown beside ours, always marked as reported.

GPT-2 small, OpenWebText, context 1024, batch 32, 10 000 steps, one seed, one A100-80GB; losses are training losses at
the end, memory is what is allocated between steps.
"""

from __future__ import annotations

from typing import NamedTuple

SOURCE = (
    "Allaire, Le Digabel, Orban, Partovi Nia: KronZO. GERAD report G-2025-44; SN Computer Science 7:162, 2026 "
    "(GPT-2 small, OpenWebText, training loss after 10 000 steps, one seed, A100-80GB)"
)


class Reported(NamedTuple):
    """One row of the paper's table.

    Attributes:
        method: key of the method; the paper writes "SGD" for first order, whose memory is AdamW's.
        rule: "average" (50 directions, 100 forwards), "directional" (33 directions, 100 forwards), "" first order.
        loss: final training loss, nats a token.
        seconds: a step.
        memory_gb: allocated between steps.
    """

    method: str
    rule: str
    loss: float
    seconds: float
    memory_gb: float


ROWS = (
    Reported("adamw", "", 3.50, 0.3, 1.5),
    Reported("kronzo", "directional", 6.95, 7.4, 0.5),
    Reported("lozo", "directional", 7.53, 7.2, 0.6),
    Reported("mezo", "directional", 7.01, 6.7, 1.0),
    Reported("kronzo", "average", 8.63, 7.4, 0.5),
    Reported("lozo", "average", 8.82, 7.2, 0.6),
    Reported("mezo", "average", 8.62, 6.7, 1.0),
)

XL = (
    Reported("adamw", "", 2.85, 2.6, 20.0),
    Reported("kronzo", "directional", 8.21, 66.0, 6.4),
)
"""GPT-2 XL, the same columns."""

COMPRESSION = {"MeZO": 1.0, "LOZO, rank 4": 150.0, "KronZO": 650.0}
"""Numbers of a 2304 x 768 matrix for each one that a direction stores."""

STEPS, STEP_TOKENS = 10_000, 32 * 1024
"""Steps of a run of GPT-2 small, and tokens drawn in each."""

UNTRAINED = 11.0
"""Loss before the first step, nats a token."""

REJECTED = 0.10
"""Share of the steps that the directional rule rejects, "about 10 %"."""

BREADTH = 0.30
"""Participation ratio of late gradients, as a share of the width, "about 30 %"."""


def reported(method: str, rule: str = "") -> Reported:
    """The row of a method under a rule; KeyError when the paper has none."""
    return {(row.method, row.rule): row for row in ROWS}[method, rule]
