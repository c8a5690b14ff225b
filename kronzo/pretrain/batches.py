"""A corpus as training sees it: batches in the same order for every method, and fixed held-out windows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kronzo.errors import InputError
from kronzo.pretrain import tokenfiles
from kronzo.pretrain.tokenizer import Tokenizer

if TYPE_CHECKING:
    import torch

_PURPOSE = 100
"""First word of the key of batches; the keys of an optimizer's noise begin with smaller ones."""


@dataclass(frozen=True)
class Corpus:
    """Token ids of a training and a held-out split.

    Attributes:
        name: what was asked for.
        tokenizer: the one its ids are of.
        train: 1-D uint16, usually a memmap.
        val: 1-D uint16, of other documents.
        manifest: source, tokenizer, documents, tokens and bytes a split, sha256, versions.
        folder: where what is derived from the corpus may be cached.
    """

    name: str
    tokenizer: Tokenizer
    train: np.ndarray
    val: np.ndarray
    manifest: dict[str, Any] = field(default_factory=dict)
    folder: Path | None = None

    @property
    def vocab_size(self) -> int:
        """The padded vocabulary, which is the model's."""
        return self.tokenizer.vocab_size

    def batch(
        self, *, seed: int, step: int, batch_size: int, context: int, rank: int = 0, world: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Inputs and targets of one step: a pure function of its arguments, on every machine.

        The windows start at uniform positions (Philox keyed by seed and step). `world` ranks with `batch_size` rows
        each see, in order of rank, the rows of one process with `world * batch_size`.

        Args:
            seed: of the stream of batches, >= 0.
            step: >= 0.
            batch_size: rows of this rank.
            context: tokens a row.
            rank: which share of the rows, below `world`.
            world: number of shares.

        Returns:
            (x, y), int64 (batch_size, context); y is x one token later.

        Raises:
            InputError: the training split has fewer than context + 1 tokens, or ids that the tokenizer lacks.
        """
        _check_window(self, "training", self.train, context)
        stream = np.random.Philox(np.random.SeedSequence(seed, spawn_key=(_PURPOSE, step, 0, 0, 0)))
        rows = stream.random_raw(world * batch_size)[rank * batch_size : (rank + 1) * batch_size]
        starts = (rows % np.uint64(self.train.size - context)).astype(np.int64)
        return self._windows(self.train, starts, context)

    def validation(
        self, *, batch_size: int, context: int, max_tokens: int | None = None
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Non-overlapping windows of the held-out split, the same for every run; the last batch may have fewer rows.

        Args:
            batch_size: rows a batch.
            context: tokens a row; what does not fill a window at the end is left out.
            max_tokens: at most this many tokens (at least one window), in windows evenly spread over the split.

        Yields:
            (x, y), int64 (<= batch_size, context).

        Raises:
            InputError: as `batch`, for the held-out split.
        """
        _check_window(self, "held-out", self.val, context)
        available = (self.val.size - 1) // context
        wanted = available if max_tokens is None else min(available, max(1, max_tokens // context))
        starts = np.arange(wanted, dtype=np.int64) * available // wanted * context
        for first in range(0, wanted, batch_size):
            yield self._windows(self.val, starts[first : first + batch_size], context)

    def _windows(self, ids: np.ndarray, starts: np.ndarray, context: int) -> tuple[torch.Tensor, torch.Tensor]:
        import torch

        rows = np.stack([ids[start : start + context + 1] for start in starts]).astype(np.int64)
        tokenfiles.release(ids)
        if rows.max() >= self.vocab_size:
            raise InputError(
                f"corpus {self.name} holds the id {rows.max()}, tokenizer {self.tokenizer.name} has {self.vocab_size} "
                "ids; open it with the tokenizer it was made with."
            )
        both = torch.from_numpy(rows)
        return both[:, :-1].contiguous(), both[:, 1:].contiguous()


def _check_window(corpus: Corpus, split: str, ids: np.ndarray, context: int) -> None:
    if ids.size < context + 1:
        raise InputError(
            f"the {split} split of {corpus.name} has {ids.size} tokens, a context of {context} needs {context + 1}; "
            "use a longer text or a shorter context."
        )
