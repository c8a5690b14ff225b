"""Steps shared by the processes of torch.distributed: nothing but scalars crosses the wire.

Ranks stand in a grid of shards x slots. Every slot of a shard sees the same batch and measures its own share of the
directions; every shard sees its own share of the batch. `parallel="data"` is one slot, "directions" one shard, a number
k has k slots. All ranks gather all measurements and compute the same step from them in the same order, so that weights
that were equal to the bit stay so, whatever the backend's order of summing.
"""

from __future__ import annotations

import atexit
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from kronzo.errors import InputError
from kronzo.layout import Restore, name_of
from kronzo.sharded import group_of, rows_of

if TYPE_CHECKING:
    from kronzo.rules import Rule
    from kronzo.settings import Settings

Parallel = Literal["data", "directions"] | int | None
_SAME_BATCH = {torch.float64: 1e-5, torch.float32: 1e-5}
"""Largest relative difference between losses of one batch on two machines, by the format of the loss; else 1e-2."""
_LINGER = 0.1
"""Seconds."""


def world() -> tuple[int, int]:
    """(rank, number of processes); (0, 1) without torch.distributed, which is then not touched."""
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


@cache
def _let_go_at_exit() -> None:
    """Have Python wait a moment before it ends: gloo's threads drop the tensors of a collective after it is over.

    They need Python's lock for it, and asking for the lock while Python takes itself down aborts the process: a program
    that ended right after its last step did so (`terminate called without an active exception`) now and then. Known to
    torch as issue 190489.
    """
    atexit.register(time.sleep, _LINGER)


def gather(values: Sequence[float] | Tensor, dtype: torch.dtype = torch.float64, group: Any = None) -> Tensor:
    """Every rank's numbers, as many on each: (ranks, numbers) on the CPU or, by NCCL, on this rank's GPU."""
    on_gpu = torch.distributed.get_backend(group) == "nccl"
    if not on_gpu:
        _let_go_at_exit()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    mine = torch.as_tensor(values, dtype=dtype).to(device).contiguous()
    everyones = torch.empty(torch.distributed.get_world_size(group), mine.numel(), dtype=dtype, device=device)
    torch.distributed.all_gather(list(everyones), mine.view(-1), group=group)
    return everyones


def together(values: Sequence[float]) -> list[list[float]]:
    """Every rank's numbers, a list a rank; in a single process just these."""
    if world()[1] == 1:
        return [list(values)]
    found: list[list[float]] = gather(list(values)).tolist()
    return found


def checksums(parameters: Sequence[Tensor]) -> list[int]:
    """The sum of each tensor's bits as whole numbers, modulo 2^64: equal for equal bits, on every device.

    Of a sharded one the sum over its ranks, which must all ask.
    """
    words = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    rows = [rows_of(p)[0].detach() for p in parameters]
    sums = [int(p.view(words[p.element_size()]).sum(dtype=torch.int64)) for p in rows]
    groups = [group_of(p) for p in parameters]
    for group in dict.fromkeys(group for group in groups if group is not None):
        places = [k for k, other in enumerate(groups) if other is group]
        joined = gather(torch.tensor([sums[k] for k in places], dtype=torch.int64), torch.int64, group).sum(0)
        for k, value in zip(places, joined.tolist(), strict=True):
            sums[k] = value
    return sums


