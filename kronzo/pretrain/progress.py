"""Progress with the time left: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from contextlib import ExitStack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_BAR_SECONDS = 0.5
_LINE_SECONDS = 10.0


class Reporter:
    """Shows how far a run is, on standard error; a context manager.

    Args:
        title: what is running.
        total: steps in all.
        done: steps done before, when a run goes on.
        show: False shows nothing but `say`.
        console: where to; standard error by default.
    """

    def __init__(
        self, title: str, total: int, done: int = 0, *, show: bool = True, console: Console | None = None
    ) -> None:
        self._console = console or Console(stderr=True)
        self._title, self._total, self._first = title, total, done
        self._show = show
        self._started = self._shown = time.monotonic()
        self._bar: Progress | None = None
        if show and self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                MofNCompleteColumn(),
                TextColumn("{task.fields[note]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=self._console,
                auto_refresh=False,
            )
            self._task = self._bar.add_task(title, total=total, completed=done, note="")

    def update(self, done: int, note: str = "") -> None:
        """Report the steps done so far; cheap to call after every step."""
        now = time.monotonic()
        pause = _BAR_SECONDS if self._bar else _LINE_SECONDS
        if not self._show or (now - self._shown < pause and done < self._total):
            return
        self._shown = now
        if self._bar:
            self._bar.update(self._task, completed=done, note=note, refresh=True)
        elif now - self._started > _BAR_SECONDS:
            left = (now - self._started) / max(1, done - self._first) * (self._total - done)
            words = [f"{self._title}: {done}/{self._total}", note, f"{left:.0f} s left" if left else "done"]
            self.say(", ".join(word for word in words if word))

    def say(self, message: str) -> None:
        """Show a message above the bar, also when nothing else is shown."""
        self._console.print(message, highlight=False, soft_wrap=True)

    def __enter__(self) -> Reporter:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()


class Stages:
    """One `Reporter` after the other, a new one whenever the label changes; a context manager.

    Args:
        show: False shows nothing.
        console: where to; standard error by default.
    """

    def __init__(self, *, show: bool = True, console: Console | None = None) -> None:
        self._show, self._console = show, console
        self._open = ExitStack()
        self._label: str | None = None

    def update(self, label: str, done: int, total: int) -> None:
        """Report how much of the work called `label` is done."""
        if label != self._label:
            self._open.close()
            self._label = label
            self._bar = self._open.enter_context(Reporter(label, total, done, show=self._show, console=self._console))
        self._bar.update(done)

    def __enter__(self) -> Stages:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
