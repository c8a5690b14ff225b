"""The page of a report: numbers of the tables and sentences of the findings, set by one template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
import pandas as pd

from kronzo.pretrain import findings
from kronzo.pretrain.report_figures import Picture
from kronzo.pretrain.reported import SOURCE
from kronzo.pretrain.results import FO, Results, RunResult
from kronzo.pretrain.units import MISSING, count, duration, nats, percent, rate, signed, size
from spectra.labels import DEFAULT, LABELS
from spectra.terminal import number

Format = Callable[[Any], str]


@dataclass(frozen=True)
class Grid:
    """A table as the page shows it: headings, which columns are numbers, cells as text."""

    headings: list[str]
    numeric: list[bool]
    rows: list[list[str]]


def render(results: Results, tables: Mapping[str, pd.DataFrame], pictures: Mapping[str, Picture]) -> str:
    """Return the page."""
    loader = jinja2.PackageLoader("kronzo.pretrain", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    claims = findings.claims(results)
    measured = [claim for claim in claims if claim.verdict != findings.NOT_MEASURED]
    return environment.get_template("report.html").render(
        results=results,
        findings=findings.headline(results),
        losses=_losses(results, tables["results"]),
        tuning=_tuning(results, tables["tuning"]),
        kinds=_kinds(tables["spectra_kinds"]) if "spectra_kinds" in tables else None,
        layers=_layers(tables["spectra_layers"]) if "spectra_layers" in tables else None,
        reported=_reported(tables["reported"]),
        source=SOURCE,
        claims=_claims(claims),
        measured=len(measured),
        against=sum(claim.verdict == findings.DISAGREES for claim in claims),
        pictures=pictures,
        facts=_facts(results),
        runs=_runs(results),
        commands=_commands(results),
        fo=results.runs.get(FO),
        split_half="spectra_layers" in tables
        and any(str(name).endswith(" noise") for name in tables["spectra_layers"]),
        tie=findings.TIE,
    )


def _grid(frame: pd.DataFrame, columns: Mapping[str, tuple[str, Format | None]]) -> Grid:
    """Pick columns; a format makes a number, None leaves text."""
    rows = [
        [str(row[name]) if form is None else form(row[name]) for name, (_, form) in columns.items()]
        for row in frame.to_dict("records")
    ]
    headings = [heading for heading, _ in columns.values()]
    return Grid(headings, [form is not None for _, form in columns.values()], rows)


def _losses(results: Results, frame: pd.DataFrame) -> Grid:
    """Runs by final loss, the reference lines among them."""
    unended = frame["state"] != "finished"
    frame = frame.assign(label=frame["label"].where(~unended, frame["label"] + " (" + frame["state"] + ")"))
    lines = pd.DataFrame({"label": ["unigram line", "bigram line", "uniform guess"]})
    lines["val_loss"] = [results.line(name) for name in ("unigram", "bigram", "uniform")]
    lines["minus_unigram"] = lines["val_loss"] - results.line("unigram")
    both = pd.concat([frame, lines.dropna(subset=["val_loss"])], ignore_index=True)
    return _grid(
        both.sort_values("val_loss", kind="stable"),
        {
            "label": ("run", None),
            "val_loss": ("validation loss", nats),
            "best_val_loss": ("lowest", nats),
            "minus_unigram": ("minus unigram", signed),
            "minus_adamw": ("minus AdamW", signed),
            "lr": ("lr", rate),
            "steps": ("steps", count),
            "tokens": ("tokens", count),
            "token_forwards": ("token forwards", count),
            "seconds_per_step": ("time a step", duration),
            "acceptance_rate": ("steps accepted", percent),
            "peak_bytes": ("peak memory", size),
        },
    )


def _tuning(results: Results, frame: pd.DataFrame) -> Grid:
    """The trials, a row each."""
    order = {name: place for place, name in enumerate(results.runs)}
    frame = frame.sort_values(["method", "rung", "lr"], key=lambda c: c.map(order) if c.name == "method" else c)
    shown = frame.assign(
        label=[results.runs[name].label for name in frame["method"]],
        went=frame["kept"].map({True: "kept", False: ""}),
    )
    return _grid(
        shown,
        {
            "label": ("run", None),
            "fraction": ("share of the budget", lambda share: f"{100 * share:.3g} %"),
            "lr": ("lr", rate),
            "val_loss": ("validation loss", lambda loss: nats(loss) if loss == loss else "diverged"),
            "went": ("", None),
            "seconds": ("time", duration),
        },
    )


def _kinds(frame: pd.DataFrame) -> Grid:
    """Mean and range of every metric per kind of layer, first stage beside last, with the value of chance."""
    frame = frame.assign(cell=frame.apply(_range, axis=1))
    first, last = frame["step"].min(), frame["step"].max()
    at = {step: frame[frame["step"] == step].set_index(["kind", "metric"]) for step in (first, last)}
    rows = []
    for (kind, metric), row in at[last].iterrows():
        if metric in LABELS:
            start = at[first]["cell"].get((kind, metric), MISSING)
            null = [at[last]["mean"].get((kind, f"{name}_{metric}"), float("nan")) for name in ("noise", "chance")]
            beside = [MISSING if value != value else number(value) for value in null]
            rows.append([f"{kind} ({row['layers']})", LABELS[metric].figure, start, row["cell"], *beside])
    headings = ["layers", "metric", f"step {first}", f"step {last}", "noise", "chance"]
    return _without_empty(Grid(headings, [False, False, True, True, True, True], rows))


def _range(row: pd.Series) -> str:
    mean = number(row["mean"])
    return mean if row["layers"] == 1 else f"{mean} [{number(row['min'])}–{number(row['max'])}]"


def _layers(frame: pd.DataFrame) -> Grid:
    """First and last stage of every layer, as "first → last"."""
    cells = frame[["layer", "shape"]].copy()
    columns: dict[str, tuple[str, Format | None]] = {"layer": ("layer", None), "shape": ("shape", None)}
    for name in DEFAULT:
        stages = [frame[key] for key in (f"{name} first", f"{name} last", name) if key in frame]
        cells[name] = [" → ".join(number(value) for value in row) for row in zip(*stages, strict=True)]
        columns[name] = (LABELS[name].figure, str)
    cells["remark"] = frame.get("remark", "")
    return _without_empty(_grid(cells, columns | {"remark": ("remark", None)}))


def _reported(frame: pd.DataFrame) -> Grid:
    """The paper's rows beside ours."""
    return _grid(
        frame,
        {
            "label": ("method", None),
            "reported_loss": ("reported: training loss", lambda loss: nats(loss, 2)),
            "reported_minus_adamw": ("reported: minus first order", lambda loss: signed(loss, 2)),
            "reported_seconds_per_step": ("reported: time a step", lambda seconds: f"{seconds:g} s"),
            "reported_memory_gb": ("reported: memory between steps", lambda gigabytes: f"{gigabytes:g} GB"),
            "val_loss": ("here: validation loss", nats),
            "minus_adamw": ("here: minus AdamW", signed),
            "seconds_per_step": ("here: time a step", duration),
            "peak_bytes": ("here: peak of the process", size),
        },
    )


