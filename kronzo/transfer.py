"""From the CPU, where factors are drawn, to the device where the weights are, without waiting for the device."""

from __future__ import annotations

import torch
from torch import Tensor

PINNED = ("cuda", "xpu")
"""Kinds of device whose transfers from pinned memory the host need not wait for."""


def shipped(x: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """A CPU tensor on `device` in `dtype`; `x` may be overwritten as soon as this returns where it was copied at all.

    To a GPU it goes by way of pinned memory (a second copy on the CPU, which torch's allocator holds until the
    transfer is over): from ordinary memory the copy would first wait for all that is queued on the device.
    """
    x = x.to(dtype)
    if device.type in PINNED:
        return x.pin_memory().to(device, non_blocking=True)
    return x.to(device)
