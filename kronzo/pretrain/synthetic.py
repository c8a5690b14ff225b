"""A seeded Markov source with a known entropy rate, so that golden curves and tests do not move with any version.

Sixty-four symbols; id 0 is the end of text. The next symbol c after a, b has an integer weight

    w(c | a, b) = zipf(c) + first(c | b) + second(c | a, b)

where `first` prefers four successors of b and `second` two of the pair, all drawn from the Zipf law by a keyed Philox
stream. Weights and draws are integers: the same bytes on every machine. "order1" leaves `second` out; a bigram model
then reaches the entropy rate, while under "order2" it cannot.
"""

from __future__ import annotations

import numpy as np

VOCABULARY = 64
END_OF_TEXT = 0
ORDERS = (1, 2)
TRAIN_TOKENS = 1 << 20
VAL_TOKENS = 1 << 16
_CHAINS = 256
_BURN_IN = 64
_SEED = 20_260
_ZIPF = 720_720 // (np.arange(VOCABULARY) + 2)
_TOTAL = int(_ZIPF.sum())


def _draws(purpose: int, count: int) -> np.ndarray:
    """`count` keyed uint64 numbers: the raw stream of Philox is fixed, unlike the distributions built on it."""
    return np.random.Philox(np.random.SeedSequence(_SEED, spawn_key=(purpose, 0))).random_raw(count)


def _zipf_symbols(purpose: int, shape: tuple[int, ...]) -> np.ndarray:
    picks = _draws(purpose, int(np.prod(shape))) % np.uint64(_TOTAL)
    return np.searchsorted(np.cumsum(_ZIPF), picks.astype(np.int64), side="right").reshape(shape)


def weights(order: int) -> np.ndarray:
    """The integer weights w[a, b, c], int64 (64, 64, 64), every one positive.

    Args:
        order: 1 or 2, how many symbols before the next one matter.
    """
    table = np.broadcast_to(_ZIPF, (VOCABULARY,) * 3).copy()
    a, b = np.ogrid[:VOCABULARY, :VOCABULARY]
    for j, successor in enumerate(np.moveaxis(_zipf_symbols(1, (VOCABULARY, 4)), 1, 0)):
        table[a, b, successor[None, :]] += 2 * _TOTAL // (j + 2)
    if order == 2:
        for j, successor in enumerate(np.moveaxis(_zipf_symbols(2, (VOCABULARY, VOCABULARY, 2)), 2, 0)):
            table[a, b, successor] += 6 * _TOTAL // (j + 2)
    return table


def entropy_rate(order: int) -> float:
    """H = -sum_ab pi(a, b) sum_c p(c | a, b) log p(c | a, b) in nats a token, pi the stationary law of pairs."""
    table = weights(order)
    p = table / table.sum(axis=-1, keepdims=True)
    pairs = np.full((VOCABULARY, VOCABULARY), VOCABULARY**-2.0)
    while True:
        new = np.einsum("ab,abc->bc", pairs, p)
        if np.abs(new - pairs).sum() < 1e-13:
            break
        pairs = new
    return float(-np.einsum("ab,abc,abc->", pairs, p, np.log(p)))


def tokens(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Training (2^20) and held-out (2^16) tokens, 1-D uint16, drawn from separate chains.

    The training part is 256 chains end to end, the held-out part 16; each chain forgets its start before it is kept.
    """
    held_out = _CHAINS * VAL_TOKENS // TRAIN_TOKENS
    chains = _chains(order, _CHAINS + held_out, TRAIN_TOKENS // _CHAINS)
    return chains[:_CHAINS].ravel(), chains[_CHAINS:].ravel()


def _chains(order: int, num_chains: int, length: int) -> np.ndarray:
    """All chains side by side, one symbol of each at a time, uint16 (num_chains, length)."""
    bounds = np.cumsum(weights(order), axis=-1)
    picks = _draws(3, num_chains * (length + _BURN_IN)).reshape(length + _BURN_IN, num_chains)
    a = b = np.zeros(num_chains, dtype=np.int64)
    kept = np.empty((length, num_chains), dtype=np.uint16)
    for t, pick in enumerate(picks):
        bound = bounds[a, b]
        target = (pick % bound[:, -1].astype(np.uint64)).astype(np.int64)
        a, b = b, (bound <= target[:, None]).sum(axis=1)
        if t >= _BURN_IN:
            kept[t - _BURN_IN] = b
    return np.ascontiguousarray(kept.T)
