"""The data of figures: small parquet files whose metadata say what made them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from figures.drawing import DATA
from kronzo.errors import InputError

REQUIRED = ("command", "config", "seeds", "corpus", "versions")
"""Keys that `frame.attrs` needs; README.md says what they hold."""

MAX_BYTES = 2_000_000
_ABSOLUTE = re.compile(r"(?<![\w:./])/(?:home|root|tmp|work|Users|private|mnt)/")


def write(name: str, frame: pd.DataFrame, folder: Path = DATA) -> Path:
    """Write a frame with its metadata as NAME.parquet and return the path.

    Raises:
        InputError: metadata are missing or name paths of this machine, or the file would be larger than 2 MB.
    """
    found = problems(name, frame)
    if found:
        raise InputError(found[0])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.parquet"
    frame.to_parquet(path, index=False, compression="zstd")
    if path.stat().st_size > MAX_BYTES:
        path.unlink()
        raise InputError(f"{name}: more than {MAX_BYTES} bytes; keep only the columns and rows that are drawn.")
    return path


def read(name: str, folder: Path = DATA) -> pd.DataFrame:
    """Return the data called `name`; `attrs` hold its metadata.

    Raises:
        InputError: it is not there.
    """
    path = folder / f"{name}.parquet"
    if not path.is_file():
        raise InputError(f"figures: no data {name!r} in {folder}; make it by python -m figures {name} --rerun.")
    return pd.read_parquet(path)


def problems(name: str, frame: pd.DataFrame) -> list[str]:
    """Return a sentence for everything that is wrong with the metadata of a frame."""
    about: Mapping[Any, Any] = frame.attrs
    found = [f"{name}: metadata lack {key}; give frame.attrs[{key!r}]." for key in REQUIRED if key not in about]
    if not found and not about["command"]:
        found.append(f"{name}: the metadata's command is empty; say what made the data.")
    if "seeds" in about and "seed" in frame:
        drawn, said = sorted(map(int, frame["seed"].unique())), sorted(map(int, about["seeds"]))
        if drawn != said:
            found.append(f"{name}: the data have the seeds {drawn}, the metadata say {said}.")
    if _ABSOLUTE.search(repr(about)):
        found.append(f"{name}: the metadata name a path of this machine; run with paths relative to the project.")
    return found
