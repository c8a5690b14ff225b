from __future__ import annotations

import math

import pytest

from kronzo.pretrain import units


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.6, "1 k"),
        (12_345, "12.3 k"),
        (999_960, "1 M"),
        (4.92e6, "4.92 M"),
        (1.6e9, "1.6 G"),
    ],
)
def test_count(value: float, text: str) -> None:
    assert units.count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.00514, "5.14 ms"), (0.9999, "1 s"), (59.96, "1 min 00 s"), (245, "4 min 05 s"), (7_790, "2 h 09 min")],
)
def test_duration(value: float, text: str) -> None:
    assert units.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(3e-4, "3e-4"), (1.5e-5, "1.5e-5"), (0.02, "0.02"), (0.3, "0.3"), (2.0, "2")]
)
def test_rate(value: float, text: str) -> None:
    assert units.rate(value) == text


def test_sizes_and_shares() -> None:
    assert units.size(381.4 * 2**20) == "381 MiB" and units.size(5.59 * 2**30) == "5.59 GiB"
    assert units.percent(0.104) == "10 %"
    assert units.signed(-0.5, 2) == "−0.50" and units.signed(0.5, 2) == "+0.50"


def test_what_is_missing_is_a_dash_everywhere() -> None:
    formats = (units.nats, units.signed, units.count, units.size, units.duration, units.percent, units.rate)
    assert {form(math.nan) for form in formats} == {units.MISSING}


def test_listing() -> None:
    assert units.listing([]) == "" and units.listing(["a"]) == "a" and units.listing(["a", "b", "c"]) == "a, b and c"
