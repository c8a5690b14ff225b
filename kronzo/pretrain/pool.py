"""Many runs on the cores of one machine: a process a run, each with its own fixed number of threads."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kronzo.pretrain.config import Config
from kronzo.pretrain.folder import MANIFEST
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.loop import pretrain
from kronzo.pretrain.process import interrupts, tell_warnings
from kronzo.pretrain.progress import Reporter
from kronzo.pretrain.result import Result

_slot: Any = None
_board: Any = None


@dataclass(frozen=True)
class Job:
    """One run to do.

    Args:
        config: what.
        folder: where; a finished run there is not repeated.
        cost: its share of the work, in any unit, for the time left.
        until: stop at this fraction of the run; the result's val_loss is that of the last evaluation up to there.
    """

    config: Config
    folder: Path
    cost: float
    until: float = 1.0


class Pool:
    """Processes that do jobs; a context manager. The results do not depend on how many there are.

    Args:
        threads: torch threads of a job; 0 means all cores.
        workers: processes; by default as many as the cores hold. A single one is this process itself.
        show: show progress.
    """

    def __init__(self, threads: int, *, workers: int | None = None, show: bool = True) -> None:
        cores = len(os.sched_getaffinity(0))
        self.workers = workers or max(1, cores // (threads or cores))
        self.show = show
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> Pool:
        if self.workers > 1:
            context = multiprocessing.get_context("spawn")
            self._slots: Any = context.Array("d", 2 * self.workers)
            self._taken: Any = context.Value("i", 0)
            self._said: Any = context.SimpleQueue()
            arguments = (self._slots, self._taken, self._said, os.getpid())
            self._executor = ProcessPoolExecutor(self.workers, context, _start_worker, arguments)
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Sequence[Job], title: str) -> list[Result]:
        """Do the jobs and return their results in order.

        Raises:
            KeyboardInterrupt: after Ctrl-C or SIGTERM, once every running job has saved a checkpoint.
            InputError: what a job refuses; the jobs that run save and stop first.
        """
        with Reporter(title, 1000, show=self.show) as report:
            progress = _Progress(jobs, report)
            results = self._spread(jobs, progress) if self._executor else _inline(jobs, progress)
            report.update(1000, f"{len(jobs)} of {len(jobs)} runs")
        return results

    def _spread(self, jobs: Sequence[Job], progress: _Progress) -> list[Result]:
        assert self._executor is not None
        self._slots[:] = [0.0] * len(self._slots)
        with interrupts() as interrupted:
            with _sigint_waits():
                futures = [self._executor.submit(_work, i, job) for i, job in enumerate(jobs)]
            try:
                _wait(futures, interrupted, lambda: self._show(progress, futures))
            except BaseException:
                self._executor.shutdown(wait=False, cancel_futures=True)
                for process in multiprocessing.active_children():
                    process.terminate()
                raise
        return [future.result() for future in futures]

    def _show(self, progress: _Progress, futures: Sequence[Future[Result]]) -> None:
        while not self._said.empty():
            progress.report.say(self._said.get())
        progress.show(futures, list(self._slots))


@contextmanager
def _sigint_waits() -> Iterator[None]:
    """Hold Ctrl-C back meanwhile, here and in the processes begun meanwhile, which would die of it while they import.

    They let it in themselves once they ignore it: a terminal sends it to all, and the parent ends them in order.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Progress:
    """Shares of the work done, from finished jobs and what the workers report of the running ones."""

    def __init__(self, jobs: Sequence[Job], report: Reporter) -> None:
        self.costs = [job.cost for job in jobs]
        self.total = sum(self.costs) or 1.0
        self.report = report

    def show(self, futures: Sequence[Future[Result]], slots: Sequence[float]) -> None:
        """`slots` holds (job number, fraction done) of each worker."""
        finished = [future.done() for future in futures]
        running = {int(slots[k]): slots[k + 1] for k in range(0, len(slots), 2)}
        shares = [1.0 if done else running.get(i, 0.0) for i, done in enumerate(finished)]
        self.update(shares, sum(finished))

    def update(self, shares: Sequence[float], finished: int) -> None:
        """Report fractions done, a number a job."""
        share = sum(f * cost for f, cost in zip(shares, self.costs, strict=True)) / self.total
        self.report.update(min(round(1000 * share), 999), f"{finished} of {len(self.costs)} runs")


def _inline(jobs: Sequence[Job], progress: _Progress) -> list[Result]:
    import torch

    before = torch.get_num_threads()
    shares = [0.0] * len(jobs)

    def note(i: int, fraction: float) -> None:
        shares[i] = fraction
        progress.update(shares, i)

    try:
        return [_run(i, job, note) for i, job in enumerate(jobs)]
    finally:
        torch.set_num_threads(before)


def _run(i: int, job: Job, note: Any) -> Result:
    import torch

    if job.config.threads:
        torch.set_num_threads(job.config.threads)
    done = 0.0

    def watch(fraction: float) -> None:
        nonlocal done
        done = fraction
        note(i, min(1.0, fraction / job.until))

    stop = None if job.until == 1.0 else lambda step: done >= job.until
    result = pretrain(job.config, job.folder, progress=False, watch=watch, stop=stop)
    note(i, 1.0)
    return result if job.until == 1.0 or result.diverged else replace(result, val_loss=_loss_at(job))


def _loss_at(job: Job) -> float:
    """The last validation loss up to the fraction at which the job ends, whether or not the run has gone further."""
    steps = json.loads((job.folder / MANIFEST).read_text(encoding="utf-8"))["steps"]
    metrics = read_metrics(job.folder)
    reached = metrics[metrics["step"] <= math.ceil(job.until * steps)]
    return float(reached["val_loss"].dropna().iloc[-1])


def _wait(futures: Sequence[Future[Result]], interrupted: threading.Event, show: Any) -> None:
    """Wait for all; the first failure or an interrupt ends the waiting."""
    left = set(futures)
    while left:
        finished, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        show()
        if interrupted.is_set():
            raise KeyboardInterrupt
        for future in finished:
            future.result()


def _start_worker(slots: Any, taken: Any, said: Any, parent: int) -> None:
    global _board, _slot
    with taken.get_lock():
        _slot, taken.value = taken.value, taken.value + 1
    _board = slots
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    tell_warnings(said.put)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """End this process when its parent is gone: a killed command must leave nobody who writes its folders."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(i: int, job: Job) -> Result:
    def note(number: int, fraction: float) -> None:
        _board[2 * _slot], _board[2 * _slot + 1] = number, fraction

    return _run(i, job, note)