def _claims(claims: list[findings.Claim]) -> Grid:
    rows = [[claim.verdict, claim.statement, claim.reported, claim.here or MISSING] for claim in claims]
    return Grid(["verdict", "the paper: ...", "reported", "here"], [False] * 4, rows)


def _without_empty(grid: Grid) -> Grid:
    """Leave out columns in which no row has anything."""
    kept = [i for i in range(len(grid.headings)) if any(row[i] not in ("", MISSING) for row in grid.rows)]
    rows = [[row[i] for i in kept] for row in grid.rows]
    return Grid([grid.headings[i] for i in kept], [grid.numeric[i] for i in kept], rows)


def _facts(results: Results) -> list[tuple[str, str]]:
    """What was run, on what, for how long."""
    about, plan = results.about, results.plan
    environment = about.get("environment", {})
    machine, versions = environment.get("machine", {}), environment.get("versions", {})
    parts = about.get("seconds", {})
    facts = [
        ("command", plan["command"]),
        ("preset", plan["preset"]),
        ("seed", str(plan["seed"])),
        ("budget", f"{count(plan['token_forwards'])} token_forwards; {count(plan['batch_tokens'])} tokens a batch"),
        *_corpora(results),
        ("started", about.get("started", "")),
        ("finished", about.get("finished", "")),
        ("wall time", _wall(parts)),
        ("peak memory", size(about["peak_bytes"]) + " in one process" if "peak_bytes" in about else ""),
        ("machine", f"{machine.get('processor')}, {machine.get('cores')} cores, {machine.get('system')}"),
        ("threads a run", str(plan["threads"])),
        ("versions", ", ".join(f"{name} {text}" for name, text in versions.items())),
        ("python", environment.get("python", "")),
        ("git", environment.get("git") or ""),
    ]
    return [(name, text) for name, text in facts if text]


def _wall(parts: Mapping[str, float]) -> str:
    each = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items())
    return f"{duration(sum(parts.values()))} ({each})" if parts else ""


def _corpora(results: Results) -> list[tuple[str, str]]:
    """The corpora of the runs, once each."""
    told: dict[str, list[str]] = {}
    for run in results.runs.values():
        if run.manifest:
            told.setdefault(_corpus(run.manifest["corpus"]), []).append(run.name)
    names = (
        ["corpus"] if len(told) == 1 else [f"corpus of {FO if FO in runs else 'the rest'}" for runs in told.values()]
    )
    return list(zip(names, told, strict=True))


def _corpus(manifest: Mapping[str, Any]) -> str:
    splits = [
        f"{count(manifest['tokens'][split])} tokens of {count(manifest['documents'][split])} documents {use}"
        for split, use in (("train", "to train"), ("val", "held out"))
    ]
    digest = manifest["sha256"]
    hashes = digest if isinstance(digest, str) else ", ".join(f"{split} {text}" for split, text in digest.items())
    versions = ", ".join(f"{name} {text}" for name, text in manifest["versions"].items())
    ending = f"; {versions}" if versions else ""
    return (
        f"{manifest['source']}, tokenizer {manifest['tokenizer']['name']}: {', '.join(splits)}; sha256 {hashes}{ending}"
    )


def _runs(results: Results) -> Grid:
    """Every run with its model and how it ended."""
    rows = [
        [run.label if run.name != FO else "first order, with spectra", _model(run), run.state, *_course(run)]
        for run in results.runs.values()
    ]
    return Grid(["run", "model", "state", "steps", "time"], [False, False, False, True, True], rows)


def _model(run: RunResult) -> str:
    if run.config is None:
        return MISSING
    model = run.config.model
    return (
        f"{count(run.manifest['parameters'])} parameters: {model.layers} layers, width {model.width}, "
        f"{model.heads} heads, context {model.context}, vocabulary {model.vocab_size}"
    )


def _course(run: RunResult) -> list[str]:
    return [
        f"{count(run.last('step'))} of {count(run.manifest.get('steps', float('nan')))}",
        duration(run.last("seconds")),
    ]


def _commands(results: Results) -> list[tuple[str, str]]:
    """How to repeat the whole, and each run."""
    own = [
        (run.label if run.name != FO else "the first-order run", f"kronzo pretrain OUT/{run.name}/config.toml")
        for run in results.runs.values()
        if run.config
    ]
    return [("everything", results.plan["command"]), *own]
