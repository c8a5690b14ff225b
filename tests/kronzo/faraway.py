"""Steps on a device that holds no numbers: whatever would make the host wait for it is listed. Prints JSON.

The device is PrivateUse1 set up from Python, its tensors are fake: `.item()`, `bool()` and copies back raise, so a step
that asked for a number beyond the one read of the losses would not come to its end.
"""

import json
import sys

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

import kronzo
from kronzo import transfer
from kronzo.noise import BLOCK, Noise

DEVICE = "faraway"


class Module(_DummyBackendModule):
    """Its random state lies on the CPU, as CUDA's does."""

    def get_rng_state(self, device=None):
        return torch.zeros(16, dtype=torch.uint8)

    def set_rng_state(self, state, device=None):
        pass


class Waits(TorchDispatchMode):
    """Collects the copies between devices that the host waits for."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        if name == "_to_copy" and out.device != args[0].device and not kwargs.get("non_blocking"):
            self.found.append(f"{args[0].device} to {out.device}")
        if name == "copy_" and args[0].device != args[1].device and not (args[2:] or kwargs.get("non_blocking")):
            self.found.append(f"{args[1].device} into {args[0].device}")
        return out


def steps(method, dtype, keywords):
    """What two steps read and wait for, a refresh of the kept factors in between."""
    matrix = torch.nn.Parameter(torch.randn(24, 36, device=DEVICE, dtype=dtype))
    bias = torch.nn.Parameter(torch.randn(36, device=DEVICE, dtype=dtype))
    optimizer = kronzo.METHODS[method]([matrix, bias], lr=1e-3, directions=2, **keywords)
    x = torch.randn(5, 24, device=DEVICE, dtype=dtype)
    reads = []

    def read(numbers):
        reads.append(list(numbers.shape))
        return np.linspace(1.0, 1.1, numbers.numel()).reshape(numbers.shape).tolist()

    FakeTensor.tolist = read
    with Waits() as waits:
        for _ in range(2):
            optimizer.step(lambda: (x @ matrix + bias).float().square().mean())
    return {"reads": reads, "waits": waits.found}


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(DEVICE, Module())
    transfer.PINNED = (*transfer.PINNED, DEVICE)
    torch.Tensor.pin_memory = lambda self, device=None: self.clone()
    torch.Tensor.data_ptr = lambda self: id(self)
    Noise._device_block = lambda self, key, device: torch.randn(BLOCK, device=device)
    torch.set_grad_enabled(False)
    with FakeTensorMode(allow_non_fake_inputs=True):
        cases = json.loads(sys.argv[1])
        print(json.dumps([steps(name, getattr(torch, dtype), keywords) for name, dtype, keywords in cases]))
