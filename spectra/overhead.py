"""What recording costs, measured while it runs, and said once when it is much."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WARN_SHARE = 0.05
"""Share of the training time above which the recorder says once that it is expensive."""

MIN_CAPTURES = 5
"""Captures before the share is judged: the first ones pay for warming up."""


@dataclass(frozen=True)
class Overhead:
    """What the recorder cost so far.

    Attributes:
        captures: number of captures.
        seconds: spent in them.
        share: seconds divided by the rest of the time since the recorder was started.
    """

    captures: int
    seconds: float
    share: float


class Meter:
    """Adds up the seconds of the captures."""

    def __init__(self) -> None:
        self._captures, self._seconds, self._started, self._warned = 0, 0.0, time.perf_counter(), False

    @property
    def overhead(self) -> Overhead:
        """The cost so far."""
        rest = time.perf_counter() - self._started - self._seconds
        share = self._seconds / rest if self._captures and rest > 0 else 0.0
        return Overhead(self._captures, self._seconds, share)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of the block."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - begin

    def count(self) -> None:
        """Count a capture, and warn once when they take much of the time; the schedule is never changed."""
        self._captures += 1
        found = self.overhead
        if found.captures >= MIN_CAPTURES and found.share > WARN_SHARE and not self._warned:
            self._warned = True
            warnings.warn(
                f"spectra takes {found.share:.0%} of the training time, "
                f"{found.seconds / found.captures:.2g} s a capture; the schedule stays; raise every= for less",
                stacklevel=5,
            )
