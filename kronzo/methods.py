"""The methods: each is a search space and a rule under the keywords its users know.

Constructor defaults are alike for all (averaging, one direction), so that a comparison changes one thing; the settings
of a paper come from `published(name)`. All take the keywords of `kronzo.optim.ZeroOrder`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Literal

from torch import Tensor

from kronzo.distributed import Parallel
from kronzo.errors import InputError
from kronzo.layout import Restore
from kronzo.noise import Source
from kronzo.optim import ZeroOrder
from kronzo.rules import WindowRule
from kronzo.settings import Data, Replay, rule_of
from kronzo.spaces import Dense, Diagonal, Kronecker, LowRank, Subspace
from kronzo.spaces.kronecker import Factors


class KronZO(ZeroOrder):
    """Z = A (x) B for every matrix, A (m1 x n1) afresh for each direction, B (m2 x n2) kept `refresh_every` steps.

    rule="directional" is Algorithm 2 of the paper, rule="average" its averaging variant. Stored numbers per matrix are
    m1 n1 + m2 n2, the attainable rank is min(m1, n1) min(m2, n2).

    Source: Allaire, Le Digabel, Orban, Partovi Nia 2026 (KronZO), Algorithms 1 and 2. Differences: vectors are searched
    densely (the paper is silent); the acceptance window slides (see `kronzo.rules.Directional`); the step applied is
    the evaluated candidate to the last bit. The authors' code draws unnormalised factors too, so scales agree.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        eps: float = 1e-3,
        directions: int = 1,
        refresh_every: int = 5,
        rule: str = "average",
        window: int = 10,
        window_rule: WindowRule = "sliding",
        data: Data = "shared",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        factors: Factors = "square",
        restore: Restore = "auto",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, Kronecker(factors), lr=lr, eps=eps, directions=directions, refresh_every=refresh_every, rule=rule,
            window=window, window_rule=window_rule, data=data, momentum=momentum, weight_decay=weight_decay,
            restore=restore, maximize=maximize, parallel=parallel, seed=seed,
        )  # fmt: skip


class LOZO(ZeroOrder):
    """Z = U V^T / sqrt(r), U (m x r) afresh for each direction, V (n x r) kept `refresh_every` steps.

    Source: Chen et al. 2025 (LOZO). Differences: unit scale, so that E[vec Z vec Z^T] = I (the paper divides the
    estimate by r, its code does not; scale="published" is the code's); the applied step is the measured one. LOZO-M is
    momentum > 0: N <- b N + (1 - b) c U, carried over a refresh by least squares.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        eps: float = 1e-3,
        directions: int = 1,
        rank: int = 2,
        refresh_every: int = 50,
        scale: Literal["unit", "published"] = "unit",
        replay: Replay = "exact",
        rule: str = "average",
        window: int = 10,
        window_rule: WindowRule = "sliding",
        data: Data = "shared",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        restore: Restore = "auto",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, LowRank(rank, scale), lr=lr, eps=eps, directions=directions, refresh_every=refresh_every, rule=rule,
            window=window, window_rule=window_rule, data=data, momentum=momentum, weight_decay=weight_decay,
            restore=restore, maximize=maximize, parallel=parallel, seed=seed,
        )  # fmt: skip
        self.settings = replace(self.settings, replay=replay)
        _refuse_useless_rank(self, rank)

    def _applied(self, update: dict[int, float]) -> dict[int, float]:
        """The measured combination, or under replay="published" another draw of it on refresh steps."""
        s, step = self.settings, self.param_groups[0]["step"]
        if s.replay == "exact" or (step % s.refresh_every if s.refresh_every else step):
            return update
        return {i + s.directions: c for i, c in update.items()}


class SubZero(ZeroOrder):
    """Z = sqrt(mn)/r U S V^T, S (r x r) afresh, U and V orthonormal and kept `refresh_every` steps.

    Source: Yu et al. 2025 (SubZero). The scale makes E||Z||_F^2 = mn, as in the paper.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        eps: float = 1e-3,
        directions: int = 1,
        rank: int = 8,
        refresh_every: int = 1000,
        rule: str = "average",
        window: int = 10,
        window_rule: WindowRule = "sliding",
        data: Data = "shared",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        restore: Restore = "auto",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, Subspace(rank), lr=lr, eps=eps, directions=directions, refresh_every=refresh_every, rule=rule,
            window=window, window_rule=window_rule, data=data, momentum=momentum, weight_decay=weight_decay,
            restore=restore, maximize=maximize, parallel=parallel, seed=seed,
        )  # fmt: skip
        _refuse_useless_rank(self, rank)


