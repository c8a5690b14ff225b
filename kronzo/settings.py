"""What holds for a whole optimizer, checked at construction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kronzo.distributed import Parallel
from kronzo.errors import InputError
from kronzo.layout import Restore
from kronzo.noise import Law, Source
from kronzo.rules import Average, Directional, Normalized, Rule, WindowRule
from kronzo.validation import number, one_of, whole

Data = Literal["shared", "split"]
Replay = Literal["exact", "published"]


def rule_of(rule: str | Rule, window_rule: WindowRule, one_sided: bool = False) -> Rule:
    """The rule that a keyword names; a rule object passes through.

    Raises:
        InputError: no such rule, or one-sided probes with the directional rule.
    """
    one_of("window_rule", window_rule, ("sliding", "replace_max", "accepted"))
    if not isinstance(rule, str):
        return rule
    one_of("rule", rule, ("average", "directional", "normalized"))
    if rule == "directional" and one_sided:
        raise InputError('rule="directional" takes two-sided coefficients: use "average" or "normalized" here.')
    if rule == "directional":
        return Directional(window_rule)
    return Average(one_sided) if rule == "average" else Normalized(one_sided)


@dataclass(frozen=True)
class Settings:
    """See `kronzo.optim.ZeroOrder`; group values (lr, eps, scale, weight_decay) are not here, they may change.

    Raises:
        InputError: a value is out of range or two of them exclude each other.
    """

    rule: Rule
    directions: int
    refresh_every: int
    window: int
    data: Data
    momentum: float
    restore: Restore
    noise: Source | None
    law: Law
    maximize: bool
    replay: Replay = "exact"
    parallel: Parallel = None

    def __post_init__(self) -> None:
        whole("directions", self.directions, 1)
        whole("refresh_every", self.refresh_every, 0)
        whole("window", self.window, 1)
        number("momentum", self.momentum, 0.0, below=1.0)
        one_of("data", self.data, ("shared", "split"))
        one_of("restore", self.restore, ("auto", "arithmetic", "snapshot"))
        one_of("noise", self.noise, (None, "portable", "device"))
        one_of("law", self.law, ("normal", "rademacher"))
        one_of("replay", self.replay, ("exact", "published"))
        if isinstance(self.parallel, int):
            whole("parallel", self.parallel, 1)
        else:
            one_of("parallel", self.parallel, (None, "data", "directions"))
        if self.replay == "published" and self.rule.whole_step:
            raise InputError(
                f'replay="published" with rule "{self.rule.name}": the step taken must be the candidate that was '
                'evaluated; use replay="exact" or rule="average".'
            )
        if self.data == "split" and (self.rule.whole_step or self.rule.one_sided):
            raise InputError(
                f'data="split" with rule "{self.rule.name}": its losses are compared with each other, so all forwards '
                'must see the same batch; use data="shared" or two-sided averaging.'
            )
        if self.momentum and self.rule.whole_step:
            raise InputError(
                f'momentum={self.momentum} with rule "{self.rule.name}": the step taken must be the candidate that was '
                'evaluated; use momentum=0 or rule="average".'
            )
