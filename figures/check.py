"""`python -m figures --check`: data, tables, captions and pictures agree."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image

from figures import store
from figures.drawing import SUFFIXES, Drawing, Files, suffixes
from figures.readback import TOLERANCE, differences

_COUNT = re.compile(r"\bn = (\d+)")


def check(drawing: Drawing, frames: list[pd.DataFrame], folder: Path) -> list[str]:
    """Return a sentence for everything about a drawing that does not agree with its data.

    Args:
        drawing: what to check.
        frames: its data, as committed.
        folder: where its files are.
    """
    files = Files(folder, drawing.name)
    lacking = [suffix for suffix in suffixes(drawing) if not files.path(suffix).is_file()]
    if lacking:
        return [
            f"{drawing.name}: no {drawing.name}{lacking[0]} in {folder.name}; run python -m figures {drawing.name}."
        ]
    found = [problem for name, frame in zip(drawing.data, frames) for problem in store.problems(name, frame)]
    if found:
        return found
    committed = files.read_table()
    found = [] if same(committed, drawing.table(*frames)) else ["the committed table is not that of the data."]
    found += _caption(files.path(".txt").read_text(encoding="utf-8").strip(), drawing.caption(*frames))
    if drawing.make is not None:
        found += differences(drawing.make(*frames), committed) + _pictures(files)
    return [f"{drawing.name}: {problem}" for problem in found]


def same(one: pd.DataFrame, other: pd.DataFrame, tolerance: float = TOLERANCE) -> bool:
    """Whether two tables have the same columns, words and, within a relative tolerance, numbers."""
    if list(one.columns) != list(other.columns) or len(one) != len(other):
        return False
    return all(_same_column(one[name], other[name], tolerance) for name in one)


def _same_column(one: pd.Series, other: pd.Series, tolerance: float) -> bool:
    try:
        left, right = one.astype(float), other.astype(float)
    except (TypeError, ValueError):
        return one.fillna("").astype(str).tolist() == other.fillna("").astype(str).tolist()
    return bool(np.allclose(left, right, rtol=tolerance, atol=0, equal_nan=True))


def _caption(committed: str, current: str) -> list[str]:
    said, true = _COUNT.findall(committed), _COUNT.findall(current)
    if said != true:
        return [f"the caption says n = {', '.join(said) or 'nothing'}, the data have n = {', '.join(true)}."]
    return [] if committed == current else ["the committed caption is not that of the data."]


def _pictures(files: Files) -> list[str]:
    """Whether both pictures were drawn from the committed numbers."""
    about = f"numbers {files.digest()}"
    with Image.open(files.path(".png")) as image:
        png = image.info.get("Description")
    stale = [".png"] if png != about else []
    if about.encode() not in files.path(".pdf").read_bytes():
        stale.append(".pdf")
    return [f"{files.name}{suffix} was drawn from other numbers; draw it again." for suffix in stale]


def strays(drawings: Iterable[Drawing], folder: Path) -> list[str]:
    """Return a sentence for every file in the folder that no drawing with data makes."""
    known = {f"{drawing.name}{suffix}" for drawing in drawings for suffix in suffixes(drawing)}
    there = sorted(path.name for path in folder.glob("*") if path.suffix in SUFFIXES)
    return [
        f"{name}: nothing in figures makes it from committed data; remove it." for name in there if name not in known
    ]
