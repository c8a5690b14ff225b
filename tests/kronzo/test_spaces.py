"""Search spaces: equal to torch.kron and U V^T in any pieces, unit scale, and momentum carried by projection."""

import math

import oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kronzo import InputError
from kronzo.noise import Noise
from kronzo.spaces import Dense, Diagonal, Kronecker, LowRank, Subspace
from kronzo.spaces.base import dense_direction, stored_numbers
from kronzo.spaces.kronecker import best_pair, factor_shapes

FAMILIES = {
    "kronecker": (Kronecker(), oracles.kronecker),
    "low rank": (LowRank(2), oracles.low_rank(2)),
    "published": (LowRank(3, "published"), oracles.low_rank(3, 1.0)),
    "subspace": (Subspace(3), oracles.subspace(3)),
    "diagonal": (Diagonal(3), oracles.diagonal(3)),
    "dense": (Dense, oracles.dense),
}


def drawn(family, shape, seed=0, step=0, kept_step=0, index=0, i=0):
    space = family(torch.Size(shape))
    kept = space.make_kept(lambda k, s: Noise(seed, kept_step).kept(index, k, s))
    x = torch.empty(space.coordinates)
    Noise(seed, step).coordinates(i, {index: x.view(-1).numpy()})
    return space, x.double(), {k: v.double() for k, v in kept.items()}


@pytest.mark.parametrize("name", FAMILIES)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 39), st.integers(1, 40), st.booleans())
def test_any_rows_of_any_shape_equal_the_naive_z(name, m, n, start, count, transposed):
    family, naive = FAMILIES[name]
    space, x, kept = drawn(family, (m, n), seed=3, step=4, kept_step=2, index=5, i=1)
    z = naive(3, 4, 2, 5, 1, (m, n)).view(m, n)
    start = min(start, m - 1)
    rows = min(count, m - start)
    out = torch.zeros(n, m, dtype=torch.float64).t() if transposed else torch.zeros(m, n, dtype=torch.float64)
    space.add_rows_(out[start : start + rows], x, kept, start)
    torch.testing.assert_close(out[start : start + rows], z[start : start + rows], rtol=1e-5, atol=1e-6)
    assert out[:start].abs().sum() == 0 and out[start + rows :].abs().sum() == 0


@given(st.integers(1, 150), st.integers(1, 150), st.integers(1, 60), st.sampled_from([torch.float32, torch.float64]))
def test_the_product_of_a_whole_weight_is_its_rows_bit_for_bit(m, n, rows, dtype):
    space, x, kept = drawn(Kronecker(), (m, n), seed=n)
    x, kept = x.to(dtype), {"B": kept["B"].to(dtype)}
    whole = torch.randn(m, n, generator=torch.Generator().manual_seed(m)).to(dtype)
    pieces = whole.clone()
    product = space.as_product(whole, x, kept)
    if product.spread is not None:
        product.spread[0].copy_(product.spread[1])
        assert product.a.numel() + product.b.numel() == space.widened
    product.weight.addcmul_(product.a, product.b)
    for start in range(0, m, rows):
        space.add_rows_(pieces[start : start + rows], x, kept, start)
    assert torch.equal(whole, pieces)


@pytest.mark.parametrize("name", [n for n in FAMILIES if n != "published"])
def test_unit_scale(name):
    """E[vec Z vec Z^T] = I: every entry of the mean of 4 000 outer products within 6 of its standard errors."""
    family, _ = FAMILIES[name]
    samples, shape = 4000, (6, 5)
    zs = []
    for k in range(samples):
        space, x, kept = drawn(family, shape, seed=k, step=k, kept_step=k)
        zs.append(dense_direction(space, x, kept).flatten())
    products = torch.einsum("ka,kb->kab", torch.stack(zs), torch.stack(zs))
    error = (products.mean(0) - torch.eye(30, dtype=torch.float64)) / (products.std(0) / math.sqrt(samples))
    assert error.abs().max() < 6
    assert torch.diagonal(products.mean(0)).mean().item() == pytest.approx(1.0, abs=0.06)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("shape", [(12, 18), (7, 9), (16, 6)])
def test_momentum_is_carried_to_the_nearest_point_of_the_new_space(name, shape):
    family, naive = FAMILIES[name]
    space, x, old = drawn(family, shape, kept_step=0)
    _, _, new = drawn(family, shape, kept_step=1)
    m = dense_direction(space, x, old).flatten()
    basis = oracles.span(naive, 0, 1, 0, shape, math.prod(shape) + 2)
    carried = dense_direction(space, space.carry(x, old, new), new).flatten()
    torch.testing.assert_close(carried, basis.T @ (basis @ m), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", FAMILIES)
def test_rank_and_stored_numbers_are_true(name):
    family, _ = FAMILIES[name]
    space, x, kept = drawn(family, (24, 36))
    assert torch.linalg.matrix_rank(dense_direction(space, x, kept)).item() == space.rank
    assert stored_numbers(space) == x.numel() + sum(v.numel() for v in kept.values())


def test_gpt2_factors_of_the_paper():
    for (m, n), (m1, m2, n1, n2), stored in [
        ((2304, 768), (48, 48, 24, 32), 2688),
        ((768, 768), (24, 32, 24, 32), 1600),
        ((3072, 768), (48, 64, 24, 32), 3200),
        ((768, 3072), (24, 32, 48, 64), 3200),
        ((1024, 768), (32, 32, 24, 32), 1792),
        ((50304, 768), (192, 262, 24, 32), 12992),
        ((50257, 768), (29, 1733, 24, 32), 56152),
    ]:
        assert factor_shapes(m, n) == (m1, m2, n1, n2)
        space = Kronecker()(torch.Size((m, n)))
        assert stored_numbers(space) == stored and space.rank == min(m, n)


def test_the_rank_of_a_wide_and_a_tall_factor_is_not_claimed_full():
    family = Kronecker(lambda m, n: (1, m, n, 1))
    space, x, kept = drawn(family, (6, 6))
    assert space.rank == 1 == torch.linalg.matrix_rank(dense_direction(space, x, kept)).item()


@given(st.integers(1, 5000))
def test_best_pair_is_algorithm_1(k):
    assert best_pair(k) == oracles.algorithm_1(k)
    assert math.prod(best_pair(k)) == k


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 64))
@settings(max_examples=100)
def test_max_takes_the_largest_divisor(m, n, k):
    m1, m2, n1, n2 = factor_shapes(m, n, ("max", k))
    assert (m1 * m2, n1 * n2) == (m, n)
    assert m1 == max(d for d in range(1, k + 1) if m % d == 0) and n1 == max(d for d in range(1, k + 1) if n % d == 0)


@pytest.mark.parametrize(
    "factors", ["round", ("max", 0), ("min", 3), 7, lambda m, n: (2, m, 1, n), lambda m, n: (1, m)]
)
def test_wrong_factors_are_refused(factors):
    with pytest.raises(InputError, match="factors"):
        factor_shapes(6, 4, factors)


@pytest.mark.parametrize("rank", [0, -1, 1.5, True])
def test_wrong_ranks_are_refused(rank):
    for family in (LowRank, Subspace, Diagonal):
        with pytest.raises(InputError, match="rank"):
            family(rank)


def test_convolutions_are_searched_as_shape_0_by_the_rest():
    for family in (Kronecker(), LowRank(2), Subspace(2), Diagonal(2)):
        assert family(torch.Size((8, 3, 3, 3))).matrix == (8, 27)
        assert isinstance(family(torch.Size((8,))), Dense)
