"""Rules on recorded losses: who is accepted, what is left out, how often a window says no."""

import math

import numpy as np
import pytest
import torch

from kronzo import InputError
from kronzo.rules import Average, Directional, Normalized
from kronzo.settings import rule_of

INF, NAN = math.inf, math.nan


def test_average_leaves_out_what_is_not_finite():
    outcome = Average().decide([[1.2, 1.0], [NAN, 1.0], [INF, 1.0], [0.8, 1.0]], 0.1, [])
    assert outcome.coefficients[:1] + outcome.coefficients[3:] == pytest.approx((1.0, -1.0))
    assert all(map(math.isnan, outcome.coefficients[1:3]))
    assert outcome.update == pytest.approx({0: -0.5, 3: 0.5}) and outcome.accepted


def test_no_finite_probe_is_no_move():
    for rule in (Average(), Normalized(), Average(one_sided=True), Normalized(one_sided=True)):
        outcome = rule.decide([[NAN, 1.0], [INF, 1.0]], 0.1, [])
        assert outcome.update == {} and not outcome.accepted


def test_normalized_has_rms_one_and_no_move_where_it_cannot():
    outcome = Normalized().decide([[1.3, 1.0], [0.6, 1.0]], 0.5, [])
    c = np.array(outcome.coefficients)
    assert [outcome.update[0], outcome.update[1]] == pytest.approx(list(-c / (2 * np.sqrt((c**2).mean()))))
    assert Normalized().decide([[1.3, 1.0]], 0.5, []).update == {}
    assert Normalized().decide([[1.0, 1.0], [1.0, 1.0]], 0.5, []).update == {}
    scaled = Normalized().decide([[130.0, 100.0], [60.0, 100.0]], 0.5, [])
    assert scaled.update == pytest.approx(outcome.update)


def row(candidate, at_theta, c=1.0):
    return [1.0, 1.0, candidate, c, at_theta]


def test_directional_takes_the_best_improving_candidate():
    outcome = Directional().decide([row(2.0, 3.0, 0.5), row(1.0, 3.0, 0.7), row(5.0, 3.0)], 0.1, [INF] * 3)
    assert outcome.update == {1: -0.7} and outcome.candidate_loss == 1.0 and outcome.window == [INF, INF, 1.0]


def test_directional_stays_without_improvement_whatever_the_window_says():
    outcome = Directional().decide([row(3.0, 3.0), row(4.0, 3.0)], 0.1, [INF] * 2)
    assert outcome.update == {} and not outcome.accepted and outcome.window == [INF, 3.0]


def test_directional_stays_above_the_window_and_the_window_moves():
    outcome = Directional().decide([row(2.0, 3.0)], 0.1, [1.0, 1.5])
    assert outcome.update == {} and outcome.threshold == 1.5 and outcome.window == [1.5, 2.0]
    assert Directional("replace_max").decide([row(2.0, 3.0)], 0.1, [1.0, 1.5]).window == [1.0, 2.0]
    assert Directional("accepted").decide([row(2.0, 3.0)], 0.1, [1.0, 1.5]).window == [1.0, 1.5]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_directional_ignores_candidates_that_are_not_finite(bad):
    assert Directional().decide([row(bad, 3.0), row(2.0, 3.0)], 0.1, [INF]).update == {1: -1.0}
    outcome = Directional().decide([row(2.0, bad)], 0.1, [7.0])
    assert outcome.update == {} and outcome.window == [7.0]


@pytest.mark.parametrize(
    ("rule", "low", "high"), [("sliding", 0.07, 0.11), ("replace_max", 0.4, 0.65), ("accepted", 0.8, 1.0)]
)
def test_rejection_rates_under_stationary_noise(rule, low, high):
    """h = 10: the sliding window rejects about 1/(h + 1), the printed rule half, the authors' code nearly all."""
    rng = np.random.default_rng(0)
    directional, window, rejected, steps = Directional(rule), [INF] * 10, 0, 4000
    for best in rng.standard_normal(steps):
        outcome = directional.decide([row(best, best + 1)], 0.1, window)
        window, rejected = outcome.window, rejected + (not outcome.accepted)
    assert low < rejected / steps < high


class Recorded:
    """A trial whose losses are a quadratic of one coordinate."""

    directions, eps = 2, 0.01

    def loss(self, kind, combination, part):
        x = sum(float(c) for c in combination.values()) * (self.eps if kind == "probe" else 0.1)
        return torch.tensor((1 + x) ** 2, dtype=torch.float64)

    def part(self, i):
        return None

    def reachable(self, c):
        return c


def test_measured_rows_are_the_losses_of_the_algorithms():
    rows = Directional().measure(Recorded()).tolist()
    assert rows[0] == pytest.approx([1.01**2, 0.99**2, (1 - 0.2) ** 2, 2.0, 1.0])
    assert Average().measure(Recorded()).tolist()[1] == pytest.approx([1.01**2, 0.99**2])
    assert Average(one_sided=True).measure(Recorded()).tolist()[1] == pytest.approx([1.01**2, 1.0])


def test_rule_names():
    assert rule_of("directional", "accepted") == Directional("accepted")
    assert rule_of(Normalized(True), "sliding") == Normalized(True)
    for wrong in (("averaging", "sliding"), ("average", "slide")):
        with pytest.raises(InputError):
            rule_of(*wrong)
