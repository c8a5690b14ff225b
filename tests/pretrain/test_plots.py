"""What is drawn is what was given: numbers read back from the artists."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kronzo.errors import InputError
from kronzo.pretrain import plots
from spectra import style

NAMES = ["adamw", "adamw-tokens", "kronzo-directional", "kronzo-average", "lozo", "subzero", "mezo"]
REFERENCE = {"unigram": 3.3, "bigram": 2.6, "uniform": 5.5}
FINAL = dict(zip(NAMES, (2.0, 2.4, 3.31, 3.3, 3.305, 3.32, 3.302)))


@pytest.fixture(scope="module")
def course() -> pd.DataFrame:
    """Eleven evaluations of seven runs, five of which end within 0.02 nats."""
    share = np.linspace(0, 1, 11)
    runs = [
        pd.DataFrame({"token_forwards": 1e6 * share, "tokens": 1e4 * share, "seconds": 20 * share}).assign(
            run=name, label=f"label of {name}", val_loss=5.5 + (loss - 5.5) * share
        )
        for name, loss in FINAL.items()
    ]
    return pd.concat(runs, ignore_index=True)


@pytest.fixture(scope="module")
def trials() -> pd.DataFrame:
    rows = [
        ("mezo", 0, 0.25, 1e-3, 4.0), ("mezo", 0, 0.25, 1e-2, 3.5), ("mezo", 0, 0.25, 1e-1, math.nan),
        ("mezo", 1, 1.0, 1e-2, 3.2), ("lozo", 0, 0.25, 1e-3, 3.9), ("lozo", 0, 0.25, 1e-2, 9.0),
    ]  # fmt: skip
    return pd.DataFrame(rows, columns=["method", "rung", "fraction", "lr", "val_loss"]).assign(kept=True, seconds=1.0)


def runs_of(axes: Axes) -> list:
    """The lines in data coordinates that are no reference lines."""
    return [line for line in axes.lines if line.get_transform() == axes.transData and line.get_linestyle() != ":"]


def overlaps(figure: Figure, axes: Axes) -> list[tuple[str, str]]:
    """Pairs of texts of the margin that cover each other."""
    figure.draw_without_rendering()
    boxes = [(text.get_text(), text.get_window_extent()) for text in axes.texts]
    return [(a, b) for (a, box), (b, other) in itertools.combinations(boxes, 2) if box.overlaps(other)]


@pytest.mark.parametrize("wide", [True, False])
def test_curves_draw_every_evaluation_after_the_first_step(course: pd.DataFrame, wide: bool) -> None:
    figure = plots.curves(course, REFERENCE, wide=wide)
    assert len(figure.axes) == 3
    for axes, column in zip(figure.axes, plots.BUDGETS, strict=True):
        assert axes.get_xscale() == "log"
        for line, name in zip(runs_of(axes), NAMES, strict=True):
            drawn = course[(course["run"] == name) & (course["token_forwards"] > 0)]
            np.testing.assert_array_equal(line.get_xdata(), drawn[column])
            np.testing.assert_array_equal(line.get_ydata(), drawn["val_loss"])
            assert line.get_color() == plots.look(name)["color"]
        lines = [line.get_ydata()[0] for line in axes.lines if line.get_linestyle() == ":"]
        assert lines == [REFERENCE["unigram"], REFERENCE["bigram"]]


@pytest.mark.parametrize("wide", [True, False])
def test_names_in_the_margin_are_all_there_and_do_not_overlap(course: pd.DataFrame, wide: bool) -> None:
    with style.journal():
        figure = plots.curves(course, REFERENCE, wide=wide)
        axes = figure.axes[-1]
        expected = [f"label of {name}" for name in NAMES] + ["unigram", "bigram"]
        assert sorted(text.get_text() for text in axes.texts) == sorted(expected)
        assert overlaps(figure, axes) == []
        heights = {text.get_text(): text.get_position()[1] for text in axes.texts}
        assert sorted(heights, key=lambda text: heights[text])[:2] == ["label of adamw", "label of adamw-tokens"]


def test_axis_labels_do_not_overlap_on_less_than_a_decade(course: pd.DataFrame) -> None:
    with style.journal():
        figure = plots.curves(course[course["token_forwards"] > 4e5], REFERENCE)
        figure.draw_without_rendering()
        for axes in figure.axes:
            boxes = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
            assert len(boxes) >= 1
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_losses_stand_in_order_with_their_values() -> None:
    frame = pd.DataFrame({"run": NAMES, "label": NAMES, "val_loss": FINAL.values()})
    frame.loc[len(frame)] = ["sgd", "sgd", math.nan]
    axes = plots.losses(frame, REFERENCE).axes[0]
    ranked = sorted(FINAL, key=lambda name: FINAL[name])
    assert [label.get_text() for label in axes.get_yticklabels()] == ranked
    assert [float(line.get_xdata()[0]) for line in runs_of(axes)] == sorted(FINAL.values())
    assert axes.get_ylim()[0] > axes.get_ylim()[1], "the lowest loss stands on top"
    assert f"{FINAL['mezo']:.3f}" in [text.get_text() for text in axes.texts]


@pytest.mark.parametrize("wide", [True, False])
def test_tuning_draws_the_trials_marks_the_chosen_and_what_is_off_the_scale(trials: pd.DataFrame, wide: bool) -> None:
    labels, chosen = {"mezo": "MeZO", "lozo": "LOZO"}, {"mezo": 1e-2, "lozo": 1e-3}
    figure = plots.tuning(trials, labels, chosen, top=5.5, wide=wide)
    mezo, lozo = figure.axes[:2]
    assert (mezo.get_title(), lozo.get_title()) == ("MeZO", "LOZO")
    first, second, beyond, ring = mezo.lines
    assert list(first.get_xdata()) == [1e-3, 1e-2] and list(first.get_ydata()) == [4.0, 3.5]
    assert list(second.get_ydata()) == [3.2] and second.get_alpha() > first.get_alpha()
    assert list(beyond.get_xdata()) == [1e-1] and list(beyond.get_ydata()) == [5.5]
    assert (list(ring.get_xdata()), list(ring.get_ydata())) == ([1e-2], [3.2])
    assert list(lozo.lines[1].get_ydata()) == [5.5], "9.0 lies above a uniform guess"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "25 % of the budget", "100 % of the budget", "chosen",
    ]  # fmt: skip


def test_tuning_with_nothing_but_diverged_trials_is_drawn(trials: pd.DataFrame) -> None:
    figure = plots.tuning(trials.assign(val_loss=math.nan), {}, {}, top=5.5)
    assert len(figure.axes[0].lines[-2].get_xdata()) == 4


def test_steps_draw_running_means(course: pd.DataFrame) -> None:
    count = 100
    accepted = np.arange(count) % 4 != 0
    rows = pd.DataFrame(
        {"step": np.arange(1, count + 1), "accepted": accepted, "coefficient_rms": np.linspace(1, 2, count)}
    )
    frame = pd.concat(
        [
            rows.assign(run="kronzo-directional", label="a", rule="directional"),
            rows.assign(run="mezo", label="b", rule="average", accepted=True),
        ]
    )
    figure = plots.steps(frame, rejected=0.1)
    share, size = figure.axes
    (line,) = runs_of(share)
    expected = [np.mean(accepted[max(0, i - 4) : i + 1]) for i in range(count)]
    np.testing.assert_allclose(line.get_ydata(), expected)
    assert [line.get_ydata()[0] for line in share.lines if line.get_linestyle() == ":"] == [0.9]
    assert "reported" in [text.get_text() for text in share.texts]
    assert len(runs_of(size)) == 2 and size.get_yscale() == "log"
    assert len(plots.steps(frame[frame["rule"] == "average"]).axes) == 1, "no panel without a directional run"


def test_one_look_for_a_method_and_another_dash_for_its_second_budget() -> None:
    first, second = plots.look("adamw"), plots.look("adamw-tokens")
    assert first["color"] == second["color"] and first["marker"] == second["marker"]
    assert (first["linestyle"], second["linestyle"]) == ("-", "--") and second["markerfacecolor"] == "white"
    assert plots.look("mezo-directional")["color"] == style.COLORS["mezo"]
    assert plots.look("unheard-of")["color"] == style.COLORS["other"]


def test_nothing_to_draw_is_refused(course: pd.DataFrame, trials: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="no run has a validation loss after its first step"):
        plots.curves(course[course["token_forwards"] == 0], REFERENCE)
    with pytest.raises(InputError, match="no run has a final validation loss"):
        plots.losses(pd.DataFrame({"run": ["a"], "label": ["a"], "val_loss": [math.nan]}), REFERENCE)
    with pytest.raises(InputError, match="no trials"):
        plots.tuning(trials[:0], {}, {})
    with pytest.raises(InputError, match="no zeroth-order steps"):
        plots.steps(pd.DataFrame(columns=["run", "label", "rule", "step", "accepted", "coefficient_rms"]))


@given(st.lists(st.floats(-10, 10), max_size=12), st.floats(0.01, 2))
def test_spread_keeps_order_distance_and_centre(values: list[float], gap: float) -> None:
    placed = plots.spread(values, gap)
    assert placed.shape == (len(values),)
    order = np.argsort(values, kind="stable")
    assert (np.diff(placed[order]) >= gap * (1 - 1e-9)).all()
    np.testing.assert_allclose(placed.sum(), np.sum(values), atol=1e-6)


def test_spread_leaves_alone_what_is_far_apart() -> None:
    np.testing.assert_allclose(plots.spread([3.0, 1.0, 2.0], 0.5), [3.0, 1.0, 2.0])
    np.testing.assert_allclose(plots.spread([1.0, 1.0], 0.5), [0.75, 1.25])
