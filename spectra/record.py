"""From one gradient to one record: the only pass over it, and everything that is kept of it."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from spectra import metrics, null
from spectra.layers import Layer, epsilon
from spectra.schema import RANKS, Record
from spectra.svd import largest_entry, singular_values

CROSS_VALUES = 16
"""Leading directions of the first half whose cross-validated values are kept."""


@cache
def chance(rows: int, cols: int) -> dict[str, float]:
    """Return what a matrix of independent normal numbers of that shape shows in every rank: the chance value."""
    numbers = metrics.compute(null.chance_values(rows, cols), (rows, cols))
    return {f"chance_{name}": numbers[name] for name in RANKS}


def head(layer: Layer, tensor: Tensor, quantity: str = "gradient") -> Record:
    """Return what a record says of a tensor before looking at its numbers."""
    rows, cols = layer.matrix_shape
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "part": "",
        "quantity": quantity,
        "rows": rows,
        "cols": cols,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "orientation": layer.orientation,
    }


def missing(layer: Layer, status: str) -> Record:
    """Return the record of a layer that has no gradient at this step."""
    rows, cols = layer.matrix_shape
    where = {"layer": layer.name, "kind": layer.kind, "part": "", "quantity": "gradient", "rows": rows, "cols": cols}
    return {**where, "status": status}


def numbers(
    matrix: Tensor, dtype: torch.dtype, scale: float = 1.0, noise: Tensor | None = None, tokens: int = 0
) -> Record:
    """Return status, spectrum, metrics and nulls of one matrix whose true value is matrix / scale."""
    peak = largest_entry(matrix)
    if not math.isfinite(peak):
        return {"status": "non-finite", "nonfinite": int((~torch.isfinite(matrix)).sum())}
    found = singular_values(matrix)
    values = found.values / scale
    record: Record = {
        "status": "ok" if peak > 0 else "zero",
        "nonfinite": 0,
        "method": found.method,
        "error": found.error,
        "values": values,
        **metrics.compute(values, found.shape, epsilon(dtype)),
        **chance(*found.shape),
    }
    if noise is not None and math.isfinite(largest_entry(noise)):
        record |= _nulls(values, singular_values(noise).values / scale, found.shape, tokens)
        # With S = matrix and N = noise the mean gradients of the halves are S + N and S - N.
        count = min(CROSS_VALUES, *found.shape)
        record["cross_values"] = null.cross_values(matrix + noise, matrix - noise, count) / scale
    return record


def _nulls(values: null.Float, noise: null.Float, shape: tuple[int, int], tokens: int) -> Record:
    beside = metrics.compute(noise, shape)
    signal = null.signal_energy(values, noise)
    return {
        "noise_values": noise,
        "edge_rank": float(null.edge_rank(values, noise)),
        "weyl_rank": float(null.weyl_rank(values, noise)),
        "signal_energy": signal,
        "noise_scale": null.noise_scale(2 - signal, tokens / 2, 1.0, tokens).batch_size if tokens else None,
        **{f"noise_{name}": beside[name] for name in RANKS},
    }


def analyse(
    layer: Layer, gradient: Tensor, half: Tensor | None = None, scale: float = 1.0, tokens: int = 0
) -> list[Record]:
    """Return the records of one gradient: the whole matrix and, for a fused projection, q, k and v.

    Args:
        layer: where it belongs.
        gradient: of the parameter's shape; read, never changed.
        half: the accumulated gradient of the first half of the micro-batches, so that gradient - half is the second's.
        scale: loss scale still in the gradient; it is divided out of the values.
        tokens: tokens in the gradient, the unit of the noise scale; 0 when they were not counted.
    """
    whole = layer.matrix(gradient)
    noise = None if half is None else layer.matrix(half).mul(2).sub_(whole)
    common = head(layer, gradient) | {"scale": scale}
    if layer.kind == "embedding":
        common["zero_rows"] = int((whole.count_nonzero(dim=1) == 0).sum())
    records = [common | numbers(whole, gradient.dtype, scale, noise, tokens)]
    noises = dict(layer.parts(noise)) if noise is not None else {}
    for part, block in layer.parts(whole):
        where = {"layer": f"{layer.name}[{part}]", "part": part, "rows": block.shape[0], "cols": block.shape[1]}
        records.append(common | where | numbers(block, gradient.dtype, scale, noises.get(part), tokens))
    return records
