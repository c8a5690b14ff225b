"""The only place where random numbers are drawn.

Every number is addressed, never consumed from a running stream: the words (purpose, step, direction, parameter, block)
become the spawn key of a `numpy.random.SeedSequence`, which keys a Philox generator (Salmon et al. 2011). Always five
words: numpy pads shorter keys with zeros, so keys of different lengths can collide. Whoever knows seed and address can
draw the same numbers again, on any device, in any chunking, in any order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum
from functools import cache
from threading import local
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from kronzo.transfer import shipped

Law = Literal["normal", "rademacher"]
Source = Literal["portable", "device"]
Scalar = float | Tensor
"""A Python number, or a 0-dim tensor that stays on its device."""

BLOCK = 2**16
"""Numbers a key: dense noise is addressed in blocks of this size, so that chunking cannot change it."""

_WORD = 2**32
_INIT_A, _MULT_A, _INIT_B, _MULT_B = 0x43B0D7E5, 0x931E8875, 0x8B51F9DD, 0x58F38DED
_MIX_LEFT, _MIX_RIGHT, _POOL = np.uint32(0xCA01F9DD), np.uint32(0x4973F715), 4


class Purpose(IntEnum):
    """First word of a key: what the numbers are for."""

    COORDINATES = 0
    KEPT = 1


def philox_keys(
    seed: int, purpose: Purpose, step: int, direction: int, parameters: Sequence[int], blocks: Sequence[int]
) -> np.ndarray:
    """Philox keys of many addresses at once, uint64 (addresses, 2).

    Row k is `SeedSequence(seed, spawn_key=(purpose, step, direction, parameters[k], blocks[k])).generate_state(2,
    uint64)` bit for bit. numpy mixes the first three words; its published mixing of one word into the pool is repeated
    here for the last two, because numpy itself takes 15 microseconds an address, more than a small layer's numbers.
    Cost: 50 microseconds and 0.2 an address.
    """
    pool = np.random.SeedSequence(seed, spawn_key=(int(purpose), step, direction)).pool[:, None]
    words = max(_POOL, -(-seed.bit_length() // 32)) + 3
    mixed = _POOL + _POOL * (_POOL - 1) + _POOL * (words - _POOL)
    for word in (parameters, blocks):
        constants = _powers(_INIT_A, _MULT_A, mixed)
        value = (np.asarray(word, np.uint32) ^ constants[:-1]) * constants[1:]
        value ^= value >> np.uint32(16)
        pool = _MIX_LEFT * pool - _MIX_RIGHT * value
        pool ^= pool >> np.uint32(16)
        mixed += _POOL
    constants = _powers(_INIT_B, _MULT_B, 0)
    out = (pool ^ constants[:-1]) * constants[1:]
    out ^= out >> np.uint32(16)
    return np.ascontiguousarray(out.T).view("<u8")


@cache
def _powers(first: int, factor: int, skip: int) -> np.ndarray:
    """Powers first * factor^k for k = skip .. skip + 4 modulo 2^32, a column."""
    return np.array([[first * pow(factor, skip + k, _WORD) % _WORD] for k in range(_POOL + 1)], np.uint32)


class _Stream:
    """One generator that jumps from key to key (1 microsecond, against 15 for a new one)."""

    def __init__(self) -> None:
        self._philox = np.random.Philox(key=0)
        self._start: Any = self._philox.state
        self._rng = np.random.Generator(self._philox)

    def fill(self, out: np.ndarray, key: np.ndarray, law: Law) -> None:
        """Fill a float32 array with unit-variance numbers of the given law from the start of a key's stream."""
        self._start["state"]["key"] = key
        self._philox.state = self._start
        if law == "normal":
            self._rng.standard_normal(dtype=np.float32, out=out)
        else:
            raw = self._philox.random_raw(-(-out.size // 64)).astype("<u8", copy=False)
            bits = np.unpackbits(raw.view(np.uint8), count=out.size)
            np.multiply(bits.reshape(out.shape), 2, out=out, casting="unsafe")
            np.subtract(out, 1, out=out)


_here = local()


def _stream() -> _Stream:
    """The generator of this thread."""
    if not hasattr(_here, "stream"):
        _here.stream = _Stream()
    stream: _Stream = _here.stream
    return stream


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
        key = np.random.SeedSequence(self.seed, spawn_key=(int(Purpose.KEPT), self.step, 0, parameter, factor))
        _stream().fill(out, key.generate_state(2, np.uint64), "normal")
        return torch.from_numpy(out)

    def coordinates(self, direction: int, outs: Mapping[int, np.ndarray]) -> None:
        """Fill the coordinates X of one direction: a flat float32 array for each parameter index."""
        parameters = list(outs)
        keys = philox_keys(self.seed, Purpose.COORDINATES, self.step, direction, parameters, [0] * len(parameters))
        stream = _stream()
        for key, out in zip(keys, outs.values(), strict=True):
            stream.fill(out, key, self.law)

    def add_dense_(self, out: Tensor, terms: Mapping[int, Scalar], parameter: int, start: int) -> None:
        """Out += sum of scale * z_direction[start : start + out.numel()], block by block.

        `out` is flat, float32 or float64. One pass over `out`; each thread holds one block of 2^16 numbers. On the CPU
        the blocks are shared out over torch's threads: numpy draws without Python's lock. `no_grad` ends at a thread's
        border, so they work on a detached view.
        """
        out = out.detach()
        blocks = range(start // BLOCK, -(-(start + out.numel()) // BLOCK))
        keys = {d: philox_keys(self.seed, Purpose.COORDINATES, self.step, d, [parameter], blocks) for d in terms}
        if self.source == "device" and out.device.type != "cpu":
            for direction, scale in terms.items():
                for block, key in zip(blocks, keys[direction], strict=True):
                    z, part = _overlap(self._device_block(key, out.device), out, block, start)
                    part.add_(z * scale)
            return

        def add(block: int) -> None:
            stream, z = _stream(), np.empty(min(BLOCK, start + out.numel() - block * BLOCK), np.float32)
            for direction, scale in terms.items():
                stream.fill(z, keys[direction][block - blocks.start], self.law)
                _add_scaled(*_overlap(torch.from_numpy(z), out, block, start), scale)

        if len(blocks) == 1 or torch.get_num_threads() == 1:
            for block in blocks:
                add(block)
        else:
            list(_workers(torch.get_num_threads()).map(add, blocks))

    def _device_block(self, key: np.ndarray, device: torch.device) -> Tensor:
        rng = torch.Generator(device).manual_seed(int(key[0] >> np.uint64(1)))
        if self.law == "normal":
            return torch.randn(BLOCK, generator=rng, device=device)
        return torch.randint(0, 2, (BLOCK,), generator=rng, device=device).float() * 2 - 1


@cache
def _workers(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="kronzo-noise")


def _overlap(z: Tensor, out: Tensor, block: int, start: int) -> tuple[Tensor, Tensor]:
    """The numbers of a block that fall into `out`, which begins at `start`, and where they go."""
    low, high = max(start, block * BLOCK), min(start + out.numel(), (block + 1) * BLOCK)
    return z[low - block * BLOCK : high - block * BLOCK], out[low - start : high - start]


def _add_scaled(z: Tensor, part: Tensor, scale: Scalar) -> None:
    """Part += scale * z with the product rounded before the sum, as stored coordinates are; z may be overwritten."""
    if part.device.type != "cpu":
        part.add_(shipped(z, part.device, part.dtype) * scale)
        return
    numbers, target = z.numpy(), part.numpy()
    same = numbers if numbers.dtype == target.dtype else None
    target += np.multiply(numbers, target.dtype.type(float(scale)), out=same)
