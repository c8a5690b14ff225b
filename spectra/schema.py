"""What one record holds: the columns of a part, in the order in which they are stored and shown."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spectra.metrics import METRICS, NORMS

VERSION = 1
"""Schema version of the parts; a store with a higher one is refused, one with a lower one is read."""

RANKS = [name for name in METRICS if name not in NORMS] + ["numerical_rank"]
NULLS = ["edge_rank", "weyl_rank", "signal_energy", "noise_scale", "lag_chance"]
BESIDE = [f"{null}_{name}" for name in RANKS for null in ("noise", "chance")]
"""Columns of the nulls: the same rank of the half-difference, and of a Gaussian matrix of the shape."""

VALUES = ["values", "noise_values", "cross_values"]
LAGS = ["lag_steps", "lag_overlap", "lag_captured"]
LISTS = [*VALUES, *LAGS]

SCHEMA = pa.schema(
    [
        pa.field("step", pa.int64()),
        pa.field("layer", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("part", pa.string()),
        pa.field("quantity", pa.string()),
        pa.field("rows", pa.int64()),
        pa.field("cols", pa.int64()),
        pa.field("tokens", pa.int64()),
        pa.field("micro_batches", pa.int64()),
        pa.field("status", pa.string()),
        pa.field("nonfinite", pa.int64()),
        pa.field("zero_rows", pa.int64()),
        pa.field("dtype", pa.string()),
        pa.field("orientation", pa.string()),
        pa.field("clip_factor", pa.float64()),
        pa.field("scale", pa.float64()),
        pa.field("method", pa.string()),
        pa.field("error", pa.float64()),
        *[pa.field(name, pa.float64()) for name in [*METRICS, "numerical_rank", *BESIDE, *NULLS]],
        *[pa.field(name, pa.list_(pa.float32())) for name in VALUES],
        pa.field("lag_steps", pa.list_(pa.int64())),
        *[pa.field(name, pa.list_(pa.float32())) for name in LAGS[1:]],
    ]
)

SCALARS = [name for name in SCHEMA.names if name not in LISTS]
"""The columns of `Run.frame`: everything but the lists of values."""

Record = dict[str, Any]
"""One row: column name -> value; a missing column is null."""


def to_table(records: list[Record]) -> pa.Table:
    """Return the records as an arrow table of the schema."""
    return pa.Table.from_pylist(records, schema=SCHEMA)


def conform(table: pa.Table, columns: list[str]) -> pa.Table:
    """Return the columns of a table written by this or an older version; what it lacks is null."""
    arrays = [
        table[name] if name in table.column_names else pa.nulls(len(table), SCHEMA.field(name).type) for name in columns
    ]
    return pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in columns]))
