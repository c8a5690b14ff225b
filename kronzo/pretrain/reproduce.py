"""The main job: pretraining with spectra, the comparison at equal budget, and a report; a list of plain runs."""

from __future__ import annotations

import json
import math
import resource
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import folder, halving, tables
from kronzo.pretrain.data import Corpus
from kronzo.pretrain.ngram import reference_losses
from kronzo.pretrain.plan import Plan, as_tables
from kronzo.pretrain.pool import Job, Pool
from kronzo.pretrain.progress import Reporter
from kronzo.pretrain.resolve import corpus_of, shape_of
from kronzo.pretrain.results import FO, PLAN, REFERENCE, RUN, TUNING

REPORT = "report.html"
_BESIDE = (PLAN, RUN, TUNING, REFERENCE, REPORT, FO, "tuning", "figures", "tables")


def reproduce(
    plan: Plan,
    out: Path,
    *,
    preset: str = "",
    command: str = "",
    fresh: bool = False,
    progress: bool = True,
    workers: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Do the whole plan in `out`, or what is left of it, and return the path of report.html.

    Every run in it is a `kronzo pretrain` run; what is finished is not repeated, what was killed goes on, and the
    weights at the end are the same however often it was interrupted.

    Args:
        plan: what to do.
        out: a new folder, or one that holds this plan.
        preset: its name, for the report.
        command: the command line, for the report.
        fresh: remove what an earlier call has left.
        progress: show bars.
        workers: runs at a time; by default as many as the cores hold.
        say: gets the spectrum report and the summary as text.

    Raises:
        InputError: a foreign or unwritable folder, another plan in it, what a run refuses.
        KeyboardInterrupt: Ctrl-C or SIGTERM, after the running runs have saved.
    """
    ours = (*_BESIDE, *plan.methods)
    with folder.locked(out, ours, PLAN):
        if fresh:
            clear(out)
        _claim(out, plan, preset, command)
        clock = _Clock(out)
        with Pool(plan.threads, workers=workers, show=progress) as pool:
            with clock.part("corpus"):
                for config in (plan.fo, plan.comparison):
                    corpus = corpus_of(config.data, show=progress)
                folder.write_json(out / REFERENCE, reference_of(plan, corpus))
            with clock.part("spectra and tuning"):
                first_order = Job(plan.fo, out / FO, _cost_of_fo(plan))
                chosen, trials = halving.search(plan, out, pool.run, beside=[first_order])
                folder.write_json(out / TUNING, trials)
            say(spectrum_report(out))
            with clock.part("comparison"):
                chosen |= {name: chosen[method.lr_of] for name, method in plan.methods.items() if method.lr_of}
                names = sorted(plan.methods, key=lambda name: -halving.cost_of(plan, name))
                for name in names:
                    halving.take_over(name, chosen[name], out)
                configs = [plan.run_of(n, chosen[n].lr, eps=chosen[n].eps) for n in names]
                jobs = [Job(c, out / n, halving.cost_of(plan, n)) for n, c in zip(names, configs, strict=True)]
                pool.run(jobs, "comparison")
        from kronzo.pretrain import report

        clock.finish()
        with Reporter("report", 1000, show=progress) as bar:
            path = report.write(out, watch=lambda fraction: bar.update(round(1000 * fraction)))
        say(report.terminal(out))
    return path


def spectrum_report(out: Path) -> str:
    """The spectra of the first-order run as text, 80 columns wide."""
    import spectra
    from spectra.report import render

    return render(spectra.open(out / FO / "spectra"))


def _cost_of_fo(plan: Plan) -> float:
    """Its token_forwards, weighted by parameters, in the unit of the comparison's: only for the time left."""
    budget, context = plan.fo.budget, shape_of(plan.fo.model, 1).context
    tokens = budget.tokens or (budget.steps or 1000) * budget.batch_size * context
    shapes = [shape_of(config.model, 1) for config in (plan.fo, plan.comparison)]
    weights = [shape.layers * shape.width**2 for shape in shapes]
    return 3.0 * tokens * weights[0] / weights[1]


def command_line() -> str:
    """The present command as one would type it."""
    program = Path(sys.argv[0])
    return shlex.join([program.parent.name if program.name == "__main__.py" else program.name, *sys.argv[1:]])


def clear(out: Path) -> None:
    """Remove what `reproduce` has written into `out`, and nothing else."""
    stored = _stored(out)
    for name in (*_BESIDE, *(stored.get("runs", {}) if stored else ())):
        path = out / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _claim(out: Path, plan: Plan, preset: str, command: str) -> None:
    """Write plan.json, or check that the folder holds this very plan."""
    resolved = as_tables(plan)
    stored = _stored(out)
    if stored is None:
        rows = {FO: "tokens"} | {name: method.budget for name, method in plan.methods.items()}
        about = {
            "preset": preset,
            "command": command or command_line(),
            "seed": plan.seed,
            "threads": plan.threads,
            "batch_tokens": plan.comparison.budget.batch_size * plan.context,
            "token_forwards": plan.comparison.budget.token_forwards,
            "runs": {name: {"folder": name, "label": name, "budget": budget} for name, budget in rows.items()},
        }
        folder.write_json(out / PLAN, about | {"plan": resolved})
        return
    here, there = tables.flat(resolved), tables.flat(stored["plan"])
    keys = [key for key in here | there if here.get(key) != there.get(key)]
    changed = [f"{key} is {there.get(key)!r} there and {here.get(key)!r} here" for key in keys]
    if changed:
        more = f" and {len(changed) - 2} more" if len(changed) > 2 else ""
        raise InputError(
            f"{out}: holds another plan ({'; '.join(changed[:2])}{more}); give another --out, or --fresh to start over."
        )


def _stored(out: Path) -> Mapping[str, Any] | None:
    try:
        return dict(json.loads((out / PLAN).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InputError(
            f"{out / PLAN}: cannot be read ({error}); give another --out, or remove the folder."
        ) from error


def reference_of(plan: Plan, corpus: Corpus) -> dict[str, float]:
    """Unigram, bigram and uniform cross-entropy on the very windows that the comparison's runs are evaluated on."""
    tokens = plan.comparison.evaluation.tokens
    lines = reference_losses(corpus, windows=(plan.context, tokens))
    return lines | {"uniform": math.log(corpus.vocab_size), "validation_tokens": tokens}


class _Clock:
    """Seconds by part over all calls that worked on this folder, and what they ran on."""

    def __init__(self, out: Path) -> None:
        self.path = out / RUN
        self.values: dict[str, Any] = {"started": _now(), "seconds": {}, "peak_bytes": 0}
        if self.path.exists():
            self.values = dict(json.loads(self.path.read_text(encoding="utf-8")))
        self.values["environment"] = folder.environment()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the time inside to one part, also when it is interrupted."""
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = self.values["seconds"]
            seconds[name] = round(seconds.get(name, 0.0) + time.monotonic() - started, 3)
            self._save()

    def finish(self) -> None:
        """Note the end."""
        self.values.setdefault("finished", _now())
        self._save()

    def _save(self) -> None:
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        peak = max(resource.getrusage(kind).ru_maxrss for kind in kinds) * 1024
        self.values["peak_bytes"] = max(self.values["peak_bytes"], peak)
        folder.write_json(self.path, self.values)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
