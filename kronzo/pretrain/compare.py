"""The comparison engine: methods x settings x seeds on one model, one corpus and one stream of batches.

Every row of the grid is tuned by the same rule with the same number of trials, on a seed that is not reported; then it
runs on every seed. Everything is a plain run of `kronzo pretrain` in DIR/tuning or DIR/runs, so what is finished is not
repeated and what was killed goes on. Shards of a grid may share DIR: a row belongs to one of them.
"""

from __future__ import annotations

import fcntl
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kronzo
from kronzo.errors import InputError
from kronzo.pretrain import comparison, folder, halving
from kronzo.pretrain.cache import write_json
from kronzo.pretrain.config import FIRST_ORDER
from kronzo.pretrain.grid import Grid, Shard, read_grid, rows_of_shard
from kronzo.pretrain.pool import Job, Pool
from kronzo.pretrain.reproduce import command_line, reference_of
from kronzo.pretrain.resolve import corpus_of

if TYPE_CHECKING:
    import pandas as pd

    from kronzo.optim import ZeroOrder

_OURS = (comparison.GRID, comparison.REFERENCE, comparison.TABLE, comparison.RUNS, "tuning")
_NEEDED = ("params", "lr", "seed")


def compare(
    grid: Grid | Path | str | Mapping[str, Any],
    out: Path | str,
    *,
    shard: Shard = (1, 1),
    workers: int | None = None,
    methods: Mapping[str, type[ZeroOrder]] | None = None,
    progress: bool = True,
    command: str = "",
) -> pd.DataFrame:
    """Do a grid in `out`, or what is left of it, and return everything that is there.

    Equal budget means equal token_forwards, or for a row with budget = "tokens" as many distinct tokens as another row.
    Seed s gives every method the same initial weights and the same batches. A run that was stopped, however often, ends
    with the same numbers.

    Args:
        grid: a TOML file, its tables, or a grid that `read_grid` returned.
        out: a new folder, or one that holds this grid; jobs that do different shards may share it.
        shard: (i, n): do only the i-th of n parts of the rows.
        workers: runs at a time; by default as many as the cores hold, one thread each unless the grid says more.
        methods: name -> a subclass of ZeroOrder that takes params, lr and seed, for rows whose optimizer.method is that
            name. The runs are then done one after the other in this process.
        progress: show bars with the time left.
        command: the command line, for the record; by default the present one.

    Returns:
        The tidy table that is also written as out/comparison.parquet, a row for each run and evaluation: see
        `kronzo.pretrain.comparison.collect`.

    Raises:
        InputError: a bad grid, a foreign or unwritable folder, another grid in it, a row that another process is doing,
            what a run refuses.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the running runs have saved.

    Cost: for each row, the budget times the number of seeds and times the fractions that its trials run for.
    """
    out, own = Path(out), dict(methods or {})
    with _known(own):
        grid = grid if isinstance(grid, Grid) else read_grid(grid)
        _check_own(grid, own, workers)
        rows = rows_of_shard(grid, shard)
        _prepare(grid, out, progress)
        with ExitStack() as held:
            for row in rows:
                inside = (comparison.TRIALS, *(comparison.run_folder(out, row, seed).name for seed in grid.seeds))
                held.enter_context(folder.locked(out / comparison.RUNS / row, inside))
            pool = held.enter_context(Pool(grid.plan.threads, workers=1 if own else workers, show=progress))
            _do(grid, rows, out, pool)
    with _turn(out):
        return comparison.collect(grid, out, command or command_line())


def _prepare(grid: Grid, out: Path, progress: bool) -> None:
    """Claim the folder, build the corpus and write the reference lines."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder.refuse_foreign(out, _OURS, comparison.GRID)
        comparison.claim(out, grid)
    except OSError as error:
        raise InputError(f"{out}: cannot be written ({error.strerror}); give another folder with --out.") from error
    corpus = corpus_of(grid.plan.comparison.data, show=progress)
    write_json(out / comparison.REFERENCE, reference_of(grid.plan, corpus) | {"corpus": corpus.manifest})


def _do(grid: Grid, rows: Sequence[str], out: Path, pool: Pool) -> None:
    """Tune the rows, keep the record of the trials, and run every row on every seed."""
    plan = grid.plan
    chosen, trials = halving.search(plan, out, pool.run, only=rows)
    chosen |= {row: chosen[plan.methods[row].lr_of] for row in rows if plan.methods[row].lr_of}
    for row in rows:
        record = [
            trial | {"val_loss": trial["val_loss"] if math.isfinite(trial["val_loss"]) else None}
            for trial in trials
            if trial["method"] == row
        ]
        folder.write_json(out / comparison.RUNS / row / comparison.TRIALS, record)
    jobs = [
        Job(
            grid.run_of(row, chosen[row], seed),
            comparison.run_folder(out, row, seed),
            halving.cost_of(plan, row),
        )
        for seed in grid.seeds
        for row in rows
    ]
    if jobs:
        pool.run(jobs, "final runs")


@contextmanager
def _known(own: Mapping[str, type[ZeroOrder]]) -> Iterator[None]:
    """Let configs name the caller's own methods, inside only."""
    for name, method in own.items():
        if name in kronzo.METHODS or name in FIRST_ORDER:
            raise InputError(f"methods[{name!r}]: that name is taken by a method of kronzo; choose another.")
        if not (isinstance(method, type) and issubclass(method, kronzo.ZeroOrder)):
            raise InputError(f"methods[{name!r}] = {method!r}: a subclass of kronzo.ZeroOrder is needed.")
        lacking = [key for key in _NEEDED if key not in inspect.signature(method).parameters]
        if lacking:
            raise InputError(f"methods[{name!r}]: its constructor lacks {', '.join(lacking)}; add the parameter.")
    kronzo.METHODS.update(own)
    try:
        yield
    finally:
        for name in own:
            del kronzo.METHODS[name]


def _check_own(grid: Grid, own: Mapping[str, type[ZeroOrder]], workers: int | None) -> None:
    used = {method.optimizer.method for method in grid.plan.methods.values()}
    unused = [name for name in own if name not in used]
    if unused:
        raise InputError(
            f"methods[{unused[0]!r}]: no row of the grid has it as optimizer.method; add a table [methods.NAME]."
        )
    if own and workers not in (None, 1):
        raise InputError(f"workers = {workers}: methods of one's own run in this process; leave workers out.")


@contextmanager
def _turn(out: Path) -> Iterator[None]:
    """Wait for other shards that collect: the one that finishes last then sees the runs of all."""
    with (out / folder.LOCK).open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
