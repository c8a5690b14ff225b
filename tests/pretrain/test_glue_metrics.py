"""The metrics of GLUE against their definitions, written out."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from kronzo.pretrain import glue_metrics
from kronzo.pretrain.glue_data import TASKS
from kronzo.pretrain.glue_metrics import headline, scores

LABELS = [0.0, 1, 1, 0, 1, 1, 0, 1]
GUESSES = [0.0, 1, 0, 1, 1, 1, 0, 0]


def test_accuracy_and_correlations_by_definition() -> None:
    assert scores(TASKS["rte"], LABELS, GUESSES) == {"accuracy": 5 / 8}
    right, given = [0.0, 1.5, 2.5, 5.0, 3.0], [0.2, 0.1, 3.0, 4.0, 9.0]
    found = scores(TASKS["stsb"], right, given)
    a, b = np.asarray(right) - np.mean(right), np.asarray(given) - np.mean(given)
    assert found["pearson"] == pytest.approx(float(a @ b) / math.sqrt(float(a @ a) * float(b @ b)), rel=1e-12)
    ranks = np.asarray([0.0, 1, 2, 4, 3]), np.asarray([1.0, 0, 2, 3, 4])
    distance = float(np.sum((ranks[0] - ranks[1]) ** 2))
    assert found["spearman"] == pytest.approx(1 - 6 * distance / (5 * 24), rel=1e-12)
    assert headline(found) == (found["pearson"] + found["spearman"]) / 2


def test_constant_predictions_correlate_with_nothing() -> None:
    assert scores(TASKS["stsb"], [1.0, 2.0, 3.0], [2.0, 2.0, 2.0]) == {"pearson": 0.0, "spearman": 0.0}


def test_every_task_has_metrics_that_exist() -> None:
    assert all(set(task.metrics) <= set(glue_metrics.METRICS) for task in TASKS.values())
    twofold = {name for name, task in TASKS.items() if len(task.metrics) == 2}
    assert twofold == {"mrpc", "qqp", "stsb"} and TASKS["cola"].metrics == ("matthews",)


@pytest.mark.extra
def test_f1_and_matthews_by_definition() -> None:
    pytest.importorskip("sklearn")
    count = {(r, g): sum((a, b) == (r, g) for a, b in zip(LABELS, GUESSES)) for r, g in product((0, 1), repeat=2)}
    tn, fp, fn, tp = (count[key] for key in ((0, 0), (0, 1), (1, 0), (1, 1)))
    found = scores(TASKS["mrpc"], LABELS, GUESSES)
    assert found == {"f1": pytest.approx(2 * tp / (2 * tp + fp + fn)), "accuracy": 5 / 8}
    root = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert scores(TASKS["cola"], LABELS, GUESSES)["matthews"] == pytest.approx((tp * tn - fp * fn) / root)
    assert scores(TASKS["cola"], LABELS, [1.0] * 8) == {"matthews": 0.0}
    assert scores(TASKS["mrpc"], LABELS, [0.0] * 8)["f1"] == 0.0
