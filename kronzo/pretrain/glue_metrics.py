"""The official metrics of GLUE, by scikit-learn (extra glue) and scipy.

Source: Wang et al. 2019, "GLUE", table 1: Matthews' correlation for CoLA, Pearson's and Spearman's for STS-B, F1 and
accuracy for MRPC and QQP, accuracy for the others; a task with two metrics counts with their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

import numpy as np

from kronzo.errors import InputError, install
from kronzo.pretrain.glue_data import Task


def require() -> None:
    """Refuse at once where scikit-learn is missing.

    Raises:
        InputError: it is not installed.
    """
    if find_spec("sklearn") is None:
        raise InputError(f"GLUE's metrics need scikit-learn; run {install('glue')}.")


def scores(task: Task, labels: Sequence[float], predictions: Sequence[float]) -> dict[str, float]:
    """Return the official metrics of predictions, by name, each in [-1, 1].

    Args:
        task: whose.
        labels: the right class numbers or scores.
        predictions: as many class numbers or scores.

    A correlation with constant predictions, which is undefined, counts as 0, as Matthews' does.
    """
    right, given = np.asarray(labels, dtype=float), np.asarray(predictions, dtype=float)
    return {name: METRICS[name](right, given) for name in task.metrics}


def headline(values: Mapping[str, float]) -> float:
    """Return the single score of a task: the mean of its metrics."""
    return float(np.mean(list(values.values())))


def _accuracy(right: np.ndarray, given: np.ndarray) -> float:
    return float(np.mean(right == given))


def _f1(right: np.ndarray, given: np.ndarray) -> float:
    """F1 of class 1; 0 where nothing is predicted to be in it."""
    from sklearn.metrics import f1_score

    return float(f1_score(right, given, zero_division=0.0))


def _matthews(right: np.ndarray, given: np.ndarray) -> float:
    from sklearn.metrics import matthews_corrcoef

    return float(matthews_corrcoef(right, given))


def _pearson(right: np.ndarray, given: np.ndarray) -> float:
    from scipy.stats import pearsonr

    return 0.0 if _constant(right, given) else float(pearsonr(right, given).statistic)


def _spearman(right: np.ndarray, given: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return 0.0 if _constant(right, given) else float(spearmanr(right, given).statistic)


def _constant(*samples: np.ndarray) -> bool:
    return any(sample.size < 2 or np.ptp(sample) == 0.0 for sample in samples)


METRICS: dict[str, Callable[[np.ndarray, np.ndarray], float]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
