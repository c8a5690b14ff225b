"""Metrics against closed forms, and the inequalities and invariances that hold for every spectrum."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spectra import InputError, metrics

spectra = arrays(np.float64, st.integers(1, 30), elements=st.floats(1e-6, 1e6))


def test_the_papers_check_value():
    values = [100.0] + [60.0] * 19
    assert metrics.stable_rank(values) == pytest.approx(7.84)
    assert metrics.participation_ratio(values) == pytest.approx(17.75, abs=0.005)


def test_closed_forms_of_a_two_level_spectrum():
    s = np.array([3.0, 1.0, 1.0])
    e, p, w = s**2, s / s.sum(), s**2 / (s**2).sum()
    assert metrics.spectral_norm(s) == 3
    assert metrics.frobenius_norm(s) == pytest.approx(math.sqrt(11))
    assert metrics.nuclear_norm(s) == 5
    assert metrics.stable_rank(s) == pytest.approx(11 / 9)
    assert metrics.participation_ratio(s) == pytest.approx(121 / (e**2).sum())
    assert metrics.effective_rank(s) == pytest.approx(math.exp(-(p * np.log(p)).sum()))
    assert metrics.energy_effective_rank(s) == pytest.approx(math.exp(-(w * np.log(w)).sum()))
    assert metrics.nuclear_ratio(s) == pytest.approx(25 / 11)
    assert metrics.svd_entropy(s) == pytest.approx(-(w * np.log(w)).sum() / math.log(3))


def test_energy_rank_is_the_least_that_reaches_the_share():
    s = np.sqrt([50.0, 40.0, 5.0, 4.0, 1.0])
    assert [metrics.energy_rank(s, q) for q in (0.5, 0.51, 0.9, 0.95, 0.99, 1.0)] == [1, 2, 2, 3, 4, 5]
    np.testing.assert_allclose(metrics.energy_curve(s), [0.5, 0.9, 0.95, 0.99, 1.0])


def test_a_flat_spectrum_has_every_rank_equal_to_its_length():
    flat = np.full(17, 0.3)
    for name in ("stable_rank", "participation_ratio", "effective_rank", "energy_effective_rank", "nuclear_ratio"):
        assert metrics.METRICS[name](flat) == pytest.approx(17), name
    assert metrics.svd_entropy(flat) == pytest.approx(1)


@pytest.mark.parametrize("values", [[], [0.0, 0.0]])
def test_nothing_and_zero_have_rank_zero_without_a_warning(values, recwarn):
    numbers = metrics.compute(values, (2, 2))
    assert set(numbers.values()) == {0.0}
    assert not recwarn


def test_numerical_rank_uses_the_dtype_of_the_gradient():
    s = np.array([1.0, 1e-3, 1e-6, 1e-9])
    assert metrics.numerical_rank(s, (4, 4)) == 3
    assert metrics.numerical_rank(s, (4, 4), eps=2.0**-8) == 1
    assert metrics.numerical_rank(s, (4, 4), eps=2.0**-52) == 4


@given(spectra)
def test_the_ranks_are_ordered(s):
    chain = [metrics.stable_rank(s), metrics.participation_ratio(s), metrics.energy_effective_rank(s), float(s.size)]
    assert all(low <= high * (1 + 1e-9) for low, high in pairwise(chain))
    assert metrics.energy_effective_rank(s) <= metrics.effective_rank(s) * (1 + 1e-9)
    assert 1 - 1e-9 <= metrics.nuclear_ratio(s) <= s.size * (1 + 1e-9)


@given(spectra, st.sampled_from([1e-150, 1e-12, 3.0, 1e150]))
def test_every_rank_ignores_scale_order_and_padding(s, scale):
    other = np.concatenate([s[::-1] * scale, [0.0, 0.0]])
    for name, function in metrics.METRICS.items():
        if name in metrics.NORMS:
            assert function(other) == pytest.approx(function(s) * scale, rel=1e-9), name
        elif name != "svd_entropy":
            assert function(other) == pytest.approx(function(s), rel=1e-9), name


def test_bad_input_is_refused_with_what_to_do():
    with pytest.raises(InputError, match="1-D"):
        metrics.stable_rank(np.ones((2, 2)))
    with pytest.raises(InputError, match="NaN"):
        metrics.stable_rank([1.0, float("nan")])
    with pytest.raises(InputError, match="negative"):
        metrics.stable_rank([1.0, -1.0])
    with pytest.raises(InputError, match="0, 1"):
        metrics.energy_rank([1.0], 1.5)
    with pytest.raises(InputError, match="did you mean 'stable_rank'"):
        metrics.metric("stabel_rank")


@pytest.mark.extra
@pytest.mark.parametrize("alpha", [2.0, 3.0])
def test_a_planted_power_law_is_found(alpha):
    pytest.importorskip("powerlaw")
    energies = (1 - (np.arange(2000) + 0.5) / 2000) ** (-1 / (alpha - 1))
    found = metrics.tail_exponent(np.sqrt(energies) * 1e-9)
    assert found.exponent == pytest.approx(alpha, rel=0.03) and found.points > 1000 and found.distance < 0.02
    assert found.x_min < 5 * energies.min() / energies.max()
    assert found.likelihood_ratio > -1


@pytest.mark.extra
def test_a_log_normal_is_not_taken_for_a_power_law():
    pytest.importorskip("powerlaw")
    values = np.exp(np.random.default_rng(0).normal(size=2000) * 0.4)
    assert metrics.tail_exponent(values).points < 1500


def test_a_tail_of_few_values_is_refused():
    with pytest.raises(InputError, match="needs at least 20"):
        metrics.tail_exponent(np.ones(768))
