"""Zeroth-order training in Lightning (extra lightning): put `ZeroOrderTraining` before a module of your own.

class Frugal(ZeroOrderTraining, MyModule): configure_optimizers returns a kronzo optimizer, the rest is as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor
from torch.optim import Optimizer

from kronzo.errors import InputError
from kronzo.optim import ZeroOrder

__all__ = ["ZeroOrderTraining"]


class ZeroOrderTraining(LightningModule):
    """A LightningModule whose training step measures losses by forwards instead of running a backward.

    A base class to name first: the next class gives `training_step`, which is called once for each forward of the step
    without gradients and returns the loss, or a mapping with "loss". Its `configure_optimizers` returns one
    `kronzo.ZeroOrder`, with a scheduler as Lightning takes them.

    Each batch of an accumulated one (`accumulate_grad_batches`) is measured along the same directions by
    `ZeroOrder.estimate`; where Lightning steps, their mean is applied. Loops, schedulers, checkpoints, resuming and
    precision "bf16-mixed" are Lightning's. There is no gradient: nothing is clipped, and the hooks around gradients
    (`on_after_backward`, `on_before_optimizer_step`) see none or are not called. What `training_step` logs is logged at
    each probe, so that an on_step value is the last probe's; `optimizer.last` has the loss at the weights.
    """

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Measure one batch.

        Returns:
            The loss at the weights (averaging: the mean of the two-sided losses), a 0-dim float32 tensor.

        Raises:
            InputError: the optimizer is not one `kronzo.ZeroOrder`, its data are split, fp16 scales the loss, or
                optimization is manual.
        """
        optimizer = self._zeroth_order()
        measure = super().training_step

        def closure() -> Any:
            found = measure(*args, **kwargs)
            return found.get("loss") if isinstance(found, Mapping) else found

        return optimizer.estimate(closure).to(self.device)

    def backward(self, loss: Tensor, *args: Any, **kwargs: Any) -> None:
        """There is none."""

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Measure the last batch, then apply what all batches since the last step have measured."""
        if optimizer_closure is not None:
            optimizer_closure()
        self._zeroth_order().step()

    def _zeroth_order(self) -> ZeroOrder:
        """The optimizer inside Lightning's wrapper; what cannot work is refused."""
        if not self.automatic_optimization:
            raise InputError(
                "ZeroOrderTraining with automatic_optimization=False: leave it on, or call step(closure) of a kronzo "
                "optimizer in your own training_step, without ZeroOrderTraining."
            )
        optimizer = self.optimizers(use_pl_optimizer=False)
        if not isinstance(optimizer, ZeroOrder):
            raise InputError(
                f"ZeroOrderTraining with {type(optimizer).__name__}: return one kronzo.KronZO(...), or any other "
                "kronzo.ZeroOrder, from configure_optimizers."
            )
        if optimizer.settings.data == "split":
            raise InputError('data="split" in Lightning, whose batches are not sliced: use data="shared".')
        if self.trainer.precision == "16-mixed":
            raise InputError(
                'precision="16-mixed" scales the loss for a backward that does not happen: use "bf16-mixed".'
            )
        return optimizer
