"""What `kronzo reproduce` runs: a preset, read from TOML and written out as plain runs of `kronzo pretrain`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import optimizers, tables
from kronzo.pretrain.config import Config, OptimizerConfig, to_dict
from kronzo.pretrain.resolve import check, shape_of
from kronzo.pretrain.steps import passes_per_step

PRESETS = ("laptop", "smoke", "test", "paper")


@dataclass(frozen=True)
class Tuning:
    """Successive halving over each method's list of learning rates.

    Args:
        fractions: of a method's whole run, one a rung, rising: how far its trials have gone when they are compared.
        keep: share of the trials that go on to the next rung, the best ones, at least one.
    """

    fractions: tuple[float, ...] = (0.25, 1.0)
    keep: float = 0.5


@dataclass(frozen=True)
class Choice:
    """What tuning chooses for a row: lr, and eps where the row lists some (None leaves the optimizer section's own)."""

    lr: float
    eps: float | None = None


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Args:
        optimizer: the method and its keywords, without lr.
        lr: learning rates to try, in geometric steps.
        eps: probe sizes to try with every one of them; None leaves the optimizer's own.
        budget: "token_forwards" spends the comparison's budget; "tokens" sees as many distinct tokens as the method
            named by `tokens_of`.
        tokens_of: see budget.
        lr_of: takes what was found for this other method, without trials of its own.
    """

    optimizer: OptimizerConfig
    lr: tuple[float, ...] = ()
    eps: tuple[float, ...] | None = None
    budget: str = "token_forwards"
    tokens_of: str = ""
    lr_of: str = ""

    @property
    def choices(self) -> list[Choice]:
        """Everything to try: each lr with each eps."""
        return [Choice(lr, eps) for lr in self.lr for eps in self.eps or (None,)]


@dataclass(frozen=True)
class Plan:
    """A preset with its settings.

    Args:
        seed: of weights, batches and directions in every run.
        threads: torch threads a run; runs are spread over the cores.
        fo: the first-order run whose gradients are captured.
        comparison: what the methods share; its budget.token_forwards is the budget.
        tuning: how learning rates are chosen.
        methods: name -> row, in the order of the tables.
    """

    seed: int = 0
    threads: int = 1
    fo: Config = field(default_factory=Config)
    comparison: Config = field(default_factory=Config)
    tuning: Tuning = field(default_factory=Tuning)
    methods: dict[str, Method] = field(default_factory=dict)

    @property
    def context(self) -> int:
        """Tokens a sequence in the comparison."""
        return shape_of(self.comparison.model, max(1, self.comparison.model.vocab_size)).context

    def run_of(self, name: str, lr: float, *, eps: float | None = None) -> Config:
        """The run of one method at a learning rate, over its whole budget."""
        method = self.methods[name]
        eps = method.optimizer.eps if eps is None else eps
        base = replace(self.comparison, optimizer=replace(method.optimizer, lr=lr, eps=eps))
        if method.budget != "tokens":
            return base
        other = replace(self.comparison, optimizer=self.methods[method.tokens_of].optimizer)
        batch_tokens = base.budget.batch_size * self.context
        steps = (base.budget.token_forwards or 0) // (_step_cost(other) * batch_tokens)
        return replace(base, budget=replace(base.budget, token_forwards=None, steps=max(1, steps)))


def read_plan(preset: str, settings: Iterable[str] = ()) -> Plan:
    """A preset with `key=value` settings applied, e.g. `methods.mezo.lr=[1e-3]`.

    Raises:
        InputError: an unknown preset or key (the nearest one is named), or a value that cannot be.
    """
    if preset not in PRESETS:
        near = tables.nearest(preset, PRESETS)
        raise InputError(f"preset {preset!r} is unknown: {', '.join(PRESETS)} are known; did you mean {near!r}?")
    text = (files("kronzo.pretrain") / "presets" / f"{preset}.toml").read_text(encoding="utf-8")
    given = tables.parse(text, f"preset {preset}")
    for setting in settings:
        given = tables.override(given, setting)
    return plan_of(given)


def row_of(name: str) -> Config:
    """The run that `PRESET:ROW` names: "fo", or a row of [methods] at the first of its rates.

    Raises:
        InputError: an unknown preset or row (the nearest one is named).
    """
    preset, _, row = name.partition(":")
    plan = read_plan(preset)
    if row == "fo":
        return plan.fo
    if row not in plan.methods:
        known = ["fo", *plan.methods]
        near = tables.nearest(row, known)
        raise InputError(f"{name}: preset {preset} has the rows {', '.join(known)}; did you mean {preset}:{near}?")
    method = plan.methods[row]
    return plan.run_of(row, (method.lr or plan.methods[method.lr_of].lr)[0])


def plan_of(given: Mapping[str, Any]) -> Plan:
    """A plan from nested tables; seed and threads at the top hold for every run.

    Raises:
        InputError: as `read_plan`.
    """
    rest = {key: value for key, value in given.items() if key != "methods"}
    plan = tables.build(Plan, rest)
    rows = given.get("methods", {})
    if not isinstance(rows, Mapping) or not rows:
        raise InputError(
            "methods: a table [methods.NAME] for each row of the comparison is needed; the preset has none."
        )
    methods = {name: _method(name, row, rows) for name, row in rows.items()}
    shared: dict[str, Any] = {"seed": plan.seed, "threads": plan.threads}
    plan = replace(plan, methods=methods, fo=replace(plan.fo, **shared), comparison=replace(plan.comparison, **shared))
    _check(plan)
    return plan


def _method(name: str, row: Any, rows: Mapping[str, Any]) -> Method:
    """One row; one without an optimizer is mostly a misspelt name in a setting, so the nearest one is told."""
    others = [other for other in rows if other != name]
    if others and isinstance(row, Mapping) and "optimizer" not in row:
        near = tables.nearest(name, others)
        raise InputError(f"methods.{name}: a new row needs methods.{name}.optimizer; did you mean methods.{near}?")
    return tables.build(Method, row, f"methods.{name}.")


def as_tables(plan: Plan) -> dict[str, Any]:
    """The plan as plain values, to be stored and compared."""
    rows = {name: tables.plain(asdict(method)) for name, method in plan.methods.items()}
    values = {
        "seed": plan.seed,
        "threads": plan.threads,
        "fo": to_dict(plan.fo),
        "comparison": to_dict(plan.comparison),
        "tuning": tables.plain(asdict(plan.tuning)),
        "methods": rows,
    }
    return dict(json.loads(json.dumps(values)))


def _check(plan: Plan) -> None:
    for config in (plan.fo, plan.comparison):
        check(config)
    if plan.comparison.budget.token_forwards is None:
        raise InputError(
            "comparison.budget.token_forwards is missing: the methods are compared at equal token_forwards."
        )
    fractions, points = plan.tuning.fractions, plan.comparison.evaluation.points
    if not fractions or list(fractions) != sorted(set(fractions)) or not 0 < fractions[0] <= fractions[-1] <= 1:
        raise InputError(f"tuning.fractions = {list(fractions)}: rising fractions of the budget in (0, 1] are needed.")
    if fractions[0] * (points - 1) < 1:
        raise InputError(
            f"tuning.fractions = {list(fractions)}: the first of comparison.evaluation.points = {points} after the "
            f"start comes at {1 / max(1, points - 1):.3g} of the run; trials need one: raise points or the fraction."
        )
    if not 0 < plan.tuning.keep <= 1:
        raise InputError(f"tuning.keep = {plan.tuning.keep}: a share in (0, 1] is needed.")
    for name, method in plan.methods.items():
        if bool(method.lr) == bool(method.lr_of):
            raise InputError(f"methods.{name}: give either lr, a list of learning rates to try, or lr_of.")
        if any(value <= 0 for value in method.lr):
            raise InputError(f"methods.{name}.lr = {list(method.lr)}: positive learning rates are needed.")
        if method.eps is not None:
            _check_eps(name, method)
        if method.budget not in ("token_forwards", "tokens"):
            raise InputError(f"methods.{name}.budget = {method.budget!r}: token_forwards or tokens is needed.")
        for key in ("tokens_of", "lr_of"):
            other = getattr(method, key)
            wanted = method.lr_of if key == "lr_of" else method.budget == "tokens"
            if wanted and (other not in plan.methods or other == name):
                raise InputError(f"methods.{name}.{key} = {other!r}: another row is needed, {', '.join(plan.methods)}.")
        optimizers.resolve(method.optimizer)


def _check_eps(name: str, method: Method) -> None:
    eps = list(method.eps or ())
    if not eps or min(eps) <= 0 or not method.lr:
        raise InputError(f"methods.{name}.eps = {eps}: positive numbers to try, beside a list lr, are needed.")
    if method.optimizer.eps is not None:
        raise InputError(f"methods.{name}: eps is given both to be tried and in optimizer; drop one.")
    optimizers.resolve(replace(method.optimizer, eps=eps[0]))


def _step_cost(config: Config) -> int:
    """Passes of the whole batch that one step costs."""
    return passes_per_step(optimizers.resolve(config.optimizer))
