"""Recorders for training loops that others own: transformers' Trainer and Lightning. Imported only when asked for."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from spectra.errors import InputError
from spectra.hooks import GradientRecorder
from spectra.micro import BackwardNorm
from spectra.wrappers import in_process_group

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


def trainer_callback(tokens: int | None = None, **options: Any) -> TrainerCallback:
    """Return a `SpectraCallback`, which records spectra in any transformers.Trainer run (extra hf).

    The recorder starts when training starts, at the step that the Trainer resumes from, and ends with it; it is the
    `recorder` of the callback. The Trainer's gradient accumulation makes the micro-batches of `split_half`.

    Args:
        tokens: tokens of one micro-batch, for the records.
        options: those of GradientRecorder but model, optimizer and start_step.

    Raises:
        InputError: when training starts: split_half in several processes, whose clipping cannot be seen here.
    """
    return _trainer_class()(tokens, **options)


def __getattr__(name: str) -> Any:
    """Make the class `SpectraCallback` when it is asked for, as its base needs transformers."""
    if name == "SpectraCallback":
        return _trainer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def _trainer_class() -> Any:
    from transformers import TrainerCallback

    class SpectraCallback(TrainerCallback):
        """Starts and ends a GradientRecorder with the training, and announces the micro-batches of captured steps."""

        def __init__(self, tokens: int | None = None, **options: Any) -> None:
            self.recorder: GradientRecorder | None = None
            self._tokens, self._options = tokens, options
            self._norm: BackwardNorm | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self._options.get("split_half") is not None and in_process_group():
                raise InputError(
                    "split_half in a Trainer of several processes, which clips reduced gradients before a callback "
                    "sees them; use one process, or spectra.snapshot"
                )
            start = int(state.global_step)
            recorder = GradientRecorder(given["model"], given["optimizer"], start_step=start, **self._options)
            self.recorder = recorder.start()

        def on_step_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.recorder is not None and self.recorder.due and not in_process_group():
                self._norm = BackwardNorm(self.recorder.weights())

        def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.recorder is not None and self._norm is not None:
                self.recorder.micro_batch(self._tokens)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.recorder is not None and self._norm is not None:
                self.recorder.micro_batch(self._tokens, norm=self._norm.close())
                self._norm = None

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return SpectraCallback


def lightning_callback(tokens: int | None = None, **options: Any) -> Callback:
    """Return a callback that records spectra in any Lightning fit (extra lightning), of the first optimizer.

    Lightning runs backward inside the closure of the optimizer's step: the record is read after it. Its gradient
    accumulation makes the micro-batches of `split_half`.

    Args:
        tokens: tokens (or examples) of one micro-batch, for the records.
        options: those of GradientRecorder but model, optimizer and start_step.
    """
    from lightning.pytorch import Callback

    class SpectraCallback(Callback):
        """Starts and ends a GradientRecorder with the fit, and announces the micro-batches."""

        recorder: GradientRecorder | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            start = int(trainer.global_step)
            self.recorder = GradientRecorder(pl_module, trainer.optimizers[0], start_step=start, **options).start()

        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            if self.recorder is not None:
                self.recorder.micro_batch(tokens)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._close()

        def _close(self) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return SpectraCallback()
