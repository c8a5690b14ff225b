"""Spectra of a model one already has: its gradient at fixed weights, with the split-half null."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sized
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from spectra.errors import InputError
from spectra.layers import Layer, Selection, inventory
from spectra.provenance import describe
from spectra.record import analyse, missing
from spectra.run import Part, Run
from spectra.schema import Record, to_table
from spectra.store import Store, open_run

Batch = TypeVar("Batch")
Sums = dict[str, Tensor]


def snapshot(
    model: nn.Module,
    loss_fn: Callable[[nn.Module, Batch], Tensor],
    batches: Iterable[Batch],
    layers: Selection = "*",
    tokens: int | None = None,
    step: int = 0,
    store: str | Path | None = None,
) -> Run:
    """Return the spectra of the mean gradient over some batches, with the nulls of its two halves.

    The batches of even and odd place form the halves. Weights, gradients already in `.grad`, training mode and hooks of
    the model stay as they are; dropout, if it is on, draws from the process's random stream.

    Args:
        model: any module that a GradientRecorder takes.
        loss_fn: (model, batch) -> scalar loss, a mean over the batch.
        batches: an even number of batches of equal size.
        layers: as for GradientRecorder.
        tokens: tokens in one batch, for the noise scale and the remarks.
        step: the step to file the records under: that of the checkpoint, say.
        store: folder to add the records to (later steps in it are replaced), or None for memory.

    Raises:
        InputError: fewer than two batches or an odd number, a loss that is not a finite scalar, no gradients.

    Cost: a forward and backward per batch, twice the captured gradients in memory, then as one capture with nulls.
    """
    if isinstance(batches, Sized) and (len(batches) < 2 or len(batches) % 2):
        raise InputError(
            f"{len(batches)} batches; the two halves need an even number of them, at least 2; leave one out"
        )
    sums: tuple[Sums, Sums] = ({}, {})
    count = 0
    for batch in batches:
        add_gradient(sums[count % 2], model, loss_fn, batch, layers)
        count += 1
    if count < 2 or count % 2:
        raise InputError(f"{count} batches; the two halves need an even number of them, at least 2; leave one out")
    found = [layer for layer, _ in inventory(model, layers)]
    records = [
        record | {"step": step, "tokens": tokens and tokens * count, "micro_batches": count}
        for layer in found
        if not layer.reason
        for record in _analyse(layer, sums, count, (tokens or 0) * count)
    ]
    settings = {"snapshot": True, "layers": repr(layers), "batches": count}
    manifest = describe(model, found, settings)
    if store is None:
        return Run([Part(step, step, to_table(records))], manifest)
    writer = Store(store, step, manifest)
    try:
        writer.append(step, records)
    finally:
        writer.close()
    return open_run(store)


def _analyse(layer: Layer, sums: tuple[Sums, Sums], count: int, tokens: int) -> list[Record]:
    first, second = sums[0].pop(layer.name, None), sums[1].pop(layer.name, None)
    if first is None or second is None:
        return [missing(layer, "no gradient")]
    half = first.div_(count)
    return analyse(layer, second.div_(count).add_(half), half, tokens=tokens)


def add_gradient(
    sums: Sums, model: nn.Module, loss_fn: Callable[[nn.Module, Batch], Tensor], batch: Batch, layers: Selection
) -> None:
    """Add the gradient of one batch, leaving what is in .grad where it is."""
    kept = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in kept:
            parameter.grad = None
        loss = loss_fn(model, batch)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not torch.isfinite(loss):
            raise InputError(
                f"loss_fn returned {_brief(loss)}; snapshot needs a finite scalar tensor; take the mean loss"
            )
        loss.backward()
        _collect(sums, model, layers)
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def _collect(sums: Sums, model: nn.Module, layers: Selection) -> None:
    captured = {
        layer.name: parameter.grad
        for layer, parameter in inventory(model, layers)
        if not layer.reason and parameter.grad is not None
    }
    if not captured:
        raise InputError("no selected parameter got a gradient; the loss must depend on them; check loss_fn and layers")
    for name, gradient in captured.items():
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        if name in sums:
            sums[name] += dense
        else:
            sums[name] = dense.clone()


def _brief(loss: object) -> str:
    return (
        f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) and loss.numel() != 1 else repr(loss)[:60]
    )