@dataclass
class Team:
    """This process among the others, for one step.

    Args:
        rank: this process.
        shards: ranks among which the batch is divided.
        slots: ranks among which the directions are divided.
        directions: q of the whole step.
        restore: the restore mode; ranks that visit different probes must leave from a snapshot to round alike.
        weight: of this rank's share of the batch in the mean, e.g. its number of rows.
    """

    rank: int
    shards: int
    slots: int
    directions: int
    restore: Restore
    weight: float = 1.0
    sent_bytes: int = field(default=0, init=False)
    """What this process has handed to the others."""

    @property
    def shard(self) -> int:
        """Which share of the batch is this rank's."""
        return self.rank // self.slots

    @property
    def mine(self) -> range:
        """The directions that this rank measures."""
        return range(self.rank % self.slots, self.directions, self.slots)

    def passes(self, rule: Rule) -> int:
        """Forwards of the whole batch in one step of all ranks together, without the first step's check."""
        return sum(rule.forwards(len(range(slot, self.directions, self.slots))) for slot in range(self.slots))

    def mean(self, loss: Tensor) -> Tensor:
        """The mean loss over the whole batch, of the position where this rank's slot stands; NaN if one share's is."""
        if self.shards == 1:
            return loss
        both = self._grid(torch.stack([torch.full_like(loss, self.weight), loss]))[:, self.rank % self.slots]
        return ((both[:, 0] * both[:, 1]).sum() / both[:, 0].sum()).to(loss.device)

    def union(self, rows: Tensor, reduced: bool) -> Tensor:
        """(directions, k): what all ranks measured, from this rank's (own directions, k).

        Args:
            rows: the measurement of `mine`.
            reduced: its losses are means over the whole batch already.
        """
        most = -(-self.directions // self.slots)
        padded = rows.new_full((most, rows.shape[1]), math.nan)
        padded[: len(rows)] = rows
        all_rows = self._grid(torch.cat([padded.new_tensor([self.weight]), padded.flatten()]))
        weights, values = all_rows[..., :1], all_rows[..., 1:]
        joined = values[0] if reduced or self.shards == 1 else (weights * values).sum(0) / weights.sum(0)
        return joined.view(self.slots, most, -1).transpose(0, 1).reshape(self.slots * most, -1)[: self.directions]

    def _grid(self, values: Tensor) -> Tensor:
        """(shards, slots, numbers) of all ranks."""
        self.sent_bytes += values.numel() * values.element_size()
        return gather(values, values.dtype).view(self.shards, self.slots, -1)

    def check_batch(self, loss: Tensor, dtype: torch.dtype) -> None:
        """Refuse slots of one shard that see different batches.

        Raises:
            InputError: on every rank, naming two ranks and their losses at the same weights.
        """
        losses = self._grid(loss.reshape(1))[..., 0].tolist()
        for shard, row in enumerate(losses):
            for slot, value in enumerate(row):
                if abs(value - row[0]) > _SAME_BATCH.get(dtype, 1e-2) * max(abs(row[0]), 1e-9):
                    raise InputError(
                        f"ranks {shard * self.slots} and {shard * self.slots + slot} share directions, but at the same "
                        f"weights their losses are {row[0]:.6g} and {value:.6g}: give them the same batch and, with "
                        'dropout, the same torch seed, or use parallel="data".'
                    )

    def check_replicas(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Refuse to go on when weights, seed, step, window, lr or the like differ between ranks.

        Raises:
            InputError: on every rank, naming the first rank that differs from rank 0, the step and the tensor.
        """
        settings = [[k, *(repr(g[k]) for g in groups)] for k in sorted(groups[0]) if k not in ("params", "param_names")]
        parameters = [p for group in groups for p in group["params"]]
        names = [name_of(group, k) for group in groups for k in range(len(group["params"]))]
        sums = [*(zlib.crc32(repr(s).encode()) for s in settings), *checksums(parameters)]
        self.sent_bytes += 8 * len(sums)
        found = gather(torch.tensor(sums, dtype=torch.int64), torch.int64).cpu()
        for rank, place in (found != found[0]).nonzero().tolist()[:1]:
            what = settings[place][0] if place < len(settings) else names[place - len(settings)]
            raise InputError(
                f"rank {rank} differs from rank 0 in {what} before step {groups[0]['step']}: replicas must start from "
                "equal weights and settings and see nothing but optimizer.step; load one checkpoint on all ranks."
            )


def team_of(settings: Settings) -> Team | None:
    """The layout of a step, None in a single process.

    Raises:
        InputError: the number of processes does not fit, or a restore mode under which weights would drift apart.
    """
    rank, ranks = world()
    if ranks == 1:
        return None
    parallel, directions = settings.parallel, settings.directions
    slots = parallel if isinstance(parallel, int) else ranks if parallel == "directions" else 1
    if ranks % slots:
        raise InputError(f"parallel={parallel}: {ranks} processes do not divide into groups of {slots}.")
    if directions < slots:
        raise InputError(
            f"parallel={parallel!r} with directions={directions}: {ranks} processes in which {slots} share the "
            'directions need as many; raise directions or use parallel="data".'
        )
    if settings.rule.whole_step and slots < ranks and directions % slots:
        raise InputError(
            f"parallel={parallel} with directions={directions} under the directional rule: each of the {slots} ranks "
            f"must take equally many; use a multiple of {slots}."
        )
    if slots > 1 and settings.restore == "arithmetic":
        raise InputError(
            'restore="arithmetic" where ranks share directions: each would keep the rounding of its own probes and the '
            'weights drift apart; use restore="snapshot" or parallel="data".'
        )
    return Team(rank, ranks // slots, slots, directions, "snapshot" if slots > 1 else settings.restore)
