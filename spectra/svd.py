"""Singular values of one matrix: exact enough to trust, cheap enough to take while training.

With C the matrix turned tall (in float64 also scaled by max|G|), the singular values are the roots of the eigenvalues
of the n x n Gram matrix C^T C. Accumulated in float64 over blocks of rows it is more accurate than a float32 SVD down
to s / s_1 = 1e-6 (relative error about 2e-16 (s_1 / s)^2 against 6e-8 s_1 / s) and needs no copy of G.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectra.errors import InputError, nearest

Float = NDArray[np.float64]

CHUNK_NUMBERS = 1024 * 768
"""Numbers of float64 in a block of rows; two blocks, 13 MB, are alive while a Gram matrix is accumulated."""

MOST_ROWS = 1024
"""Rows of a block at most: what a product sums up on its own costs digits, too."""

PANEL = 192
"""Columns of the Gram matrix computed at a time, from the diagonal down: what lies above it is not computed twice."""

TOLERANCE = 1e-12
"""Largest |sum s^2 - ||G||_F^2| / ||G||_F^2 that passes as converged."""

METHODS = ("auto", "exact", "gram", "randomized")


@dataclass(frozen=True)
class Spectrum:
    """Singular values with their own quality.

    Attributes:
        values: float64, descending, non-negative; min(m, n) of them, or k when randomized.
        shape: (m, n) of the matrix.
        method: what produced them: "gram", "exact", "gesvd" or "randomized".
        error: |sum s^2 - ||G||_F^2| / ||G||_F^2, the certificate; for "randomized" ||G - Q Q^T G||_F / ||G||_F, which
            bounds, relative to ||G||_F, what the values can be too small by.
        converged: whether the certificate is below `TOLERANCE`; False for "randomized", which is approximate.
    """

    values: Float
    shape: tuple[int, int]
    method: str
    error: float
    converged: bool


@dataclass(frozen=True)
class Triplets:
    """The leading k singular triplets: G ~ u diag(values) v^T.

    Attributes:
        u: (m, k) float64, orthonormal columns.
        values: (k,) float64, descending.
        v: (n, k) float64, orthonormal columns.
        residual: max_i ||G^T u_i - s_i v_i|| / s_1.
    """

    u: Float
    values: Float
    v: Float
    residual: float


def as_matrix(matrix: Tensor | NDArray[np.floating]) -> Tensor:
    """Return the input as a detached 2-D real tensor, 3-D and higher folded to (first, rest).

    Raises:
        InputError: fewer than two dimensions, complex, integer or quantised numbers.
    """
    g = torch.as_tensor(matrix).detach()
    g = g.coalesce().to_dense() if g.is_sparse else g
    if g.ndim < 2:
        raise InputError(
            f"a tensor of shape {tuple(g.shape)}; singular values need a matrix; reshape it to two dimensions"
        )
    if not g.is_floating_point():
        raise InputError(f"a matrix of {g.dtype}; singular values need real floating point; convert it with .float()")
    return g.flatten(1)


def largest_entry(g: Tensor) -> float:
    """Return max|G|: NaN or inf when any entry is, 0.0 for an empty matrix. One pass, no copy."""
    if not g.numel():
        return 0.0
    low, high = torch.aminmax(g)
    return (
        float(torch.maximum(-low.double(), high.double())) if g.device.type != "mps" else max(-float(low), float(high))
    )


def _scale(g: Tensor) -> float:
    """Return what to divide by before squaring: max|G| of a float64 matrix, 1.0 of a narrower one, 0.0 of zeros.

    Squares of narrower numbers neither overflow nor vanish in float64.

    Raises:
        InputError: NaN or inf entries.
    """
    peak = largest_entry(g)
    if not np.isfinite(peak):
        raise InputError(
            f"the {tuple(g.shape)} matrix holds NaN or inf; singular values need finite entries; clean it first"
        )
    return peak if g.dtype == torch.float64 or peak == 0 else 1.0


def blocks(g: Tensor, scale: float) -> Iterator[Tensor]:
    """Yield G / scale in float64, block after block of rows of the tall orientation (at most `CHUNK_NUMBERS` each)."""
    tall = g if g.shape[0] >= g.shape[1] else g.T
    rows = min(MOST_ROWS, max(1, CHUNK_NUMBERS // max(1, tall.shape[1])))
    for block in tall.split(rows):
        block = block.cpu() if block.device.type == "mps" else block
        # A float64 gradient would otherwise share its memory with the block and be divided in place.
        wide = block.to(torch.float64, copy=True)
        yield wide if scale == 1.0 else wide.div_(scale)


def gram(g: Tensor, scale: float) -> tuple[Tensor, float]:
    """Return C^T C of the scaled tall matrix C, float64 (p, p) on the CPU, and ||C||_F^2 summed independently of it.

    What rounding drops when blocks are added up is carried along (Kahan 1965): it would grow with their number, to 7e-6
    of the value at s / s_1 = 1e-5 of a 50257 x 768 matrix, and is 1e-7 so (`benchmarks/bench_svd.py`).

    Cost: about m n p flops, one pass over G, 2 `CHUNK_NUMBERS` + 3 p^2 numbers of float64.
    """
    p = min(g.shape)
    total = torch.zeros(p, p, dtype=torch.float64, device="cpu" if g.device.type == "mps" else g.device)
    dropped = torch.zeros_like(total)
    energy = 0.0
    for block in blocks(g, scale):
        energy += float(torch.linalg.vector_norm(block)) ** 2
        for at in range(0, p, PANEL):
            panel = slice(at, None), slice(at, at + PANEL)
            _add(total[panel], dropped[panel], block[:, at:].T @ block[:, at : at + PANEL])
    return mirrored(total.cpu()), energy


def _add(total: Tensor, dropped: Tensor, term: Tensor) -> None:
    """Total += term, less what the additions before have rounded up; `dropped` takes what this one does."""
    term -= dropped
    rounded = total + term
    torch.sub(rounded, total, out=dropped)
    dropped -= term
    total.copy_(rounded)


def mirrored(lower: Tensor) -> Tensor:
    """Return the symmetric matrix of a lower triangle, in place."""
    for at in range(0, len(lower), PANEL):
        lower[at : at + PANEL, at + PANEL :] = lower[at + PANEL :, at : at + PANEL].T
    return lower


def eigenvalues(c: Tensor) -> Float:
    """Return the eigenvalues of a symmetric float64 matrix, ascending.

    numpy's threads are not torch's: on a busy machine its two-threaded solver has taken a hundred times longer than one
    thread. So who gave torch one thread, as workers that share a machine do, gets torch's solver; else numpy's is twice
    as fast.
    """
    if torch.get_num_threads() == 1:
        return torch.linalg.eigvalsh(c).numpy()
    return np.linalg.eigvalsh(c.numpy())


def _from_gram(g: Tensor, scale: float) -> tuple[Float, float]:
    c, energy = gram(g, scale)
    return np.sqrt(np.maximum(eigenvalues(c)[::-1], 0.0)), energy


def _triangle(g: Tensor, scale: float) -> Tensor:
    """Return a float64 matrix with the singular values of G / scale: R of its QR when it is much taller than wide."""
    c = torch.cat([block.cpu() for block in blocks(g, scale)])
    return torch.linalg.qr(c, mode="r").R if c.shape[0] > 1.5 * c.shape[1] else c


def _from_svd(g: Tensor, scale: float, driver: str) -> tuple[Float, float]:
    c = _triangle(g, scale)
    energy = sum(float(torch.linalg.vector_norm(block)) ** 2 for block in blocks(g, scale))
    if driver == "exact":
        return torch.linalg.svdvals(c).numpy(), energy
    import scipy.linalg

    return scipy.linalg.svd(c.numpy(), compute_uv=False, lapack_driver="gesvd", check_finite=False), energy


def _attempt(g: Tensor, scale: float, method: str) -> Spectrum | None:
    """Return the spectrum by one method with its certificate, or None when LAPACK did not converge."""
    try:
        values, energy = _from_gram(g, scale) if method == "gram" else _from_svd(g, scale, method)
    except (np.linalg.LinAlgError, torch.linalg.LinAlgError):
        return None
    error = abs(float(values @ values) - energy) / energy
    values = np.sort(values)[::-1] * scale
    return Spectrum(values, (g.shape[0], g.shape[1]), method, error, bool(error <= TOLERANCE))


def _certified(g: Tensor, scale: float, chain: tuple[str, ...]) -> Spectrum:
    """Return the first spectrum of the chain whose certificate holds, else the best one, marked not converged."""
    best: Spectrum | None = None
    for method in chain:
        found = _attempt(g, scale, method)
        if found is not None and found.converged:
            return found
        if found is not None and (best is None or found.error < best.error):
            best = found
    if best is None:
        raise InputError(
            f"no LAPACK driver converged on a {tuple(g.shape)} matrix ({', '.join(chain)}); check its entries"
        )
    return best


def _randomized(g: Tensor, scale: float, k: int, seed: int) -> Spectrum:
    """Return k approximate values by a range finder with two power iterations (Halko, Martinsson, Tropp 2011)."""
    c = torch.cat([block.cpu() for block in blocks(g, scale)])
    generator = torch.Generator().manual_seed(seed)
    sketch = torch.randn(c.shape[1], min(k + 8, c.shape[1]), generator=generator, dtype=torch.float64)
    q = torch.linalg.qr(c @ sketch).Q
    for _ in range(2):
        q = torch.linalg.qr(c @ torch.linalg.qr(c.T @ q).Q).Q
    small = q.T @ c
    energy = float(torch.linalg.vector_norm(c)) ** 2
    missed = max(0.0, energy - float(torch.linalg.vector_norm(small)) ** 2)
    values = torch.linalg.svdvals(small).numpy()[:k] * scale
    return Spectrum(values, (g.shape[0], g.shape[1]), "randomized", (missed / energy) ** 0.5, False)


def _check(method: str, k: int | None, p: int) -> None:
    if method not in METHODS:
        raise InputError(f"method={method!r}; {nearest(method, METHODS)}")
    if method == "randomized" and (k is None or not 1 <= k <= max(p, 1)):
        raise InputError(f"method='randomized' with k={k}; it needs the number of values, 1 <= k <= {p}; pass k=")


def singular_values(
    matrix: Tensor | NDArray[np.floating], method: str = "auto", k: int | None = None, seed: int = 0
) -> Spectrum:
    """Return the singular values of a matrix, with the method used and its certificate.

    Args:
        matrix: (m, n), any floating dtype and device; bfloat16 and float16 are cast exactly; 3-D and higher are folded
            to (first, rest); sparse ones are coalesced. Never changed.
        method: "gram" (float64 Gram matrix), "exact" (QR, then SVD, in float64), "randomized" (k approximate values),
            or "auto": gram for float32 and below, exact for float64, whose own digits a Gram matrix would lose.
        k: keep the k largest (all by default; required for "randomized").
        seed: of the sketch of "randomized", which has a generator of its own.

    Returns:
        Spectrum. A zero or empty matrix gives zeros or nothing, error 0. When the certificate of the method fails, the
        next of gram -> exact -> gesvd is taken and named in `method`.

    Raises:
        InputError: NaN or inf entries, fewer than two dimensions, integer or complex numbers, unknown method, bad k.

    Cost: gram: m n p flops, 13 MB + 2 p^2 float64 and the BLAS's own buffers. exact: about 4 m n p flops and a
    float64 copy of the matrix.
    """
    g = as_matrix(matrix)
    p = min(g.shape)
    _check(method, k, p)
    scale = _scale(g)
    if scale == 0:
        return Spectrum(np.zeros(p)[:k], (g.shape[0], g.shape[1]), "exact", 0.0, True)
    if method == "randomized":
        return _randomized(g, scale, k or p, seed)
    first = "exact" if method == "exact" or (method == "auto" and g.dtype == torch.float64) else "gram"
    chain = ("gram", "exact", "gesvd") if first == "gram" else ("exact", "gesvd")
    found = _certified(g, scale, chain)
    return Spectrum(found.values[:k], found.shape, found.method, found.error, found.converged)


def singular_triplets(matrix: Tensor | NDArray[np.floating], k: int) -> Triplets:
    """Return the k leading singular triplets by the eigenvectors of the float64 Gram matrix.

    Good for leading subspaces (s_k / s_1 above about 1e-6); for less use torch.linalg.svd in float64.

    Args:
        matrix: (m, n), as for `singular_values`.
        k: how many, 1 <= k <= min(m, n).

    Raises:
        InputError: k outside that range, NaN or inf entries.

    Cost: m n p flops for the Gram matrix, about 9 p^3 for its eigenvectors, 2 m n k for the other side.
    """
    g = as_matrix(matrix)
    if not 1 <= k <= min(g.shape):
        raise InputError(
            f"k={k} for a {tuple(g.shape)} matrix; it has {min(g.shape)} singular triplets; pass 1 <= k <= that"
        )
    scale = _scale(g) or 1.0
    c, _ = gram(g, scale)
    energies, vectors = torch.linalg.eigh(c)
    right = vectors[:, -k:].flip(1)
    values = energies[-k:].flip(0).clamp(min=0.0).sqrt()
    left, upper = torch.linalg.qr(torch.cat([block.cpu() @ right for block in blocks(g, scale)]))
    left = left * torch.where(upper.diagonal() < 0, -1.0, 1.0)
    back = torch.zeros_like(right)
    start = 0
    for block in blocks(g, scale):
        back += block.cpu().T @ left[start : start + len(block)]
        start += len(block)
    residual = float((back - right * values).norm(dim=0).max() / (values[0] or 1.0))
    u, v = (left, right) if g.shape[0] >= g.shape[1] else (right, left)
    return Triplets(u.numpy(), (values * scale).numpy(), v.numpy(), residual)
