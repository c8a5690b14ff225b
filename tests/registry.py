"""All methods: a line here inherits every oracle, property and contract test of the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import oracles
import torch

import kronzo


@dataclass(frozen=True)
class Case:
    """A method under test: its class, keywords that fit the small test models, and its naive Z."""

    method: type[kronzo.ZeroOrder]
    z: Callable[..., Any]
    keywords: dict[str, Any] = field(default_factory=dict)

    def build(self, params: Any, **keywords: Any) -> kronzo.ZeroOrder:
        return self.method(params, **{**self.keywords, **keywords})


CASES = {
    "kronzo": Case(kronzo.KronZO, oracles.kronecker, {"directions": 2, "refresh_every": 3}),
    "kronzo-directional": Case(
        kronzo.KronZO, oracles.kronecker, {"directions": 3, "refresh_every": 3, "rule": "directional"}
    ),
    "kronzo-normalized": Case(kronzo.KronZO, oracles.kronecker, {"directions": 3, "rule": "normalized"}),
    "kronzo-momentum": Case(kronzo.KronZO, oracles.kronecker, {"refresh_every": 3, "momentum": 0.5}),
    "lozo": Case(kronzo.LOZO, oracles.low_rank(2), {"directions": 2, "refresh_every": 3}),
    "lozo-published-scale": Case(kronzo.LOZO, oracles.low_rank(2, 1.0), {"scale": "published", "refresh_every": 3}),
    "lozo-directional": Case(
        kronzo.LOZO, oracles.low_rank(2), {"directions": 3, "refresh_every": 3, "rule": "directional"}
    ),
    "lozo-momentum": Case(kronzo.LOZO, oracles.low_rank(2), {"refresh_every": 3, "momentum": 0.5}),
    "subzero": Case(kronzo.SubZero, oracles.subspace(3), {"rank": 3, "refresh_every": 3, "directions": 2}),
    "subzero-momentum": Case(kronzo.SubZero, oracles.subspace(3), {"rank": 3, "refresh_every": 3, "momentum": 0.5}),
    "tezo": Case(kronzo.TeZO, oracles.diagonal(3), {"rank": 3, "directions": 2}),
    "tezo-momentum": Case(kronzo.TeZO, oracles.diagonal(3), {"rank": 3, "refresh_every": 3, "momentum": 0.5}),
    "mezo": Case(kronzo.MeZO, oracles.dense, {"directions": 2}),
    "mezo-directional": Case(kronzo.MeZO, oracles.dense, {"directions": 3, "rule": "directional"}),
    "mezo-momentum": Case(kronzo.MeZO, oracles.dense, {"momentum": 0.5}),
    "fzoo": Case(kronzo.FZOO, oracles.rademacher, {"directions": 3}),
    "fzoo-average": Case(kronzo.FZOO, oracles.rademacher, {"directions": 3, "rule": "average"}),
}


def settings(case: Case) -> dict[str, Any]:
    """The keywords the naive twin needs, read off the built optimizer."""
    optimizer = case.build([torch.nn.Parameter(torch.zeros(8, 9))])
    s = optimizer.settings
    return {
        "rule": s.rule.name,
        "directions": s.directions,
        "refresh_every": s.refresh_every,
        "momentum": s.momentum,
        "one_sided": s.rule.one_sided,
    }
