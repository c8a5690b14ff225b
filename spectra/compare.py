"""Two runs side by side, and matrices that come from a file instead of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from spectra import metrics
from spectra.errors import InputError, nearest
from spectra.labels import DEFAULT, LABELS, known_metrics
from spectra.layers import epsilon
from spectra.run import Run
from spectra.svd import singular_values
from spectra.tables import select
from spectra.terminal import number, shorten

SUFFIXES = (".npy", ".npz", ".pt", ".safetensors")
DIFF_METRICS = ("spectral_norm", "stable_rank", "participation_ratio", "energy_rank_90")


def compare(first: Run, second: Run, metric: str | Sequence[str] | None = None) -> pd.DataFrame:
    """Return the last captures of two runs, a row per layer of either.

    Args:
        first: one run.
        second: the other.
        metric: which metrics; `DIFF_METRICS` by default.

    Returns:
        Columns layer, then for each metric "METRIC first", "METRIC second" and "METRIC ratio" (second / first); NaN
        where a run lacks the layer. `attrs["steps"]` holds the two steps.

    Raises:
        InputError: a run without spectra, unknown metric, or no layer in common.
    """
    names = known_metrics(metric, DIFF_METRICS)
    frames = [select(run) for run in (first, second)]
    steps = [int(frame["step"].max()) for frame in frames]
    left, right = (f[f["step"] == at].set_index("layer") for f, at in zip(frames, steps, strict=True))
    layers = [*left.index, *(name for name in right.index if name not in left.index)]
    if not left.index.intersection(right.index).size:
        raise InputError(f"the runs have no layer in common ({left.index[0]} ... against {right.index[0]} ...)")
    result = pd.DataFrame({"layer": layers})
    for name in names:
        one, two = left[name].reindex(layers).to_numpy(), right[name].reindex(layers).to_numpy()
        with np.errstate(divide="ignore", invalid="ignore"):
            columns = {"first": one, "second": two, "ratio": two / one}
        result = result.assign(**{f"{name} {label}": column for label, column in columns.items()})
    result.attrs.update(steps=steps, metrics=names)
    return result


def text(frame: pd.DataFrame, width: int = 80) -> str:
    """Return `compare`'s frame for a terminal, three metrics a block."""
    names = frame.attrs["metrics"]
    lines = [f"first: step {frame.attrs['steps'][0]}, second: step {frame.attrs['steps'][1]}, x: second / first"]
    for start in range(0, len(names), 3):
        block = names[start : start + 3]
        room = width - 19 * len(block)
        labels = shorten(frame["layer"].tolist(), room)
        lines += ["", " " * room + "".join(f"{LABELS[name].column:>19}" for name in block)]
        lines.append(" " * room + f"{'first':>7}{'second':>7}{'x':>5}" * len(block))
        for label, (_, row) in zip(labels, frame.iterrows(), strict=True):
            cells = [[number(row[f"{name} {column}"]) for column in ("first", "second", "ratio")] for name in block]
            lines.append(f"{label:<{room}}" + "".join(f"{a:>7}{b:>7}{ratio:>5}" for a, b, ratio in cells))
    return "\n".join(lines) + "\n"


def load_matrices(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of everything with two dimensions or more in a file; nothing in it is executed.

    Raises:
        InputError: no such file, another kind of file, a damaged one, or one that is not plain tensors.
    """
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path} is not a matrix file; spectra matrix reads {', '.join(SUFFIXES)}; convert it first")
    if not path.is_file():
        raise InputError(f"{path} does not exist; spectra matrix reads {', '.join(SUFFIXES)}; check the path")
    try:
        loaded = _load(path)
    except Exception as error:
        raise InputError(
            f"{path} cannot be read ({type(error).__name__}: {str(error).splitlines()[0][:80]})"
        ) from error
    yield from _tensors("", loaded)


def _load(path: Path) -> Any:
    if path.suffix == ".npy":
        return {path.stem: np.load(path, allow_pickle=False)}
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    if path.suffix == ".pt":
        return torch.load(path, map_location="cpu", weights_only=True)
    from safetensors.torch import load_file

    return load_file(path)


def _tensors(name: str, loaded: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(loaded, (torch.Tensor, np.ndarray)):
        floating = loaded.dtype.is_floating_point if isinstance(loaded, torch.Tensor) else loaded.dtype.kind == "f"
        if loaded.ndim > 1 and floating:
            yield name or "matrix", loaded
    elif isinstance(loaded, dict):
        for key, value in loaded.items():
            yield from _tensors(f"{name}.{key}" if name else str(key), value)


def file_spectra(path: Path, key: str | None = None, method: str = "auto") -> pd.DataFrame:
    """Return a row per matrix of a file: name, shape, method, error and every metric.

    Args:
        path: .npy, .npz, .pt (plain tensors) or .safetensors.
        key: glob over the names in it.
        method: as for `singular_values`.

    Raises:
        InputError: an unreadable file, no matrix in it, or no name that matches.
    """
    found = dict(load_matrices(path))
    if not found:
        raise InputError(f"{path} holds no floating-point matrix; spectra need two dimensions; check the file")
    chosen = [name for name in found if key is None or fnmatchcase(name, key)]
    if not chosen:
        raise InputError(f"no matrix matches {key!r}; {nearest(str(key), found)}")
    rows = []
    for name in chosen:
        tensor = torch.as_tensor(found[name])
        spectrum = singular_values(tensor, method)
        shape = f"{spectrum.shape[0]}x{spectrum.shape[1]}"
        numbers = metrics.compute(spectrum.values, spectrum.shape, epsilon(tensor.dtype))
        rows.append({"name": name, "shape": shape, "method": spectrum.method, "error": spectrum.error, **numbers})
    return pd.DataFrame(rows)


def matrices_text(frame: pd.DataFrame, width: int = 80) -> str:
    """Return `file_spectra`'s frame for a terminal."""
    room = width - 8 * len(DEFAULT) - 12
    lines = [f"{'matrix':<{room}}{'shape':>12}" + "".join(f"{LABELS[name].column:>8}" for name in DEFAULT)]
    for label, (_, row) in zip(shorten(frame["name"].tolist(), room - 1), frame.iterrows(), strict=True):
        cells = "".join(f"{f'{row[name]:.3g}':>8}" for name in DEFAULT)
        lines.append(f"{label:<{room}}{row['shape']:>12}{cells}")
    return "\n".join(lines) + "\n"
