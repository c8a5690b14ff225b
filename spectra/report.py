"""The report of a run: the same numbers as frames, text, markdown, csv, json and html."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from spectra.errors import InputError, nearest
from spectra.run import Run
from spectra.tables import kinds, stages, table
from spectra.terminal import text

__all__ = ["FORMATS", "kinds", "markdown", "render", "stages", "table", "text"]

FORMATS = ("table", "markdown", "csv", "json", "html")


def markdown(frame: pd.DataFrame) -> str:
    """Return a frame as a markdown table, numbers with four significant digits."""
    cells = [[_cell(value) for value in row] for row in frame.itertuples(index=False)]
    numeric = [pd.api.types.is_numeric_dtype(kind) for kind in frame.dtypes]
    rule = ["---:" if right else "---" for right in numeric]
    head = [str(name).replace("_", " ") for name in frame.columns]
    return "".join(f"| {' | '.join(row)} |\n" for row in [head, rule, *cells])


def _cell(value: object) -> str:
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value).replace("|", "\\|")


def render(
    run: Run,
    format: str = "table",
    layer: str | None = None,
    step: int | None = None,
    metric: str | Sequence[str] | None = None,
    sort: str | None = None,
) -> str:
    """Return the report in one of `FORMATS`; the same numbers in each. Arguments as for `table`.

    Raises:
        InputError: unknown format, or as for `table`.
    """
    if format not in FORMATS:
        raise InputError(f"unknown format {format!r}; {nearest(format, FORMATS)}")
    if format == "table":
        return text(run, layer, step, metric, sort)
    if format == "html":
        from spectra.html import page

        return page(run)
    frame = table(run, layer, step, metric, sort)
    if format == "markdown":
        return markdown(frame)
    if format == "csv":
        return str(frame.to_csv(index=False, lineterminator="\n"))
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return json.dumps({"stages": frame.attrs["stages"], "layers": records}, indent=1, default=float) + "\n"
