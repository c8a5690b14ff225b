"""The coordinates of a step's directions, in memory that is taken once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from kronzo.layout import Section
from kronzo.noise import Noise
from kronzo.transfer import shipped


class Coordinates:
    """X_i of the directions of the present step: drawn on the CPU, kept while there is room, drawn again when not.

    All memory is taken at construction, none between the forwards of a step.

    Args:
        sections: where coordinates lie, see `kronzo.layout.Section`.
        slots: how many directions are kept, at least one.
    """

    def __init__(self, sections: Sequence[Section], slots: int) -> None:
        self._sections, self._slots = sections, slots
        self._banks = [s.move.new_empty(slots, s.move.numel()) for s in sections]
        self._held: OrderedDict[int, int] = OrderedDict()

    def begin(self, noise: Noise) -> None:
        """Start a step: its noise draws what is asked for from now on."""
        self._noise = noise
        self._held.clear()

    def __getitem__(self, i: int) -> list[Tensor]:
        """The coordinates of direction i: a flat tensor a section, to be read before the next call."""
        if i in self._held:
            self._held.move_to_end(i)
        else:
            full = len(self._held) == self._slots
            slot = self._held.popitem(last=False)[1] if full else len(self._held)
            self._draw(i, [bank[slot] for bank in self._banks])
            self._held[i] = slot
        return [bank[self._held[i]] for bank in self._banks]

    def _draw(self, i: int, rows: list[Tensor]) -> None:
        """Fill the rows of direction i: by numpy in place where they are float32 on the CPU, else by a copy."""
        plain = [row.device.type == "cpu" and row.dtype == torch.float32 for row in rows]
        flat = [r.numpy() if easy else np.empty(r.numel(), np.float32) for r, easy in zip(rows, plain, strict=True)]
        self._noise.coordinates(
            i, {k: x[span] for section, x in zip(self._sections, flat) for k, span in section.spans.items()}
        )
        for row, easy, x in zip(rows, plain, flat, strict=True):
            if not easy:
                row.copy_(shipped(torch.from_numpy(x), row.device, row.dtype))
