"""What people see of `kronzo reproduce`: tables, figures, one offline page, and a summary for the terminal."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from kronzo.pretrain import findings, report_figures, report_html, report_tables
from kronzo.pretrain.results import Results, read
from kronzo.pretrain.units import count, duration, nats, percent, rate, signed

PAGE = "report.html"
_WIDTH = 80


def write(out: Path) -> Path:
    """Write out/tables, out/figures and out/report.html from whatever the folder holds, and return the page.

    The page is one file that needs nothing else, not even a network. It names the runs that are missing or unfinished.

    Raises:
        InputError: the folder holds no plan of `kronzo reproduce`, or a file in it is damaged.
    """
    results = read(out)
    tables = report_tables.write(results, out / "tables")
    pictures = report_figures.write(results, out / "figures")
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
    lines += ["", _table(results), f"{len(against)} of {len(measured)} reported claims measured here do not agree:"]
    for claim in against:
        text = f"{claim.statement}: reported {claim.reported}, here {claim.here}"
        lines += textwrap.wrap(text, _WIDTH, initial_indent="- ", subsequent_indent="  ")
    lines += [f"! {text}" for text in results.incomplete]
    return "\n".join([*lines, f"report: {out / PAGE}"]) + "\n"


def _table(results: Results) -> str:
    """Final losses, lowest first."""
    frame = report_tables.losses(results).sort_values("val_loss", kind="stable")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Validation loss, nats a token", title_style="")
    table.add_column("run")
    for name in ("lr", "steps", "tokens", "tok-fwds", "s/step", "val loss", "-unigram", "moved"):
        table.add_column(name, justify="right")
    for _, row in frame.iterrows():
        amounts = [count(row[name]) for name in ("steps", "tokens", "token_forwards")]
        found = [nats(row["val_loss"]), signed(row["minus_unigram"]), percent(row["acceptance_rate"])]
        table.add_row(row["label"], rate(row["lr"]), *amounts, duration(row["seconds_per_step"]), *found)
    for name in ("unigram", "bigram", "uniform"):
        table.add_row(name, *[""] * 5, nats(results.line(name)), "", "", style="dim")
    with io.StringIO() as file:
        Console(file=file, width=_WIDTH, color_system=None).print(table)
        return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
