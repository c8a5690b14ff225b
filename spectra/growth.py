"""How the rank that stands out of the noise grows with the batch, beside controls whose rank is known.

A rank of one batch size says little: the signal shows more directions as noise falls. The gradient of b batches is
split into four quarters of mean gradients M_0..M_3. Their halves A = (M_0 + M_1) / 2 and B = (M_2 + M_3) / 2 give what
`spectra.null` compares. The differences E_A = (M_0 - M_1) / 2 and E_B = (M_2 - M_3) / 2 have the noise of the halves
and no signal, so P_k + E_A and P_k + E_B, with P_k the k leading directions of the gradient, are a gradient of rank k
in the very same noise: a control. Where the control does not read k, the gradient's rank cannot be trusted either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn

from spectra import null
from spectra.errors import InputError
from spectra.layers import Layer, Selection, inventory
from spectra.snapshots import Batch, Sums, add_gradient
from spectra.svd import largest_entry, singular_triplets, singular_values


def rank_growth(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Batch], Tensor],
    batches: Iterable[Batch],
    layers: Selection = "*",
    tokens: int = 1,
    planted: Sequence[int] = (1, 4, 16, 64),
    margin: float = null.MARGIN,
) -> pd.DataFrame:
    """Return Weyl and edge rank of every layer's gradient after 4, 8, 16, ... batches, with those of planted controls.

    Args:
        model: any module that a GradientRecorder takes; left as it is, as by `spectra.snapshot`.
        loss_fn: (model, batch) -> scalar loss, a mean over the batch.
        batches: at least 4, of equal size; those after the last power of two are not used.
        layers: as for GradientRecorder.
        tokens: tokens in one batch, the unit of the column `tokens`.
        planted: ranks of the controls; those above half the smaller side of a matrix are left out there.
        margin: of the Weyl rank.

    Returns:
        Columns layer, kind, rows, cols, tokens, planted (the control's true rank; missing for the gradient itself),
        weyl_rank, edge_rank.

    Raises:
        InputError: fewer than 4 batches, ranks below 1; as for `spectra.snapshot`.

    Cost: a forward and backward per batch, four times the captured gradients in memory; per layer and size as many
    spectra as controls and three more.
    """
    if any(k < 1 for k in planted):
        raise InputError(f"planted={list(planted)}; a control has rank 1 or more; pass for instance [1, 4, 16]")
    quarters: list[Sums] = [{}, {}, {}, {}]
    rows: list[dict[str, Any]] = []
    count = 0
    for count, batch in enumerate(batches, 1):
        add_gradient(quarters[(count - 1) % 4], model, loss_fn, batch, layers)
        if count >= 4 and count & (count - 1) == 0:
            found = [layer for layer, _ in inventory(model, layers) if not layer.reason]
            for layer in found:
                rows += _measured(layer, quarters, count, tokens, planted, margin)
    if count < 4:
        raise InputError(f"{count} batches; the controls need the differences of four quarters; pass 4, 8, 16, ...")
    frame = pd.DataFrame(rows)
    return frame.assign(planted=frame["planted"].astype("Int64"))


def _measured(
    layer: Layer, quarters: list[Sums], count: int, tokens: int, planted: Sequence[int], margin: float
) -> list[dict[str, Any]]:
    """Return the rows of one layer at one size; nothing where a gradient is missing, zero or not finite."""
    if any(layer.name not in sums for sums in quarters):
        return []
    means = [layer.matrix(sums[layer.name]).double() / (count / 4) for sums in quarters]
    first, second = (means[0] + means[1]) / 2, (means[2] + means[3]) / 2
    signal, noise = (first + second) / 2, (first - second) / 2
    if not 0 < largest_entry(signal) < float("inf"):
        return []
    first, second = (means[0] - means[1]) / 2, (means[2] - means[3]) / 2
    floor, other_noise = (first + second) / 2, (first - second) / 2
    common = {
        "layer": layer.name, "kind": layer.kind, "rows": signal.shape[0], "cols": signal.shape[1],
        "tokens": tokens * count,
    }  # fmt: skip
    rows = [common | {"planted": None} | _ranks(signal, singular_values(noise, "gram").values, margin)]
    ranks = [k for k in planted if k <= min(signal.shape) // 2]
    if ranks:
        top, control_noise = singular_triplets(signal, max(ranks)), singular_values(other_noise, "gram").values
    for k in ranks:
        plant = torch.from_numpy((top.u[:, :k] * top.values[:k]) @ top.v[:, :k].T)
        rows.append(common | {"planted": k} | _ranks(plant + floor, control_noise, margin))
    return rows


def _ranks(matrix: Tensor, noise: null.Float, margin: float) -> dict[str, int]:
    values = singular_values(matrix, "gram").values
    return {"weyl_rank": null.weyl_rank(values, noise, margin), "edge_rank": null.edge_rank(values, noise)}