class TeZO(ZeroOrder):
    """Z = U diag(x) V^T / sqrt(r), x (r numbers) afresh, U and V normal and drawn once for the whole run.

    It stores the least of all and searches r dimensions of a matrix for good, so it stays behind where the gradient
    leaves that subspace; refresh_every > 0 draws U and V anew. Momentum lives on x.

    Source: Sun et al. 2025 (TeZO). Differences: unit scale (division by sqrt(r)); one rank for all matrices, where the
    paper chooses it per layer from the spectrum; no Adam variant.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        eps: float = 1e-3,
        directions: int = 1,
        rank: int = 32,
        refresh_every: int = 0,
        rule: str = "average",
        window: int = 10,
        window_rule: WindowRule = "sliding",
        data: Data = "shared",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        restore: Restore = "auto",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, Diagonal(rank), lr=lr, eps=eps, directions=directions, refresh_every=refresh_every, rule=rule,
            window=window, window_rule=window_rule, data=data, momentum=momentum, weight_decay=weight_decay,
            restore=restore, maximize=maximize, parallel=parallel, seed=seed,
        )  # fmt: skip
        _refuse_useless_rank(self, rank)


class MeZO(ZeroOrder):
    """Z dense and normal, regenerated from its keys and never stored.

    Source: Malladi et al. 2023 (MeZO). Differences: blocks of 2^16 numbers under one key each, so that the noise does
    not depend on chunking; decay only on matrices, before the forwards. MeZO-M is momentum > 0, a full-size average.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        eps: float = 1e-3,
        directions: int = 1,
        rule: str = "average",
        window: int = 10,
        window_rule: WindowRule = "sliding",
        data: Data = "shared",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        noise: Source | None = None,
        restore: Restore = "auto",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, Dense, lr=lr, eps=eps, directions=directions, rule=rule, window=window, window_rule=window_rule,
            data=data, momentum=momentum, weight_decay=weight_decay, noise=noise, restore=restore, maximize=maximize,
            parallel=parallel, seed=seed,
        )  # fmt: skip


class FZOO(ZeroOrder):
    """Z dense, entries +-1; c_i = [L(theta + eps Z_i) - L(theta)] / eps, q + 1 forwards, one of them shared.

    The default rule "normalized" moves by -lr sum_i c_i Z_i / (q rms(c)), so the length of a step does not depend on
    the loss's scale; all losses equal is no move. rule="average" is the plain one-sided estimate.

    Source: Dang et al. 2026 (FZOO). Differences: the paper divides the mean of c_i Z_i by the standard deviation of the
    q losses, we by the root mean square of the c_i, which differ by eps and by the mean of c: their lr is ours / eps.
    The paper's batched forward for all directions is not built.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        *,
        eps: float = 1e-3,
        directions: int = 8,
        rule: Literal["normalized", "average"] = "normalized",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        noise: Source | None = None,
        restore: Restore = "auto",
        maximize: bool = False,
        parallel: Parallel = None,
        seed: int = 0,
    ) -> None:
        super().__init__(
            params, Dense, lr=lr, eps=eps, directions=directions, rule=rule_of(rule, "sliding", one_sided=True),
            momentum=momentum, weight_decay=weight_decay, noise=noise, law="rademacher", restore=restore,
            maximize=maximize, parallel=parallel, seed=seed,
        )  # fmt: skip


def _refuse_useless_rank(optimizer: ZeroOrder, rank: int) -> None:
    matrices = [p for g in optimizer.param_groups for p in g["params"] if p.ndim >= 2]
    if matrices and all(isinstance(optimizer.space_of(p), Dense) for p in matrices):
        largest = max(min(p.shape[0], p[0].numel()) for p in matrices)
        raise InputError(
            f"rank={rank}: no matrix has a smaller side above it (the largest is {largest}), so nothing would be "
            f"searched in low rank; give rank < {largest}, or use MeZO."
        )


METHODS: dict[str, type[ZeroOrder]] = {
    "kronzo": KronZO,
    "lozo": LOZO,
    "subzero": SubZero,
    "tezo": TeZO,
    "mezo": MeZO,
    "fzoo": FZOO,
}

_DIRECTIONAL: dict[str, Any] = {"rule": "directional", "directions": 33, "window": 10, "lr": 3e-4, "eps": 3e-4}
_PUBLISHED: dict[str, dict[str, Any]] = {
    "kronzo": {**_DIRECTIONAL, "refresh_every": 5},
    "lozo": {**_DIRECTIONAL, "rank": 2, "refresh_every": 50},
    "subzero": {**_DIRECTIONAL, "rank": 8, "refresh_every": 1000},
    "tezo": {**_DIRECTIONAL, "rank": 32, "refresh_every": 0},
    "mezo": _DIRECTIONAL,
    "fzoo": {"rule": "normalized", "directions": 8, "lr": 3e-4, "eps": 3e-4},
}


def published(name: str) -> dict[str, Any]:
    """The keywords of the KronZO paper's GPT-2 pretraining for a method: q = 33 directional, h = 10, lr 3e-4.

    eps is inside the paper's range [1e-4, 5e-4]. The paper runs KronZO, LOZO and MeZO; SubZero and TeZO take the same
    rule with their own rank and refresh interval, FZOO its own normalised rule and 8 directions at the same lr and eps.

    Raises:
        InputError: no such method.
    """
    if name not in _PUBLISHED:
        near = difflib.get_close_matches(name, _PUBLISHED, n=1, cutoff=0.0)[0]
        raise InputError(f"published({name!r}): give one of {', '.join(_PUBLISHED)}; did you mean {near!r}?")
    return dict(_PUBLISHED[name])
