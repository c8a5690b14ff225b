"""What the paper states, held against the comparisons: a verdict for each model and corpus, and one for all."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from figures.answers import difference, losses, panes
from kronzo.pretrain.reported import REJECTED, reported
from kronzo.pretrain.results import label_of
from kronzo.pretrain.units import nats, percent, signed

LEVEL = 0.1
"""Losses are level when they differ by less: in the paper their difference, here all of its interval."""

HOLDS, FAILS, MIXED, OPEN = "holds", "does not hold", "differs", "not decided"

_ORDERS = (
    ("kronzo", "directional", "kronzo", "average"),
    ("lozo", "directional", "lozo", "average"),
    ("mezo", "directional", "mezo", "average"),
    ("kronzo", "directional", "lozo", "directional"),
    ("kronzo", "directional", "mezo", "directional"),
    ("kronzo", "average", "lozo", "average"),
    ("kronzo", "average", "mezo", "average"),
)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, its numbers, and ours with a verdict for each model and corpus, by name."""

    statement: str
    reported: str
    here: dict[str, tuple[str, str]]

    @property
    def verdict(self) -> str:
        """What is decided on half of the models and corpora or more, MIXED where they contradict each other."""
        decided = self._decided()
        if len(set(decided)) > 1:
            return MIXED
        return decided[0] if decided and 2 * len(decided) >= len(self.here) else OPEN

    @property
    def extent(self) -> str:
        """The verdict, and on how many models and corpora it stands where not on all."""
        decided, number = self._decided(), len(self.here)
        if self.verdict == MIXED:
            return ", ".join(f"{verdict} in {decided.count(verdict)} of {number}" for verdict in dict.fromkeys(decided))
        return self.verdict if len(decided) in (0, number) else f"{decided[0]} in {len(decided)} of {number}"

    def _decided(self) -> list[str]:
        return [verdict for _, verdict in self.here.values() if verdict != OPEN]


def claims(q1: pd.DataFrame, q6: pd.DataFrame) -> list[Claim]:
    """Return what the paper states, with its numbers and ours; decided by intervals over the seeds in each pane."""
    lasts = dict(panes(q1))
    found = [_order(lasts, *order) for order in _ORDERS]
    found.append(_order(dict(panes(q6)), "adamw", "", "kronzo", "directional"))
    return [*found, _rejected(lasts)]


def _rejected(lasts: dict[str, pd.DataFrame]) -> Claim:
    here = {}
    for pane, last in lasts.items():
        rows = last.loc[last["row"] == "kronzo-directional", "acceptance_rate"]
        if len(rows):
            share = 1 - float(rows.mean())
            here[pane] = (percent(share), HOLDS if REJECTED / 2 <= share <= 2 * REJECTED else FAILS)
    return Claim("the directional rule rejects about a tenth of KronZO's steps", percent(REJECTED), here)


def _order(lasts: dict[str, pd.DataFrame], method: str, rule: str, other: str, other_rule: str) -> Claim:
    rows = [f"{name}-{which}".removesuffix("-") for name, which in ((method, rule), (other, other_rule))]
    theirs = [reported(method, rule).loss, reported(other, other_rule).loss]
    apart = theirs[0] - theirs[1]
    sign = 0 if abs(apart) < LEVEL else int(np.sign(apart))
    here = {
        pane: _measured(last, rows, sign)
        for pane, last in lasts.items()
        if len(losses(last, rows[0])) and len(losses(last, rows[1]))
    }
    relation = ("ends below", "ends level with", "ends above")[sign + 1]
    statement = f"{label_of(rows[0])} {relation} {label_of(rows[1])}"
    return Claim(statement, f"{theirs[0]:.2f} against {theirs[1]:.2f} ({signed(apart, 2)})", here)


def _measured(last: pd.DataFrame, rows: list[str], sign: int) -> tuple[str, str]:
    """Our losses of two rows and their difference, and whether it has the sign reported, 0 for level."""
    ours = difference(last, *rows)
    level = abs(ours.mean) + ours.half < LEVEL
    holds = level if sign == 0 else ours.sign == sign
    said = f"{nats(losses(last, rows[0]).mean(), 2)} against {nats(losses(last, rows[1]).mean(), 2)} ({ours})"
    return said, HOLDS if holds else FAILS if ours.sign else OPEN
