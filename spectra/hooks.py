"""Capture gradients while any torch model trains, without changing the training by a bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spectra.beside import Beside
from spectra.errors import InputError
from spectra.layers import Layer, Selection, inventory
from spectra.micro import MicroBatches
from spectra.overhead import Meter, Overhead
from spectra.provenance import describe
from spectra.record import analyse, missing
from spectra.run import Part, Run
from spectra.schedule import Every, schedule
from spectra.schema import Record, to_table
from spectra.store import Store, open_run
from spectra.wrappers import innermost, is_main_process


class GradientRecorder:
    """Record the singular values of every layer's gradient at chosen optimizer steps.

        with spectra.GradientRecorder(model, optimizer, every=50, store="spectra") as rec:
            train as usual
        rec.run.frame

    With an optimizer the gradients are read once per captured step, in its step pre-hook: after accumulation, clipping,
    unscaling and DistributedDataParallel's all-reduce. A step that is given a closure is read after the closure's first
    evaluation; a fused optimizer under GradScaler has its loss scale divided out and its overflowing steps left out.
    Without an optimizer call `rec.step()` after backward. Gradients are read on the spot and never copied or changed,
    nothing runs between captures, and the hook of the optimizer is the only thing attached to anything.

    Step t is the t-th call of optimizer.step() counted from 0: its gradient is that of the weights after t updates.

    Args:
        model: any module; torch.compile and DistributedDataParallel may wrap it. Sharded ones are refused.
        optimizer: any torch.optim.Optimizer, or None.
        every: an interval, the steps themselves, or a callable step -> bool; `spectra.logarithmic` makes a list.
        layers: a glob over parameter names, a kind ("attention"), a list of them, or a callable (name, parameter) ->
            bool.
        store: folder for the records (`spectra.open` reads it), or None to keep them in memory.
        split_half: K, the even number of micro-batches per step: the half-difference of their gradients is the noise
            null. Needs `micro_batch()` after each backward, one copy of the captured gradients, one process.
        start_step: the number of the next step in a resumed run; records of this and later steps are replaced.
        also: quantities recorded beside the gradient: "kronecker", "lags", "momentum", "update", "weight_change" (see
            `spectra.beside.Beside`). What compares with earlier captures starts anew in a resumed run.

    Raises:
        InputError: at once for bad arguments, sharded parameters and unusable folders; at the first captured step when
            no layer has a gradient.

    Cost: per capture 2 m n p flops per layer (2 to 4 s for all of GPT-2 small on 2 cores) and 13 MB; between captures a
    comparison. An error inside the analysis warns and ends the recording; the training goes on.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        every: Every = 50,
        layers: Selection = "*",
        store: str | Path | None = None,
        split_half: int | None = None,
        start_step: int = 0,
        also: Sequence[str] = (),
    ) -> None:
        self._model = model
        self._optimizer = innermost(optimizer)
        self._due = schedule(every)
        self._layers = layers
        self._folder = None if store is None else Path(store)
        self._micro = MicroBatches(split_half)
        self._split_half = split_half
        self._beside = Beside(also, self._optimizer)
        self._pending: list[Record] = []
        self._settings = {"every": repr(every), "layers": repr(layers), "split_half": split_half}
        if start_step < 0:
            raise InputError(f"start_step={start_step}; steps count from 0; pass the number of the next optimizer step")
        self._next_step = start_step
        self._inventory = [layer for layer, _ in inventory(model, layers)]
        self._store: Store | None = None
        self._parts: list[Part] = []
        self._handles: list[Any] = []
        self._live = False
        self.error: Exception | None = None
        """What ended the recording early, for a loop that would rather stop than go on without."""
        self._meter = Meter()

    @property
    def next_step(self) -> int:
        """The number of the optimizer step to come."""
        return self._next_step

    @property
    def run(self) -> Run:
        """What was recorded so far: the same Run as `spectra.open(store)`, in memory when there is no store."""
        return Run(list(self._parts), self._manifest()) if self._folder is None else open_run(self._folder)

    @property
    def overhead(self) -> Overhead:
        """What the recorder cost so far."""
        return self._meter.overhead

    def start(self) -> Self:
        """Open the store and hook the optimizer; `with rec:` does it. A recorder can be started again after `close`.

        Raises:
            InputError: already started, or the folder is foreign, unwritable or has a live recorder.
        """
        if self._live:
            raise InputError("the recorder is already started; one start is enough; use it as a context manager")
        if self._folder is not None and is_main_process():
            self._store = Store(self._folder, self._next_step, self._manifest())
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(self._before_step))
            if self._beside.after_step:
                self._handles.append(self._optimizer.register_step_post_hook(self._after_step))
        self._live, self._meter = True, Meter()
        return self

    def close(self) -> None:
        """Remove the hook and release the store; the records stay readable through `run`."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._store is not None:
            self._store.close()
            self._store = None
        self._live = False

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def step(self) -> None:
        """Count a step and capture it when due: for training without an optimizer object, after backward.

        Raises:
            InputError: the recorder has an optimizer, or is not started.
        """
        if self._optimizer is not None:
            raise InputError(
                "rec.step() with an optimizer, whose own step is hooked; leave the call or the optimizer out"
            )
        if not self._live:
            raise InputError("rec.step() on a recorder that is not started; use it inside `with rec:`")
        self._capture(self._next_step, 1.0)
        self._advance()

    def micro_batch(self, tokens: int | None = None) -> None:
        """Say that a backward is done: counts tokens, and keeps the first half's gradient for `split_half`.

        Args:
            tokens: tokens (or examples) in this micro-batch.
        """
        self._micro.add(tokens or 0)
        if self._live and self._due(self._next_step) and is_main_process():
            self._micro.observe(self._gradients())

    @torch.compiler.disable
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = self._next_step
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is not None:
            self._next_step += 1
            watched = self._watched(closure, step)
            return (
                ((*args[:1], watched, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": watched})
            )
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf) > 0:
            self._micro.clear()
            return None
        scale = getattr(optimizer, "grad_scale", None)
        self._capture(step, 1.0 if scale is None else float(scale))
        self._advance()
        return None

    def _watched(self, closure: Callable[[], Any], step: int) -> Callable[[], Any]:
        """Return the closure, captured after its first evaluation: only then do the gradients of this step exist."""
        seen = False

        def watched() -> Any:
            nonlocal seen
            loss = closure()
            if not seen:
                seen = True
                self._capture(step, 1.0)
                self._micro.clear()
            return loss

        return watched

    def _advance(self) -> None:
        self._next_step += 1
        self._micro.clear()

    @torch.compiler.disable
    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._pending:
            return
        step, records = self._next_step - 1, self._pending
        with self._guarded(step):
            weights = [(layer, p) for layer, p in inventory(self._model, self._layers) if not layer.reason]
            added = [record | {"step": step} for record in self._beside.at_weights(weights)]
            self._keep(step, records + added)
        self._pending = []

    def _capture(self, step: int, scale: float) -> None:
        if not (self._live and self._due(step) and is_main_process()):
            return
        with self._guarded(step):
            records = self._records(step, scale)
            if self._beside.after_step:
                self._pending = records
            else:
                self._keep(step, records)
        self._meter.count()

    @contextmanager
    def _guarded(self, step: int) -> Iterator[None]:
        """Analyse without autograd and against the clock; a failure ends the recording, never the training."""
        try:
            with self._meter.running(), torch.no_grad():
                yield
        except InputError:
            raise
        except Exception as error:
            self.error = error
            warnings.warn(f"spectra stopped recording at step {step}: {type(error).__name__}: {error}", stacklevel=4)
            self.close()

    def _gradients(self) -> list[tuple[Layer, Tensor]]:
        pairs = [(layer, parameter.grad) for layer, parameter in inventory(self._model, self._layers)]
        return [(layer, g) for layer, g in pairs if not layer.reason and g is not None]

    def _records(self, step: int, scale: float) -> list[Record]:
        found = inventory(self._model, self._layers)
        self._refresh_inventory([layer for layer, _ in found])
        weights = [(layer, parameter) for layer, parameter in found if not layer.reason]
        pairs = [(layer, parameter.grad) for layer, parameter in weights]
        present = [(layer, g) for layer, g in pairs if g is not None]
        if not present:
            self._no_gradients(step, len(pairs))
        factor, tokens = self._micro.factor(present), self._micro.tokens
        halves = self._halves(step, factor)
        records: list[Record] = []
        for layer, g in pairs:
            if g is None:
                records.append(missing(layer, "no gradient"))
            else:
                records += analyse(layer, g, halves.get(layer.name), scale, tokens)
        records += self._beside.at_gradient(step, present, weights, scale)
        counted = {
            "step": step,
            "tokens": tokens or None,
            "micro_batches": self._micro.count or None,
            "clip_factor": factor,
        }
        return [record | counted for record in records]

    def _halves(self, step: int, factor: float | None) -> dict[str, Tensor]:
        if self._split_half is not None and self._micro.count != self._split_half:
            warnings.warn(
                f"step {step} saw {self._micro.count} micro-batches, split_half={self._split_half} needs as many; "
                "the step has no noise null; call rec.micro_batch() after each backward",
                stacklevel=2,
            )
        return self._micro.halves(factor)

    def _no_gradients(self, step: int, selected: int) -> None:
        message = (
            f"step {step}: none of the {selected} selected parameters has a gradient; spectra are read after "
            "backward() and before zero_grad(); pass the model in training and its optimizer, or call rec.step()"
        )
        if self.overhead.captures == 0:
            raise InputError(message)
        warnings.warn(message, stacklevel=2)

    def _keep(self, step: int, records: list[Record]) -> None:
        if self._store is not None:
            self._store.append(step, records)
            return
        self._parts = [part for part in self._parts if part.first != step]
        self._parts.append(Part(step, step, to_table(records)))

    def _refresh_inventory(self, layers: list[Layer]) -> None:
        if layers != self._inventory:
            self._inventory = layers
            if self._store is not None:
                self._store.write_manifest(self._manifest())

    def _manifest(self) -> dict[str, Any]:
        return describe(self._model, self._inventory, self._settings)
