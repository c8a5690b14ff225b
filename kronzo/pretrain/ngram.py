"""Reference lines: the held-out cross-entropy of a unigram and a Witten-Bell bigram model.

A trained model above the unigram line has not even learned how frequent tokens are; one between the two has learned
frequencies and little else.

    p(w)     = (c(w) + T / V) / (N + T)                       T distinct tokens among N, V the padded vocabulary
    p(w | v) = (c(v, w) + T(v) p(w)) / (c(v) + T(v))          T(v) distinct successors of v; p(w) where v was never seen

Source: Witten and Bell 1991, method C, interpolated with the next lower order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kronzo.errors import InputError
from kronzo.pretrain.cache import remember
from kronzo.pretrain.tokenfiles import chunks

if TYPE_CHECKING:
    from kronzo.pretrain.data import Corpus

_FILE = "reference_losses.json"


def reference_losses(corpus: Corpus, max_tokens: int | None = None) -> dict[str, float]:
    """Mean cross-entropy of the whole held-out split but its first token, in nats a token.

    Cached beside the corpus. Costs a sort of the training pairs (about 0.1 s a million) and 16 bytes a distinct pair.

    Args:
        corpus: fitted on its training split.
        max_tokens: count only the first so many training tokens.

    Returns:
        {"unigram": nats, "bigram": nats}.

    Raises:
        InputError: a split or max_tokens has fewer than two tokens; the cache cannot be written.
    """
    for split, ids in (("training", corpus.train), ("held-out", corpus.val)):
        if ids.size < 2:
            raise InputError(
                f"the {split} split of {corpus.name} has {ids.size} tokens; two are needed: use more text."
            )
    if max_tokens is not None and max_tokens < 2:
        raise InputError(f"max_tokens={max_tokens}: a bigram is counted in two tokens or more.")
    key = "all" if max_tokens is None else str(max_tokens)
    known = _known(corpus)
    if key not in known:
        known[key] = fit_and_score(corpus.train[:max_tokens], corpus.val, corpus.vocab_size)
        if corpus.folder:
            remember(corpus.folder / _FILE, known)
    return {name: known[key][name] for name in ("unigram", "bigram")}


def _known(corpus: Corpus) -> dict[str, dict[str, float]]:
    """What is cached beside the corpus; nothing where the file is absent or damaged, and it is then written anew."""
    try:
        return dict(json.loads((corpus.folder / _FILE).read_text(encoding="utf-8"))) if corpus.folder else {}
    except (OSError, ValueError):
        return {}


def fit_and_score(train: np.ndarray, val: np.ndarray, vocab_size: int) -> dict[str, float]:
    """The two cross-entropies for ids given as 1-D arrays; see `reference_losses`."""
    counts, pairs, times = _count(train, vocab_size)
    unigram = _unigram(counts, vocab_size)
    first = pairs // vocab_size
    followed = np.bincount(first, weights=times, minlength=vocab_size)
    successors = np.bincount(first, minlength=vocab_size)
    losses = np.zeros(2)
    for v, w in _pairs(val):
        place = np.minimum(np.searchsorted(pairs, v * vocab_size + w), pairs.size - 1)
        seen = np.where(pairs[place] == v * vocab_size + w, times[place], 0)
        total = followed[v] + successors[v]
        bigram = np.where(total > 0, (seen + successors[v] * unigram[w]) / np.maximum(total, 1), unigram[w])
        losses -= np.log(unigram[w]).sum(), np.log(bigram).sum()
    return dict(zip(("unigram", "bigram"), (losses / (val.size - 1)).tolist(), strict=True))


def _unigram(counts: np.ndarray, vocab_size: int) -> np.ndarray:
    distinct = np.count_nonzero(counts)
    return (counts + distinct / vocab_size) / (counts.sum() + distinct)


def _count(train: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of ids, the distinct pairs v * V + w in order, and how often each occurs; chunk by chunk."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    pairs = times = np.empty(0, dtype=np.int64)
    counts[train[0]] += 1
    for v, w in _pairs(train):
        counts += np.bincount(w, minlength=vocab_size)
        found, often = np.unique(v * vocab_size + w, return_counts=True)
        merged, place = np.unique(np.concatenate([pairs, found]), return_inverse=True)
        times = np.bincount(place, weights=np.concatenate([times, often])).astype(np.int64)
        pairs = merged
    return counts, pairs, times


def _pairs(ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All neighbours (v, w) of the ids, int64, in pieces."""
    before = np.empty(0, dtype=np.int64)
    for chunk in chunks(ids):
        both = np.concatenate([before, chunk.astype(np.int64)])
        yield both[:-1], both[1:]
        before = both[-1:]
