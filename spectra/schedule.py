"""When to capture: every N steps, at listed steps, or where a function says so."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from spectra.errors import InputError

Every = int | Iterable[int] | Callable[[int], bool]


def schedule(every: Every) -> Callable[[int], bool]:
    """Return the test "is this step captured", step 0 being the first optimizer step.

    Args:
        every: an interval (steps 0, N, 2N, ...), the steps themselves, or a callable step -> bool.

    Raises:
        InputError: an interval below 1, negative or fractional steps.
    """
    if callable(every):
        return every
    if isinstance(every, int) and not isinstance(every, bool):
        if every < 1:
            raise InputError(f"every={every}; the interval is at least 1 step; pass 50, a list of steps or a callable")
        return lambda step: step % every == 0
    if not isinstance(every, Iterable) or isinstance(every, str):
        raise InputError(f"every={every!r}; it is an interval, a list of steps or a callable; pass for instance 50")
    steps = list(every)
    if any(int(step) != step or step < 0 for step in steps):
        raise InputError(f"every={steps}; steps are whole numbers from 0; pass for instance [0, 250, 500]")
    return frozenset(int(step) for step in steps).__contains__


def logarithmic(total: int, points: int = 20) -> list[int]:
    """Return about `points` steps from 0 to total - 1, dense at the start: a value for `every`.

    Raises:
        InputError: total or points below 1.
    """
    if total < 1 or points < 1:
        raise InputError(f"logarithmic(total={total}, points={points}); both are at least 1; pass the steps of the run")
    return sorted({0, *(int(step) for step in np.round(np.geomspace(1, max(total - 1, 1), points))), total - 1})
