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
from spectra.micro import MicroBatches, present
from spectra.overhead import Meter, Overhead
from spectra.provenance import describe
from spectra.record import analyse, missing
from spectra.run import Part, Run
from spectra.schedule import Every, schedule
from spectra.schema import Record, to_table
from spectra.store import Store, open_run
from spectra.streaming import Stream
from spectra.wrappers import closure_of, in_process_group, innermost, is_main_process, with_closure


class NoGradients(InputError):
    """The one error of an analysis that stops a training: it would record nothing, and says what to change."""


class GradientRecorder:
    """Record the singular values of every layer's gradient at chosen optimizer steps.

    Around a training loop::

        with spectra.GradientRecorder(model, optimizer, every=50, store="spectra") as rec:
            train as usual
        rec.run.frame

    With an optimizer the gradients are read once per captured step, in its step pre-hook: after accumulation, clipping,
    unscaling and DistributedDataParallel's all-reduce. A step that is given a closure is read after the closure's first
    evaluation; a fused optimizer under GradScaler has its loss scale divided out and its overflowing steps left out.
    Without an optimizer call `rec.step()` after backward. Gradients are read on the spot and never changed, nothing
    runs between captures.

    Step t is the t-th call of optimizer.step() counted from 0: its gradient is that of the weights after t updates.

    Args:
        model: any module; torch.compile and DistributedDataParallel may wrap it. Sharded ones are refused.
        optimizer: any torch.optim.Optimizer, or None.
        every: an interval, the steps themselves, or a callable step -> bool; `spectra.logarithmic` makes a list.
        layers: a glob over parameter names, a kind ("attention"), a list of them, or a callable (name, parameter) ->
            bool.
        store: folder for the records (`spectra.open` reads it), or None to keep them in memory.
        split_half: K, the even number of micro-batches per step: the half-difference of their gradients is the noise
            null. Needs `micro_batch()` after each backward, in every process, and one copy of the captured gradients.
        start_step: the number of the next step in a resumed run; records of this and later steps are replaced.
        also: quantities recorded beside the gradient: "kronecker", "lags", "momentum", "update", "weight_change" (see
            `spectra.beside.Beside`). What compares with earlier captures starts anew in a resumed run, with a warning.
        streaming: for an optimizer that steps inside backward and leaves no gradients: the number of backward passes in
            a step, usually 1. Gradients are read as they are accumulated; call `rec.step()` after backward, and start
            the recorder before the optimizer is hooked to the parameters. Without optimizer, also and split_half.

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
        streaming: int | None = None,
    ) -> None:
        self._model = model
        self._optimizer = innermost(optimizer)
        self._due = schedule(every)
        self._layers = layers
        self._folder = None if store is None else Path(store)
        self._micro = MicroBatches(split_half)
        self._split_half = split_half
        self._beside = Beside(also, self._optimizer)
        self._stream = None if streaming is None else Stream(streaming)
        if streaming is not None and (optimizer is not None or also or split_half is not None):
            raise InputError("streaming reads gradients inside backward; leave optimizer, also and split_half out")
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
    def due(self) -> bool:
        """Whether the optimizer step to come is captured."""
        return self._live and self._due(self._next_step)

    def weights(self) -> list[tuple[Layer, nn.Parameter]]:
        """Return the parameters whose gradients are captured, as the model is now."""
        return [(layer, parameter) for layer, parameter in inventory(self._model, self._layers) if not layer.reason]

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
        self._beside.say_what_starts_anew(self._next_step)
        if self._folder is not None and is_main_process():
            self._store = Store(self._folder, self._next_step, self._manifest())
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(self._before_step))
            if self._beside.after_step:
                self._handles.append(self._optimizer.register_step_post_hook(self._after_step))
        if self._stream is not None and is_main_process():
            self._handles += self._stream.attach(self.weights(), lambda: self.due, self._read_one)
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

    def micro_batch(self, tokens: int | None = None, norm: float | None = None) -> None:
        """Say that a backward is done: counts tokens, and keeps the first half's gradient for `split_half`.

        Args:
            tokens: tokens (or examples) in this micro-batch of this process.
            norm: joint norm of the captured gradients right after this backward, when they were clipped since.
        """
        self._micro.add(tokens or 0)
        # A process whose recording has ended still takes part, or the others would wait for it.
        live = self._live or (self.error is not None and in_process_group())
        if live and self._due(self._next_step) and (is_main_process() or self._split_half is not None):
            with torch.no_grad():
                self._micro.observe(self.weights(), norm)

    @torch.compiler.disable
    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        closure = closure_of(args, kwargs)
        if closure is not None:
            return with_closure(args, kwargs, self._watched(closure))
        found_inf = getattr(optimizer, "found_inf", None)
        if found_inf is not None and float(found_inf) > 0:
            self._micro.clear()
            return None
        scale = getattr(optimizer, "grad_scale", None)
        self._capture(self._next_step, 1.0 if scale is None else float(scale))
        self._advance()
        return None

    def _watched(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return the closure, captured after its first evaluation: only then do the gradients of this step exist."""
        seen = False

        def watched() -> Any:
            nonlocal seen
            loss = closure()
            if not seen:
                seen = True
                self._capture(self._next_step, 1.0)
                self._next_step += 1
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
            added = [record | {"step": step} for record in self._beside.at_weights(self.weights())]
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
        except NoGradients:
            raise
        except Exception as error:
            self.error = error
            warnings.warn(f"spectra stopped recording at step {step}: {type(error).__name__}: {error}", stacklevel=4)
            self.close()

    def _records(self, step: int, scale: float) -> list[Record]:
        self._refresh_inventory([layer for layer, _ in inventory(self._model, self._layers)])
        weights = self.weights()
        gradients = present(weights)
        streamed = self._stream.take() if self._stream is not None else {}
        if not gradients and not streamed:
            self._no_gradients(step, len(weights))
        factor, tokens = self._micro.factor(gradients), self._micro.tokens
        halves = self._micro.halves(step, factor)
        records: list[Record] = []
        for layer, weight in weights:
            if layer.name in streamed:
                records += streamed[layer.name]
            elif weight.grad is None or self._stream is not None:
                records.append(missing(layer, "no gradient"))
            else:
                records += analyse(layer, weight.grad, halves.get(layer.name), scale, tokens)
        records += self._beside.at_gradient(step, gradients, weights, scale)
        counted = {
            "step": step,
            "tokens": tokens or None,
            "micro_batches": self._micro.count or None,
            "clip_factor": factor,
        }
        return [record | counted for record in records]

    def _read_one(self, layer: Layer, gradient: Tensor) -> list[Record]:
        """Return the records of a gradient inside backward; none once the analysis has failed."""
        records: list[Record] = []
        with self._guarded(self._next_step):
            records = analyse(layer, gradient)
        return records

    def _no_gradients(self, step: int, selected: int) -> None:
        message = (
            f"step {step}: none of the {selected} selected parameters has a gradient; spectra are read after "
            "backward() and before zero_grad(); pass the model in training and its optimizer, or call rec.step()"
        )
        if self.overhead.captures == 0:
            raise NoGradients(message)
        warnings.warn(message, stacklevel=2)

    def _keep(self, step: int, records: list[Record]) -> None:
        if self._store is not None:
            self._store.append(step, records)
            return
        self._parts.append(Part(step, step, to_table(records)))

    def _refresh_inventory(self, layers: list[Layer]) -> None:
        if layers != self._inventory:
            self._inventory = layers
            if self._store is not None:
                self._store.write_manifest(self._manifest())

    def _manifest(self) -> dict[str, Any]:
        return describe(self._model, self._inventory, self._settings)
