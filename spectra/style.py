"""One look for every figure: journal sizes, a colour-blind-safe palette, one colour and marker per name.

Colours are those of Okabe and Ito (2008). Whatever is drawn for a method or a layer kind uses `COLORS[name]` and
`MARKERS[name]`, in every figure, so that a reader learns them once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

COLUMN = 3.35
"""Width of one journal column, inches."""

PAGE = 6.9
"""Width of a page, inches."""

BLACK, ORANGE, SKY, GREEN = "#000000", "#E69F00", "#56B4E9", "#009E73"
YELLOW, BLUE, VERMILION, PURPLE, GREY = "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#7F7F7F"

COLORS = {
    "adamw": BLACK,
    "sgd": GREY,
    "kronzo-directional": BLUE,
    "kronzo-average": SKY,
    "lozo": VERMILION,
    "subzero": ORANGE,
    "tezo": PURPLE,
    "mezo": GREEN,
    "fzoo": "#8C6D00",
    "embedding": ORANGE,
    "attention": BLUE,
    "mlp": GREEN,
    "other": PURPLE,
    "noise": GREY,
    "chance": "#B0B0B0",
}

MARKERS = {
    "adamw": "o",
    "sgd": "x",
    "kronzo-directional": "s",
    "kronzo-average": "D",
    "lozo": "^",
    "subzero": "v",
    "tezo": "P",
    "mezo": "X",
    "fzoo": "*",
    "embedding": "o",
    "attention": "s",
    "mlp": "^",
    "other": "D",
}

RC: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "lines.linewidth": 1.2,
    "lines.markersize": 3.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "spectra",
}


@contextmanager
def journal() -> Iterator[None]:
    """Draw in the project's style inside the block; the caller's settings come back after it."""
    with mpl.rc_context(RC):
        yield


def save(figure: Figure, path: str | Path, about: str | None = None) -> list[Path]:
    """Write PATH.png and PATH.pdf with metadata that do not change from run to run, and return the two paths.

    `about` goes into both, as the PNG's Description and the PDF's Subject.
    """
    given = Path(path)
    stem = given.with_suffix("") if given.suffix in (".png", ".pdf") else given
    stem.parent.mkdir(parents=True, exist_ok=True)
    png, pdf = stem.with_name(stem.name + ".png"), stem.with_name(stem.name + ".pdf")
    with journal():
        figure.savefig(png, metadata={"Software": None} | ({"Description": about} if about else {}))
        figure.savefig(pdf, metadata={"CreationDate": None, "Producer": None, "Creator": None, "Subject": about})
    return [png, pdf]
