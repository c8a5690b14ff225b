"""Naive float64 twins: whole Z by torch.kron and U V^T, whole dense noise, rules and steps written out from the papers.

Nothing of the library is used but the addresses of its random numbers, drawn here by numpy alone.
"""

from __future__ import annotations

import math

import numpy as np
import torch

COORDINATES, KEPT, BLOCK = 0, 1, 2**16


def numbers(seed, purpose, step, direction, parameter, block, size, law="normal"):
    """The float32 numbers at one address."""
    key = np.random.SeedSequence(seed, spawn_key=(purpose, step, direction, parameter, block))
    rng = np.random.Generator(np.random.Philox(key))
    if law == "normal":
        return rng.standard_normal(size, dtype=np.float32)
    bits = np.unpackbits(np.frombuffer(rng.bytes(-(-size // 8)), np.uint8))[:size]
    return np.where(bits == 1, 1.0, -1.0).astype(np.float32)


def tensor(values, *shape):
    return torch.from_numpy(values.astype(np.float64)).reshape(shape)


def dense(seed, step, kept_step, index, i, shape, law="normal"):
    size = math.prod(shape)
    blocks = [
        numbers(seed, COORDINATES, step, i, index, b, min(BLOCK, size - b * BLOCK), law)
        for b in range(-(-size // BLOCK))
    ]
    return tensor(np.concatenate(blocks), *shape)


def rademacher(*address):
    return dense(*address, law="rademacher")


def kronecker(seed, step, kept_step, index, i, shape):
    if len(shape) < 2:
        return dense(seed, step, kept_step, index, i, shape)
    m, n = shape[0], math.prod(shape[1:])
    (m1, m2), (n1, n2) = algorithm_1(m), algorithm_1(n)
    a = tensor(numbers(seed, COORDINATES, step, i, index, 0, m1 * n1), m1, n1)
    b = tensor(numbers(seed, KEPT, kept_step, 0, index, 0, m2 * n2), m2, n2)
    return torch.kron(a, b).reshape(shape)


def algorithm_1(k):
    """BestPair as printed: look down, then up, from floor(sqrt k)."""
    root = math.isqrt(k)
    for off in range(root + 1):
        for d in (root - off, root + off):
            if d >= 1 and k % d == 0:
                return (d, k // d) if d <= k // d else (k // d, d)
    raise AssertionError


def low_rank(rank, scale=None):
    def z(seed, step, kept_step, index, i, shape):
        m, n = _matrix(shape)
        if len(shape) < 2 or min(m, n) <= rank:
            return dense(seed, step, kept_step, index, i, shape)
        u = tensor(numbers(seed, COORDINATES, step, i, index, 0, m * rank), m, rank)
        v = tensor(numbers(seed, KEPT, kept_step, 0, index, 0, n * rank), n, rank)
        return ((u @ v.T) * (1 / math.sqrt(rank) if scale is None else scale)).reshape(shape)

    return z


def subspace(rank):
    def z(seed, step, kept_step, index, i, shape):
        m, n = _matrix(shape)
        if len(shape) < 2 or min(m, n) <= rank:
            return dense(seed, step, kept_step, index, i, shape)
        u = _orthonormal(numbers(seed, KEPT, kept_step, 0, index, 0, m * rank).reshape(m, rank))
        v = _orthonormal(numbers(seed, KEPT, kept_step, 0, index, 1, n * rank).reshape(n, rank))
        s = tensor(numbers(seed, COORDINATES, step, i, index, 0, rank * rank), rank, rank)
        return (u @ s @ v.T * (math.sqrt(m * n) / rank)).reshape(shape)

    return z


def diagonal(rank):
    def z(seed, step, kept_step, index, i, shape):
        m, n = _matrix(shape)
        if len(shape) < 2 or min(m, n) <= rank:
            return dense(seed, step, kept_step, index, i, shape)
        u = tensor(numbers(seed, KEPT, kept_step, 0, index, 0, m * rank), m, rank)
        v = tensor(numbers(seed, KEPT, kept_step, 0, index, 1, n * rank), n, rank)
        x = tensor(numbers(seed, COORDINATES, step, i, index, 0, rank), rank)
        return (u @ torch.diag(x) @ v.T / math.sqrt(rank)).reshape(shape)

    return z


def _matrix(shape):
    return (shape[0] if len(shape) else 1), math.prod(shape[1:])


def _orthonormal(normals):
    """Gram-Schmidt in float64, each column with a positive component along its source."""
    columns = []
    for column in normals.astype(np.float64).T:
        for _ in range(2):
            for q in columns:
                column = column - q * (q @ column)
        columns.append(column / np.linalg.norm(column))
    return torch.from_numpy(np.stack(columns, 1))


def span(z, seed, kept_step, index, shape, samples):
    """An orthonormal basis of the search space of one parameter, from sampled directions."""
    rows = torch.stack([z(seed, 10**6 + k, kept_step, index, 0, shape).flatten() for k in range(samples)])
    _, s, basis = torch.linalg.svd(rows, full_matrices=False)
    return basis[s > 1e-6 * s[0]]


class NaiveZeroOrder:
    """The whole step on whole matrices, float64.

    Args:
        params: float64 tensors, changed in place.
        z: (seed, step, kept step, parameter index, direction, shape) -> Z.
    """

    def __init__(
        self, params, z, *, lr, eps, rule="average", directions=1, refresh_every=0, window=10, momentum=0.0,
        weight_decay=0.0, one_sided=False, window_rule="sliding", seed=0,
    ):  # fmt: skip
        self.params, self.z, self.lr, self.eps, self.q, self.nu = params, z, lr, eps, directions, refresh_every
        self.rule, self.momentum, self.decay, self.one_sided, self.seed = rule, momentum, weight_decay, one_sided, seed
        self.window_rule, self.window, self.k = window_rule, [math.inf] * window, 0
        self.m = [torch.zeros_like(p) for p in params]
        self.accepted, self.c = None, None

    def step(self, loss):
        kept = self.k - self.k % self.nu if self.nu else 0
        for p in self.params:
            if p.ndim >= 2:
                p.mul_(1 - self.lr * self.decay)
        theta = [p.clone() for p in self.params]
        zs = [
            [self.z(self.seed, self.k, kept, j, i, tuple(p.shape)) for j, p in enumerate(theta)] for i in range(self.q)
        ]

        def at(i, t):
            for p, start, z in zip(self.params, theta, zs[i], strict=True):
                p.copy_(start + t * z)
            return loss().item()

        at_theta = at(0, 0.0)
        plus = [at(i, self.eps) for i in range(self.q)]
        minus = [at_theta if self.one_sided else at(i, -self.eps) for i in range(self.q)]
        c = [(a - b) / (self.eps if self.one_sided else 2 * self.eps) for a, b in zip(plus, minus, strict=True)]
        self.c = c
        if self.rule == "directional":
            move = self._best(zs, c, at, at_theta)
        else:
            length = self.q if self.rule == "average" else self.q * math.sqrt(sum(v * v for v in c) / self.q)
            move = [-sum(ci * z[j] for ci, z in zip(c, zs, strict=True)) / length for j in range(len(theta))]
        if self.momentum:
            if self.nu and self.k and self.k % self.nu == 0:
                self.m = [self._projected(m, j, kept) for j, m in enumerate(self.m)]
            self.m = [self.momentum * m + (1 - self.momentum) * d for m, d in zip(self.m, move, strict=True)]
            move = self.m
        for p, start, d in zip(self.params, theta, move, strict=True):
            p.copy_(start + self.lr * d)
        self.k += 1

    def _best(self, zs, c, at, at_theta):
        candidates = [at(i, -self.lr * c[i]) for i in range(self.q)]
        i = min(range(self.q), key=candidates.__getitem__)
        best = min(candidates[i], at_theta)
        self.accepted = candidates[i] < at_theta and best <= max(self.window)
        if self.window_rule == "sliding":
            self.window = [*self.window[1:], best]
        elif self.window_rule == "replace_max":
            self.window[self.window.index(max(self.window))] = best
        elif self.accepted:
            self.window = [*self.window[1:], best]
        return [-c[i] * z if self.accepted else torch.zeros_like(z) for z in zs[i]]

    def _projected(self, m, j, kept):
        basis = span(self.z, self.seed, kept, j, tuple(m.shape), m.numel() + 2)
        return (basis.T @ (basis @ m.flatten())).view_as(m)


def kron_sweep(weights, xs, bs, eps):
    """The naive Kronecker sweep: every torch.kron written out."""
    for w, x, b in zip(weights, xs, bs, strict=True):
        w.add_(torch.kron(x, b), alpha=eps)


def outer_sweep(weights, us, vs, eps):
    """The naive low-rank sweep: every U V^T written out."""
    for w, u, v in zip(weights, us, vs, strict=True):
        w.add_(u @ v.T, alpha=eps)


def noise_sweep(weights, eps, seed):
    """The naive dense sweep: the whole z of the model drawn by numpy, then added."""
    rng = np.random.Generator(np.random.Philox(seed))
    zs = [torch.from_numpy(rng.standard_normal(tuple(w.shape), dtype=np.float32)) for w in weights]
    for w, z in zip(weights, zs, strict=True):
        w.add_(z, alpha=eps)
