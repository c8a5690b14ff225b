"""The only place where random numbers are drawn.

Every number is addressed, never consumed from a running stream: the words (purpose, step, direction, parameter, block)
become the spawn key of a `numpy.random.SeedSequence`, which keys a Philox generator (Salmon et al. 2011). Always five
words: numpy pads shorter keys with zeros, so keys of different lengths can collide. Whoever knows seed and address can
draw the same numbers again, on any device, in any chunking, in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Law = Literal["normal", "rademacher"]
Source = Literal["portable", "device"]
Scalar = float | Tensor
"""A Python number, or a 0-dim tensor that stays on its device."""

BLOCK = 2**16
"""Numbers a key: dense noise is addressed in blocks of this size, so that chunking cannot change it."""


class Purpose(IntEnum):
    """First word of a key: what the numbers are for."""

    COORDINATES = 0
    KEPT = 1


def generator(
    seed: int, purpose: Purpose, step: int, direction: int, parameter: int, block: int
) -> np.random.Generator:
    """The generator at one address (20 microseconds)."""
    key = (int(purpose), step, direction, parameter, block)
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def fill(out: np.ndarray, rng: np.random.Generator, law: Law = "normal") -> None:
    """Fill a float32 array with unit-variance numbers of the given law."""
    if law == "normal":
        rng.standard_normal(dtype=np.float32, out=out)
    else:
        bits = np.unpackbits(np.frombuffer(rng.bytes((out.size + 7) // 8), np.uint8), count=out.size)
        out[...] = bits.astype(np.float32).reshape(out.shape) * 2 - 1


class Noise:
    """The draws of one optimizer step.

    Args:
        seed: the optimizer's seed.
        step: the step's number; part of every key.
        law: law of the coordinates; kept factors are always normal.
        source: "portable" draws dense blocks on the CPU, equal everywhere; "device" lets the parameter's own device
            draw them, which is faster there and equal only on the same kind of device.
    """

    def __init__(self, seed: int, step: int, law: Law = "normal", source: Source = "portable") -> None:
        self.seed, self.step, self.law, self.source = seed, step, law, source

    def kept(self, parameter: int, factor: int, shape: Sequence[int]) -> Tensor:
        """A kept factor's standard normals, float32 on the CPU; `factor` tells the factors of one parameter apart."""
        out = np.empty(tuple(shape), np.float32)
        fill(out, generator(self.seed, Purpose.KEPT, self.step, 0, parameter, factor))
        return torch.from_numpy(out)

    def coordinates(self, direction: int, parameter: int, out: np.ndarray) -> None:
        """Fill a flat float32 array with the coordinates X of one direction of one parameter."""
        fill(out, generator(self.seed, Purpose.COORDINATES, self.step, direction, parameter, 0), self.law)

    def block(self, direction: int, parameter: int, block: int, size: int, device: torch.device) -> Tensor:
        """The first `size` numbers (at most BLOCK) of a block of dense noise, flat float32 on `device`."""
        if self.source == "device":
            return self._device_block(direction, parameter, block, size, device)
        out = np.empty(size, np.float32)
        fill(out, generator(self.seed, Purpose.COORDINATES, self.step, direction, parameter, block), self.law)
        return torch.from_numpy(out).to(device)

    def _device_block(self, direction: int, parameter: int, block: int, size: int, device: torch.device) -> Tensor:
        key = (int(Purpose.COORDINATES), self.step, direction, parameter, block)
        word = np.random.SeedSequence(self.seed, spawn_key=key).generate_state(1, np.uint64)[0]
        rng = torch.Generator(device).manual_seed(int(word >> np.uint64(1)))
        if self.law == "normal":
            return torch.randn(BLOCK, generator=rng, device=device)[:size]
        return torch.randint(0, 2, (BLOCK,), generator=rng, device=device)[:size].float() * 2 - 1

    def add_dense_(self, out: Tensor, terms: Sequence[tuple[int, Scalar]], parameter: int, start: int) -> None:
        """Out += sum of scale * z_direction[start : start + out.numel()], block by block.

        `out` is flat. One pass over `out`; a block of each direction is all that exists at a time.
        """
        stop = start + out.numel()
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            low, high = max(start, block * BLOCK), min(stop, (block + 1) * BLOCK)
            for direction, scale in terms:
                z = self.block(direction, parameter, block, high - block * BLOCK, out.device)[low - block * BLOCK :]
                part = out[low - start : high - start]
                if isinstance(scale, Tensor):
                    part.add_(z * scale.to(z.device))
                else:
                    part.add_(z, alpha=scale)
