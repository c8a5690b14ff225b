"""What `kronzo compare` runs: methods x settings x seeds, read from TOML or tables and expanded into rows.

A row is a method with one value for every setting; it is tuned once, on a seed of its own, and run on every seed. In a
method's `optimizer` table a list is an axis of the grid, unless the key takes that very list as its value, as
`factors = ["max", 32]` does; `factors = ["square", ["max", 32]]` is an axis.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import tables
from kronzo.pretrain.config import Config, OptimizerConfig
from kronzo.pretrain.plan import Choice, Plan, Tuning, as_tables, plan_of

Shard = tuple[int, int]


@dataclass(frozen=True)
class _Head:
    """The keys at the top of a grid beside [methods]."""

    seeds: tuple[int, ...] = (0, 1, 2)
    tuning_seed: int = 1000
    threads: int = 1
    comparison: Config = field(default_factory=Config)
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True)
class Grid:
    """A grid, expanded.

    Args:
        plan: its methods are the rows, its seed is that of the tuning.
        seeds: of the final runs.
        method_of: row -> the name of the table it came from.
        settings: row -> the value of every axis there.
    """

    plan: Plan
    seeds: tuple[int, ...]
    method_of: dict[str, str]
    settings: dict[str, dict[str, Any]]

    @property
    def rows(self) -> list[str]:
        """Names of the rows, in order."""
        return list(self.plan.methods)

    def run_of(self, row: str, choice: Choice, seed: int) -> Config:
        """The final run of a row on one seed, over the whole budget."""
        return replace(self.plan.run_of(row, choice.lr, eps=choice.eps), seed=seed)

    def num_trials(self, row: str) -> int:
        """How many choices are tried for a row; for one that takes another's, the other's."""
        method = self.plan.methods[row]
        return len(self.plan.methods[method.lr_of].choices if method.lr_of else method.choices)

    def as_tables(self) -> dict[str, Any]:
        """Return the expanded grid as plain values, to be stored and compared."""
        values = as_tables(self.plan)
        rest = {key: values[key] for key in ("threads", "comparison", "tuning", "methods")}
        return {"seeds": list(self.seeds), "tuning_seed": self.plan.seed, **rest}


def read_grid(source: Path | str | Mapping[str, Any], settings: Iterable[str] = ()) -> Grid:
    """Read a grid from a TOML file or from tables, with `key=value` settings applied.

    Raises:
        InputError: what cannot be read, an unknown key (the nearest one is named), values that cannot be, rows with
            unequal numbers of trials.
    """
    given = dict(source) if isinstance(source, Mapping) else tables.read(Path(source))
    for setting in settings:
        given = tables.override(given, setting)
    rest = {key: value for key, value in given.items() if key != "methods"}
    head = tables.build(_Head, rest)
    methods = given.get("methods")
    if not isinstance(methods, Mapping) or not methods:
        raise InputError("methods: a table [methods.NAME] for each method is needed; the grid has none.")
    rows, method_of, values = _expand(methods)
    sections = {key: rest.get(key, {}) for key in ("comparison", "tuning")}
    plan = plan_of({"seed": head.tuning_seed, "threads": head.threads, **sections, "methods": rows})
    grid = Grid(plan, head.seeds, method_of, values)
    _check(grid)
    return grid


def shard_of(text: str) -> Shard:
    """Return (i, n) of "i/n", 1 <= i <= n.

    Raises:
        InputError: anything else.
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    i, n = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= i <= n:
        raise InputError(
            f"--shard {text}: i/n with 1 <= i <= n is needed, e.g. --shard 2/4 in the second of four jobs."
        )
    return i, n


def rows_of_shard(grid: Grid, shard: Shard) -> list[str]:
    """Return the rows that shard (i, n) does: a part of them, disjoint from those of the others, all together.

    A row that takes the rates of another goes with it. Dealt out in turn in the order of the grid, so that the same
    grid is divided in the same way everywhere.
    """
    i, n = shard
    leaders = [row for row in grid.rows if not grid.plan.methods[row].lr_of]
    ours = set(leaders[i - 1 :: n])
    return [row for row in grid.rows if (grid.plan.methods[row].lr_of or row) in ours]


def _expand(methods: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str], dict[str, dict[str, Any]]]:
    """Return row -> table, row -> method's name, row -> values of the axes."""
    rows: dict[str, Any] = {}
    method_of: dict[str, str] = {}
    values: dict[str, dict[str, Any]] = {}
    for name, table in methods.items():
        optimizer = table.get("optimizer") if isinstance(table, Mapping) else None
        if not isinstance(optimizer, Mapping):
            raise InputError(f'methods.{name}.optimizer: a table is needed, e.g. optimizer = {{ method = "kronzo" }}.')
        if "lr" in optimizer:
            raise InputError(f"methods.{name}.optimizer.lr: lr is tuned; give the list to try as methods.{name}.lr.")
        axes = {key: value for key, value in optimizer.items() if _is_axis(key, value)}
        for key in (key for key, value in axes.items() if not value):
            raise InputError(f"methods.{name}.optimizer.{key} = []: at least one value is needed.")
        for combination in itertools.product(*axes.values()):
            chosen = dict(zip(axes, combination, strict=True))
            row = _name(name, chosen)
            if row in rows:
                raise InputError(f"methods.{name}: {row} is given twice; drop one.")
            rows[row] = {**table, "optimizer": {**optimizer, **chosen}}
            method_of[row], values[row] = name, chosen
    return rows, method_of, values


def _is_axis(key: str, value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return False
    try:
        tables.build(OptimizerConfig, {key: value})
    except InputError:
        return True
    return False


def _name(method: str, settings: Mapping[str, Any]) -> str:
    """Name a row, "kronzo,rule=average,directions=4"; it is also the name of its folder."""
    name = ",".join([method, *(f"{key}={_text(value)}" for key, value in settings.items())])
    if not re.fullmatch(r"[\w+-][\w.,=+-]*", name):
        raise InputError(f"methods.{name}: letters, digits and . , = + - are needed, the name is also a folder's.")
    return name


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "+".join(f"{key}={_text(part)}" for key, part in value.items())
    if isinstance(value, list | tuple):
        return "-".join(map(_text, value))
    return re.sub(r"[^\w.+-]", "-", str(value).lower() if isinstance(value, bool) else str(value))


def _check(grid: Grid) -> None:
    seeds, tuning_seed = grid.seeds, grid.plan.seed
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0:
        raise InputError(f"seeds = {list(seeds)}: different whole numbers from 0 on are needed, three for a claim.")
    if tuning_seed in seeds:
        raise InputError(
            f"tuning_seed = {tuning_seed} is one of seeds: rates are chosen on a seed of their own; change it."
        )
    trials = {row: len(method.choices) for row, method in grid.plan.methods.items() if not method.lr_of}
    most, least = max(trials, key=lambda row: trials[row]), min(trials, key=lambda row: trials[row])
    if trials[most] != trials[least]:
        raise InputError(
            f"methods.{most} has {trials[most]} trials (lr x eps) and methods.{least} {trials[least]}: every row gets "
            "the same number; lengthen or shorten a list."
        )
    for row, method in grid.plan.methods.items():
        if method.lr_of and grid.plan.methods[method.lr_of].lr_of:
            raise InputError(f"methods.{row}.lr_of = {method.lr_of!r}: a row with a list lr of its own is needed.")
