"""Reference lines: the held-out cross-entropy of a unigram and a Witten-Bell bigram model.

A trained model above the unigram line has not even learned how frequent tokens are; one between the two has learned
frequencies and little else.

    p(w)     = (c(w) + T / V) / (N + T)                       T distinct tokens among N, V the padded vocabulary
    p(w | v) = (c(v, w) + T(v) p(w)) / (c(v) + T(v))          T(v) distinct successors of v; p(w) where v was never seen

Source: Witten and Bell 1991, method C, interpolated with the next lower order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from kronzo.errors import InputError
from kronzo.pretrain.cache import remember
from kronzo.pretrain.tokenfiles import chunks

if TYPE_CHECKING:
    from kronzo.pretrain.data import Corpus

Pairs = tuple[np.ndarray, np.ndarray]

MAX_TOKENS = 1 << 26
_FILE = "reference_losses.json"


def reference_losses(
    corpus: Corpus, max_tokens: int | None = None, *, windows: tuple[int, int] | None = None
) -> dict[str, float]:
    """Mean cross-entropy of the held-out split, in nats a token: of all of it but its first token, or of windows.

    Cached beside the corpus. Costs a sort of the training pairs (about 0.1 s a million) and 16 bytes a distinct pair.
    Counts no more than the first 2^26 training tokens unless told so: more takes hours on a corpus of billions.

    Args:
        corpus: fitted on its training split.
        max_tokens: count the first so many training tokens, 67 108 864 by default.
        windows: (context, tokens): score what `corpus.validation(context=..., max_tokens=tokens)` yields, the very
            tokens a run is evaluated on.

    Returns:
        {"unigram": nats, "bigram": nats}.

    Raises:
        InputError: a split or max_tokens has fewer than two tokens.
    """
    for split, ids in (("training", corpus.train), ("held-out", corpus.val)):
        if ids.size < 2:
            raise InputError(
                f"the {split} split of {corpus.name} has {ids.size} tokens; two are needed: use more text."
            )
    if max_tokens is not None and max_tokens < 2:
        raise InputError(f"max_tokens={max_tokens}: a bigram is counted in two tokens or more.")
    num_tokens = min(corpus.train.size, MAX_TOKENS if max_tokens is None else max_tokens)
    key = str(num_tokens) if windows is None else f"{num_tokens}, windows of {windows[0]}, {windows[1]} tokens"
    known = _known(corpus)
    if key not in known:
        pairs = neighbours(corpus.val) if windows is None else _inside_windows(corpus, *windows)
        known[key] = fit_and_score(corpus.train[:num_tokens], pairs, corpus.vocab_size)
        if corpus.folder:
            remember(corpus.folder / _FILE, known)
    return {name: known[key][name] for name in ("unigram", "bigram")}


def _known(corpus: Corpus) -> dict[str, dict[str, float]]:
    """What is cached beside the corpus; nothing where the file is absent or damaged, and it is then written anew."""
    try:
        return dict(json.loads((corpus.folder / _FILE).read_text(encoding="utf-8"))) if corpus.folder else {}
    except (OSError, ValueError):
        return {}


def _inside_windows(corpus: Corpus, context: int, tokens: int) -> Iterator[Pairs]:
    for x, y in corpus.validation(batch_size=256, context=context, max_tokens=tokens):
        yield x.numpy().ravel(), y.numpy().ravel()


def fit_and_score(train: np.ndarray, scored: Iterable[Pairs], vocab_size: int) -> dict[str, float]:
    """The two cross-entropies of pairs under models fitted on ids; see `reference_losses`.

    Args:
        train: 1-D ids, below `vocab_size`.
        scored: (v, w), 1-D int64: w is predicted, by the bigram from v.
        vocab_size: V.
    """
    counts, pairs, times = _count(train, vocab_size)
    unigram = _unigram(counts, vocab_size)
    first = pairs // vocab_size
    followed = np.bincount(first, weights=times, minlength=vocab_size)
    successors = np.bincount(first, minlength=vocab_size)
    losses, num_scored = np.zeros(2), 0
    for v, w in scored:
        place = np.minimum(np.searchsorted(pairs, v * vocab_size + w), pairs.size - 1)
        seen = np.where(pairs[place] == v * vocab_size + w, times[place], 0)
        total = followed[v] + successors[v]
        bigram = np.where(total > 0, (seen + successors[v] * unigram[w]) / np.maximum(total, 1), unigram[w])
        losses -= np.log(unigram[w]).sum(), np.log(bigram).sum()
        num_scored += w.size
    return dict(zip(("unigram", "bigram"), (losses / num_scored).tolist(), strict=True))


def _unigram(counts: np.ndarray, vocab_size: int) -> np.ndarray:
    distinct = np.count_nonzero(counts)
    return (counts + distinct / vocab_size) / (counts.sum() + distinct)


def _count(train: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts of ids, the distinct pairs v * V + w in order, and how often each occurs; chunk by chunk."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    pairs = times = np.empty(0, dtype=np.int64)
    counts[train[0]] += 1
    for v, w in neighbours(train):
        counts += np.bincount(w, minlength=vocab_size)
        found, often = np.unique(v * vocab_size + w, return_counts=True)
        merged, place = np.unique(np.concatenate([pairs, found]), return_inverse=True)
        times = np.bincount(place, weights=np.concatenate([times, often])).astype(np.int64)
        pairs = merged
    return counts, pairs, times


def neighbours(ids: np.ndarray) -> Iterator[Pairs]:
    """All neighbours (v, w) of the ids, int64, in pieces."""
    before = np.empty(0, dtype=np.int64)
    for chunk in chunks(ids):
        both = np.concatenate([before, chunk.astype(np.int64)])
        yield both[:-1], both[1:]
        before = both[-1:]
