"""Recorders for training loops that others own: transformers' Trainer and Lightning. Imported only when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spectra.errors import InputError
from spectra.hooks import GradientRecorder

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from transformers import TrainerCallback


def trainer_callback(**options: Any) -> TrainerCallback:
    """Return a callback that records spectra in any transformers.Trainer run (extra hf).

    The recorder starts when training starts, at the step that the Trainer resumes from, and ends with it; it is the
    `recorder` of the callback.

    Args:
        options: those of GradientRecorder but model, optimizer, start_step and split_half.

    Raises:
        InputError: split_half, which needs the gradient between the last backward and the clipping.
    """
    from transformers import TrainerCallback

    if options.get("split_half") is not None:
        raise InputError(
            "split_half in a Trainer, which clips before a callback sees the last micro-batch; use spectra.snapshot"
        )

    class SpectraCallback(TrainerCallback):
        """Starts and ends a GradientRecorder with the training."""

        recorder: GradientRecorder | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            start = int(state.global_step)
            self.recorder = GradientRecorder(given["model"], given["optimizer"], start_step=start, **options).start()

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return SpectraCallback()


def lightning_callback(**options: Any) -> Callback:
    """Return a callback that records spectra in any Lightning fit (extra lightning), of the first optimizer.

    Lightning runs backward inside the closure of the optimizer's step: the record is read after it.

    Args:
        options: those of GradientRecorder but model, optimizer and start_step.
    """
    from lightning.pytorch import Callback

    class SpectraCallback(Callback):
        """Starts and ends a GradientRecorder with the fit."""

        recorder: GradientRecorder | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            start = int(trainer.global_step)
            self.recorder = GradientRecorder(pl_module, trainer.optimizers[0], start_step=start, **options).start()

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._close()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._close()

        def _close(self) -> None:
            if self.recorder is not None:
                self.recorder.close()

    return SpectraCallback()
