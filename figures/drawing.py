"""What a figure is: a pure function of data, the numbers it draws, a caption filled from the data, and its files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from spectra import report, style

ROOT = Path(__file__).resolve().parent
DATA, OUT, SMOKE = ROOT / "data", ROOT / "out", ROOT / "smoke"
SUFFIXES = (".csv", ".txt", ".png", ".pdf", ".md")


@dataclass(frozen=True)
class Drawing:
    """A figure, or a table when it has no `make`.

    Attributes:
        name: of its files, "fig3" or "table4".
        data: names of the parquet files it is a function of, in the order of the arguments.
        table: data -> the numbers. Of a figure: columns pane, series, x, y, low, high, a row a point, in the order in
            which they are drawn; NaN where a line has no band, x or y NaN for a line across the whole pane.
        caption: data -> the caption.
        make: data -> the figure.
    """

    name: str
    data: tuple[str, ...]
    table: Callable[..., pd.DataFrame]
    caption: Callable[..., str]
    make: Callable[..., Figure] | None = None


@dataclass(frozen=True)
class Files:
    """The files of one drawing in a folder."""

    folder: Path
    name: str

    def path(self, suffix: str) -> Path:
        """Return NAME.suffix in the folder."""
        return self.folder / f"{self.name}{suffix}"

    def read_table(self) -> pd.DataFrame:
        """Return the committed numbers."""
        return pd.read_csv(self.path(".csv"), keep_default_na=False, na_values=[""])

    def digest(self) -> str:
        """Return the first 16 digits of the sha256 of the committed numbers: pictures carry it."""
        return hashlib.sha256(self.path(".csv").read_bytes()).hexdigest()[:16]


def suffixes(drawing: Drawing) -> tuple[str, ...]:
    """Return the suffixes of the files that a drawing has."""
    return (".csv", ".txt", ".png", ".pdf") if drawing.make else (".csv", ".txt", ".md")


def draw(drawing: Drawing, frames: list[pd.DataFrame], folder: Path) -> list[Path]:
    """Write everything of a drawing and return the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files, table = Files(folder, drawing.name), drawing.table(*frames)
    table.to_csv(files.path(".csv"), index=False, lineterminator="\n")
    files.path(".txt").write_text(drawing.caption(*frames) + "\n", encoding="utf-8")
    if drawing.make is None:
        files.path(".md").write_text(report.markdown(table), encoding="utf-8")
    else:
        style.save(drawing.make(*frames), files.path(""), about=f"numbers {files.digest()}")
    return [files.path(suffix) for suffix in suffixes(drawing)]
