"""Zeroth-order training in transformers' Trainer, and GPT-2 weights both ways (extra hf).

ZeroOrderTrainer(model=model, args=args, train_dataset=data, optimizers=(kronzo.KronZO(...), None)).train()
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer

from kronzo.errors import InputError
from kronzo.integrations.hf_weights import export, from_transformers, load, to_transformers
from kronzo.optim import ZeroOrder

__all__ = ["ZeroOrderTrainer", "export", "from_transformers", "load", "lora_remark", "to_transformers"]


class ZeroOrderTrainer(Trainer):
    """transformers.Trainer whose training step measures losses by forwards instead of running a backward.

    Only `training_step` differs. Each micro-batch of an accumulated batch is measured along the same directions by
    `ZeroOrder.estimate`; the Trainer's own call of `optimizer.step()` then applies their mean. Schedulers, logging,
    evaluation, saving and resuming are the Trainer's. There is no gradient to clip: max_grad_norm is set to 0.

    Give the optimizer as `optimizers=(kronzo.KronZO(...), None)`; the scheduler of the arguments is used where none is
    given. `self.optimizer.optimizer.last` is the report of the last step.
    """

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """Measure one micro-batch.

        Returns:
            Its share of the mean loss of the batch, a 0-dim float32 tensor, as Trainer's own step does.

        Raises:
            InputError: the optimizer is not a `kronzo.ZeroOrder`, its data are split, or fp16 scales the loss.
        """
        optimizer = self._zeroth_order()
        model.train()
        inputs = self._prepare_inputs(inputs)
        parts = self.current_gradient_accumulation_steps
        given = getattr(self, "loss_is_scaled_for_ga", None)
        of_whole_batch = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        scale = parts if (of_whole_batch or self.compute_loss_func is not None if given is None else given) else 1

        def closure() -> Tensor:
            with torch.no_grad(), self.compute_loss_context_manager():
                loss: Any = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            return loss.detach().mean() * scale

        return optimizer.estimate(closure).to(self.args.device) / parts

    def _zeroth_order(self) -> ZeroOrder:
        """The optimizer inside accelerate's wrapper; what cannot work is refused, and said where it is odd."""
        optimizer: Any = self.optimizer
        while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
            optimizer = optimizer.optimizer
        if not isinstance(optimizer, ZeroOrder):
            raise InputError(
                f"ZeroOrderTrainer with {type(optimizer).__name__}: pass optimizers=(kronzo.KronZO(...), None), or any "
                "other kronzo.ZeroOrder."
            )
        if optimizer.settings.data == "split":
            raise InputError('data="split" in a Trainer, whose batches are not sliced: use data="shared".')
        if self.args.fp16:
            raise InputError("fp16=True scales the loss for a backward that does not happen: use bf16=True or neither.")
        self.args.max_grad_norm = 0.0
        remark = lora_remark(self.model) if self.state.global_step == 0 else None
        if remark:
            warnings.warn(remark, stacklevel=3)
        return optimizer


def lora_remark(model: Any) -> str | None:
    """What to know of a LoRA model whose B is still zero, as peft starts it; None for any other model.

    The product B A does not change with A then: the gradient of A is zero, so is its spectrum, and a zeroth-order step
    moves A by noise alone until B has moved.
    """
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    for name, tensor in tensors.items():
        partner = name.replace("lora_B", "lora_A")
        if "lora_B" in name and partner in tensors and tensors[partner].requires_grad and not tensor.any():
            return (
                f"{name} is zero, as LoRA starts: the gradient of lora_A is zero, and steps move lora_A by noise alone "
                "until lora_B has moved; freeze lora_A, or start lora_B with small random numbers."
            )
    return None
