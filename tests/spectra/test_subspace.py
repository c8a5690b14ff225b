"""Overlap and captured energy against dense projections, with their chance lines."""

import numpy as np
import pytest
import torch

from spectra import InputError, singular_triplets, subspace, svd


def basis(m, k, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((m, k)))[0]


def test_overlap_is_one_with_itself_and_chance_between_random_subspaces():
    u = basis(60, 5, 0)
    assert subspace.overlap(u, u @ basis(5, 5, 1)).value == pytest.approx(1)
    values = [subspace.overlap(u, basis(60, 5, seed)).value for seed in range(1, 200)]
    assert np.mean(values) == pytest.approx(5 / 60, rel=0.05)
    assert subspace.overlap(u, u).chance == 5 / 60


@pytest.mark.parametrize("shape", [(50, 20), (20, 50)])
def test_captured_energy_equals_the_dense_projection(shape, monkeypatch):
    monkeypatch.setattr(svd, "CHUNK_NUMBERS", 200)
    g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 1e-20
    dense, u, v = g.numpy(), basis(shape[0], 3, 1), basis(shape[1], 4, 2)
    total = np.sum(dense**2)
    for left, right, image, chance in [
        (u, None, u.T @ dense, 3 / shape[0]),
        (None, v, dense @ v, 4 / shape[1]),
        (u, v, u.T @ dense @ v, 12 / (shape[0] * shape[1])),
    ]:
        found = subspace.captured_energy(g, left, right)
        assert found.energy == pytest.approx(np.sum(image**2) / total)
        assert found.chance == pytest.approx(chance) and found.gain == pytest.approx(found.energy / chance)


def test_the_leading_subspace_captures_its_own_share():
    g = torch.randn(40, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    top = singular_triplets(g, 6)
    assert subspace.captured_energy(g, left=top.u).energy == pytest.approx(np.sum(top.values**2) / float((g**2).sum()))


def test_what_is_no_basis_is_refused():
    u = basis(10, 2, 0)
    with pytest.raises(InputError, match="one shape"):
        subspace.overlap(u, u[:, :1])
    with pytest.raises(InputError, match="not orthonormal"):
        subspace.overlap(u * 2, u)
    with pytest.raises(InputError, match="so it needs 7"):
        subspace.captured_energy(torch.ones(7, 3), left=u)
    with pytest.raises(InputError, match="no basis"):
        subspace.captured_energy(torch.ones(7, 3))
    with pytest.raises(InputError, match="zero or not finite"):
        subspace.captured_energy(torch.zeros(10, 3), left=u)
