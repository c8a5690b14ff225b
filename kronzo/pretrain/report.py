"""What people see of `kronzo reproduce`: tables, figures, one offline page, and a summary for the terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

from kronzo.pretrain import findings, report_figures, report_html, report_tables
from kronzo.pretrain.results import Results, read
from kronzo.pretrain.units import count, duration, nats, percent, rate, signed

PAGE = "report.html"
_WIDTH = 80


def write(out: Path, watch: Callable[[float], None] = lambda fraction: None) -> Path:
    """Write out/tables, out/figures and out/report.html from whatever the folder holds, and return the page.

    `watch` is told what fraction is done.

    The page is one file that needs nothing else, not even a network. It names the runs that are missing or unfinished.

    Raises:
        InputError: the folder holds no plan of `kronzo reproduce`, or a file in it is damaged.
    """
    results = read(out)
    tables = report_tables.write(results, out / "tables")
    pictures = report_figures.write(results, out / "figures", watch)
    page = out / PAGE
    page.write_text(report_html.render(results, tables, pictures), encoding="utf-8")
    return page


def terminal(out: Path) -> str:
    """Return findings and final losses as plain text, 80 columns wide.

    Raises:
        InputError: as `write`.
    """
    results = read(out)
    lines = []
    for sentence in findings.headline(results) or ["Nothing to compare yet: no run of the comparison has finished."]:
        lines += textwrap.wrap(sentence, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    claims = findings.claims(results)
    measured = [claim for claim in claims if claim.verdict != findings.NOT_MEASURED]
    against = [claim for claim in measured if claim.verdict == findings.DISAGREES]
    lines += [
        "",
        _table(results),
        "nats a token, held-out text; * tokens through forwards, a backward counts as two",
        "",
    ]
    lines += [f"{len(against)} of {len(measured)} reported claims measured here do not agree:"]
    for claim in against:
        text = f"{claim.statement}: reported {claim.reported}, here {claim.here}"
        lines += textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    lines += [f"! {text}" for text in results.incomplete]
    return "\n".join([*lines, f"report: {out / PAGE}"]) + "\n"


def _table(results: Results) -> str:
    """Final losses, lowest first, and the reference lines, in aligned columns."""
    frame = report_tables.losses(results).sort_values("val_loss", kind="stable")
    rows = [
        [
            row["label"],
            nats(row["val_loss"]),
            signed(row["minus_unigram"]),
            rate(row["lr"]),
            *(count(row[name]) for name in ("steps", "tokens", "token_forwards")),
            duration(row["seconds_per_step"]),
            percent(row["acceptance_rate"]),
        ]
        for row in frame.to_dict("records")
    ]
    rows += [[name, nats(results.line(name)), *[""] * 7] for name in ("unigram", "bigram", "uniform")]
    rows.insert(0, ["run", "nats", "-unigram", "lr", "steps", "tokens", "forwards*", "a step", "accepted"])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[0] = min(widths[0], _WIDTH - sum(widths[1:]) - len(widths) + 1)
    lines = [
        " ".join([row[0][: widths[0]].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))])
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
