"""R(G) against torch.kron, the nearest product against planted ones, the law of <G, Z> against its theory."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectra import InputError, kronecker, metrics, search_law, singular_values

sides = st.integers(1, 4)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(sides, sides, sides, sides, st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_a_kronecker_product_rearranges_to_rank_one(m1, m2, n1, n2, seed):
    a, b = normal(m1, n1, seed=seed), normal(m2, n2, seed=seed + 100)
    z = torch.kron(a, b)
    np.testing.assert_allclose(
        kronecker.rearrange(z, (m1, m2, n1, n2)), torch.outer(a.flatten(), b.flatten()), rtol=1e-12
    )
    tau = kronecker.kronecker_values(z, (m1, m2, n1, n2))
    assert tau[0] == pytest.approx(float(a.norm() * b.norm()))
    assert np.all(tau[1:] <= 1e-7 * tau[0])
    found = kronecker.nearest_kronecker(z, (m1, m2, n1, n2))
    np.testing.assert_allclose(np.kron(found.a, found.b), z, atol=1e-9)
    assert found.residual < 1e-6


@pytest.mark.parametrize("shapes", [(4, 6, 3, 8), (2, 12, 2, 12), (24, 1, 24, 1)])
def test_the_participation_ratio_needs_no_singular_values_and_no_single_block(monkeypatch, shapes):
    monkeypatch.setattr(kronecker, "ROWS", 5)
    g = normal(24, 24) * torch.linspace(0, -4, 24, dtype=torch.float64).exp() * 1e-200
    expected = metrics.participation_ratio(kronecker.kronecker_values(g, shapes))
    assert kronecker.kronecker_participation(g, shapes) == pytest.approx(expected, rel=1e-9)
    assert kronecker.kronecker_participation(0 * g) == 0
    with pytest.raises(InputError, match="NaN or inf"):
        kronecker.kronecker_participation(g / 0)


def test_values_keep_the_energy_and_find_the_number_of_products():
    g = sum(torch.kron(normal(6, 4, seed=i), normal(4, 6, seed=i + 50)) for i in range(3))
    tau = kronecker.kronecker_values(g, (6, 4, 4, 6))
    assert float(tau @ tau) == pytest.approx(float((g**2).sum()))
    assert metrics.numerical_rank(tau, (24, 24)) == 3
    found = kronecker.nearest_kronecker(g, (6, 4, 4, 6))
    assert found.residual == pytest.approx((1 - tau[0] ** 2 / (tau @ tau)) ** 0.5)
    assert float((g - torch.from_numpy(np.kron(found.a, found.b))).norm() / g.norm()) == pytest.approx(found.residual)


@pytest.mark.parametrize(
    ("size", "pair"),
    [
        (2304, (48, 48)),
        (768, (24, 32)),
        (3072, (48, 64)),
        (50257, (29, 1733)),
        (50304, (192, 262)),
        (7, (1, 7)),
        (1, (1, 1)),
    ],
)
def test_square_pairs_are_those_of_the_paper(size, pair):
    assert kronecker.square_pair(size) == pair


def test_splits_find_the_planted_shapes_within_a_budget():
    g = torch.kron(normal(2, 6, seed=1), normal(12, 4, seed=2)) + 0.01 * normal(24, 24, seed=3)
    best = kronecker.splits(g)[0]
    assert best.shapes == (2, 12, 6, 4) and best.energy > 0.99 and best.stored == 12 + 48
    assert all(split.stored <= 72 for split in kronecker.splits(g, max_stored=72))
    with pytest.raises(InputError, match="smallest split stores 48"):
        kronecker.splits(g, max_stored=10)
    with pytest.raises(InputError, match="m1 m2 = 24"):
        kronecker.rearrange(g, (5, 5, 6, 4))


def test_the_law_of_the_coefficient_has_the_predicted_kurtosis():
    generator = torch.Generator().manual_seed(0)
    g = normal(12, 2, seed=5) @ normal(2, 12, seed=6) + 0.05 * normal(12, 12, seed=7)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    samplers = {
        "dense": lambda: draw(12, 12),
        "rank 1": lambda: draw(12, 1) @ draw(1, 12),
        "rank 2": lambda: draw(12, 2) @ draw(2, 12) / 2**0.5,
        "kronecker": lambda: torch.kron(draw(3, 3), draw(4, 4)),
    }
    law = search_law.search(g, samplers, samples=20000).set_index("sampler")
    predicted = {
        "dense": search_law.predicted_kurtosis(g, "dense"),
        "rank 1": search_law.predicted_kurtosis(g, "lowrank", rank=1),
        "rank 2": search_law.predicted_kurtosis(g, "lowrank", rank=2),
        "kronecker": search_law.predicted_kurtosis(g, "kronecker"),
    }
    assert predicted["rank 1"] > 2 and predicted["rank 1"] == 2 * predicted["rank 2"]
    for name, kurtosis in predicted.items():
        assert law.loc[name, "kurtosis"] == pytest.approx(kurtosis, abs=4 * law.loc[name, "kurtosis_error"] + 0.05), (
            name
        )
        assert law.loc[name, "std"] == pytest.approx(1, abs=0.05), name
        assert law.loc[name, "cos2"] == pytest.approx(1 / 144, rel=0.1), name


def test_search_refuses_what_it_cannot_measure():
    with pytest.raises(InputError, match="zero or not finite"):
        search_law.search(torch.zeros(2, 2), {})
    with pytest.raises(InputError, match=r"sampler 'bad' returned \(3,\)"):
        search_law.search(torch.eye(2), {"bad": lambda: torch.ones(3)})
    with pytest.raises(InputError, match="at least 100"):
        search_law.search(torch.eye(2), {}, samples=10)
    with pytest.raises(InputError, match="spaces are"):
        search_law.predicted_kurtosis(torch.eye(2), "tensor")


def test_the_participation_of_r_of_g_is_its_own_number():
    g = normal(16, 1, seed=1) @ normal(1, 16, seed=2)
    assert metrics.participation_ratio(singular_values(g).values) == pytest.approx(1)
    assert metrics.participation_ratio(kronecker.kronecker_values(g)) > 3
    blocky = torch.kron(torch.eye(4, dtype=torch.float64), normal(4, 4, seed=3))
    assert metrics.participation_ratio(kronecker.kronecker_values(blocky)) == pytest.approx(1)
    assert metrics.participation_ratio(singular_values(blocky).values) > 4
