"""A finished or growing set of records, read back: frames and values, from a folder or from memory."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from spectra.errors import InputError, nearest
from spectra.schema import LAGS, SCALARS, SCHEMA, VALUES, conform

Float = NDArray[np.float64]

RECENT = 32
"""Parts whose values are kept in memory after they were read: 0.3 MB each for GPT-2 small."""


@dataclass(frozen=True)
class Part:
    """The records of steps first..last: a parquet file, or a table in memory."""

    first: int
    last: int
    source: Path | pa.Table

    def read(self, columns: list[str]) -> pa.Table:
        """Return some columns.

        Raises:
            InputError: the file is damaged; it is named.
        """
        if isinstance(self.source, pa.Table):
            return self.source.select(columns)
        try:
            with pq.ParquetFile(self.source) as file:
                return conform(file.read([name for name in columns if name in file.schema_arrow.names]), columns)
        except (OSError, pa.ArrowException) as error:
            raise InputError(
                f"part {self.source.name} cannot be read ({type(error).__name__}); it is skipped"
            ) from error


@dataclass
class Run:
    """Spectra over training: what `spectra.open`, `spectra.snapshot` and `GradientRecorder.run` return.

    Attributes:
        parts: where the records are.
        manifest: model inventory, settings, versions.
        problems: one sentence for every part that could not be read.
    """

    parts: list[Part]
    manifest: dict[str, Any]
    problems: list[str] = field(default_factory=list)
    _cache: dict[tuple[int, str], pa.Table] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """A tidy frame, a row per (step, layer): `spectra.schema.SCALARS`, without the lists of values.

        Fused attention projections have a row for the whole (`part` "") and one each for q, k, v, whose layer is
        "NAME[q]". Sorted by step, in the order of the model's layers within one.
        """
        frame = self._read(SCALARS).to_pandas()
        for name in ("tokens", "micro_batches", "nonfinite", "zero_rows"):
            frame[name] = frame[name].astype("Int64")
        return frame

    @cached_property
    def steps(self) -> list[int]:
        """The captured steps, ascending."""
        return sorted(int(step) for step in self.frame["step"].unique())

    @cached_property
    def layers(self) -> list[str]:
        """The layers, in the order of the model."""
        return [str(name) for name in self.frame["layer"].unique()]

    def values(self, step: int, layer: str, quantity: str = "gradient") -> Float:
        """Return the singular values of one layer at one step: 1-D, float64 (stored as float32), descending.

        Raises:
            InputError: no such step or layer (the nearest is suggested), or no values (non-finite, no gradient).
        """
        return self._list("values", step, layer, quantity)

    def noise_values(self, step: int, layer: str, quantity: str = "gradient") -> Float:
        """Return the singular values of the split-half difference N = (G_A - G_B) / 2, the null of `values`.

        Raises:
            InputError: as for `values`, or the run was recorded without `split_half`.
        """
        return self._list("noise_values", step, layer, quantity)

    def cross_values(self, step: int, layer: str, quantity: str = "gradient") -> Float:
        """Return the cross-validated values u_i(G_A)^T G_B v_i(G_A): the signal along each direction, signed.

        Raises:
            InputError: as for `noise_values`.
        """
        return self._list("cross_values", step, layer, quantity)

    def gradients(self, parts: bool = False) -> pd.DataFrame:
        """Return the rows of `frame` that hold a gradient spectrum, whole matrices only unless `parts`."""
        frame = self.frame
        keep = (frame["quantity"] == "gradient") & frame["status"].isin(["ok", "zero"])
        return frame[keep & (frame["part"] == "")] if not parts else frame[keep]

    @property
    def lags(self) -> pd.DataFrame:
        """How leading subspaces moved, a row per (layer, step, earlier step): recorded with also=["lags"].

        Columns step, layer, lag (steps since the earlier capture), overlap (of the leading subspaces), captured (energy
        of the gradient in the earlier subspace), chance (k / p, of both).
        """
        table = self._read(["step", "layer", "quantity", "lag_chance", *LAGS])
        frame = table.filter(pc.equal(table["quantity"], "lags")).to_pandas().explode(LAGS, ignore_index=True)
        frame = frame.dropna(subset=LAGS)
        return pd.DataFrame(
            {
                "step": frame["step"],
                "layer": frame["layer"],
                "lag": frame["step"] - frame["lag_steps"].astype("int64"),
                "overlap": frame["lag_overlap"].astype(float),
                "captured": frame["lag_captured"].astype(float),
                "chance": frame["lag_chance"],
            }
        )

    def _read(self, columns: list[str]) -> pa.Table:
        """Return some columns of every part that can be read; the others are reported."""
        tables = [pa.schema([SCHEMA.field(name) for name in columns]).empty_table()]
        for part in self.parts:
            try:
                tables.append(part.read(columns))
            except InputError as error:
                self._report(str(error))
        return pa.concat_tables(tables)

    def _list(self, column: str, step: int, layer: str, quantity: str) -> Float:
        if layer not in self.layers:
            raise InputError(f"unknown layer {layer!r}; {nearest(layer, self.layers)}")
        if step not in self.steps:
            raise InputError(f"step {step} was not captured; captured steps: {_brief(self.steps)}")
        for part in self.parts:
            if part.first <= step <= part.last:
                table = self._recent(part, column)
                chosen = pc.and_(pc.equal(table["step"], step), pc.equal(table["layer"], layer))
                rows = table.filter(pc.and_(chosen, pc.equal(table["quantity"], quantity)))[column].drop_null()
                if len(rows):
                    return pc.list_flatten(rows).to_numpy().astype(np.float64)
        raise InputError(f"{layer} has no {column} at step {step} ({self._why(step, layer, quantity, column)})")

    def _recent(self, part: Part, column: str) -> pa.Table:
        """Return the keys and one list column of a part, the last `RECENT` of them from memory."""
        key = (part.first, column)
        if key not in self._cache:
            if len(self._cache) >= RECENT:
                del self._cache[next(iter(self._cache))]
            self._cache[key] = part.read(["step", "layer", "quantity", column])
        return self._cache[key]

    def _why(self, step: int, layer: str, quantity: str, column: str) -> str:
        frame = self.frame
        row = frame[(frame["step"] == step) & (frame["layer"] == layer) & (frame["quantity"] == quantity)]
        if row.empty:
            return f"quantity {quantity!r} was not recorded"
        status = str(row["status"].iloc[0])
        return "recorded without split_half" if status == "ok" and column in VALUES[1:] else status

    def _report(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)
            warnings.warn(problem, stacklevel=3)

    def __repr__(self) -> str:
        return f"Run({len(self.layers)} layers, {len(self.steps)} captures, steps {_brief(self.steps)})"

    def _repr_html_(self) -> str:
        from spectra.html import notebook

        return notebook(self)


def _brief(numbers: Sequence[int]) -> str:
    """Return the numbers, the middle left out when they are many."""
    if len(numbers) <= 8:
        return ", ".join(map(str, numbers)) or "(none)"
    return f"{', '.join(map(str, numbers[:4]))}, ..., {numbers[-1]}"
