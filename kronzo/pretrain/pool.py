"""Many runs on the cores of one machine: a process a run, each with its own fixed number of threads."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kronzo.pretrain.config import Config
from kronzo.pretrain.loop import Result, pretrain
from kronzo.pretrain.process import interrupts
from kronzo.pretrain.progress import Reporter

_progress: Any = None


@dataclass(frozen=True)
class Job:
    """One run to do.

    Args:
        config: what.
        folder: where; a finished run there is not repeated.
        cost: its share of the work, in any unit, for the time left.
    """

    config: Config
    folder: Path
    cost: float


def run_all(jobs: Sequence[Job], *, title: str, show: bool, workers: int | None = None) -> list[Result]:
    """Run the jobs, as many at a time as there are cores for their threads, and return their results in order.

    The results do not depend on how many run at a time. With one worker they run in this process.

    Raises:
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once every running job has saved a checkpoint.
        InputError: what a job refuses; the jobs that run are finished first.
    """
    cores = len(os.sched_getaffinity(0))
    threads = max((job.config.threads or cores for job in jobs), default=1)
    workers = min(len(jobs), workers or max(1, cores // threads))
    total = sum(job.cost for job in jobs) or 1.0
    with Reporter(title, 1000, show=show) as report:

        def shown(done: Sequence[float], finished: int) -> None:
            share = sum(f * job.cost for f, job in zip(done, jobs, strict=True)) / total
            report.update(min(round(1000 * share), 999), f"{finished} of {len(jobs)} runs")

        results = _inline(jobs, shown) if workers <= 1 else _spread(jobs, workers, shown)
        report.update(1000, f"{len(jobs)} of {len(jobs)} runs")
        return results


def _inline(jobs: Sequence[Job], shown: Callable[[Sequence[float], int], None]) -> list[Result]:
    import torch

    before = torch.get_num_threads()
    done = [0.0] * len(jobs)
    results = []
    try:
        for i, job in enumerate(jobs):

            def note(fraction: float, i: int = i) -> None:
                done[i] = fraction
                shown(done, i)

            results.append(_run(job, note))
    finally:
        torch.set_num_threads(before)
    return results


def _run(job: Job, note: Callable[[float], None]) -> Result:
    import torch

    if job.config.threads:
        torch.set_num_threads(job.config.threads)
    result = pretrain(job.config, job.folder, progress=False, watch=note)
    note(1.0)
    return result


def _spread(jobs: Sequence[Job], workers: int, shown: Callable[[Sequence[float], int], None]) -> list[Result]:
    context = multiprocessing.get_context("spawn")
    shares: Any = context.Array("d", len(jobs))
    pool = ProcessPoolExecutor(workers, context, _start_worker, (shares, os.getpid()))
    with interrupts() as interrupted:
        try:
            futures = [pool.submit(_work, i, job) for i, job in enumerate(jobs)]
            _await(futures, interrupted, lambda: shown(list(shares), sum(f.done() for f in futures)))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [future.result() for future in futures]


def _await(futures: list[Future[Result]], interrupted: threading.Event, show: Callable[[], None]) -> None:
    """Wait for all; the first failure or an interrupt ends the waiting."""
    left = set(futures)
    while left:
        finished, left = wait(left, timeout=0.5, return_when=FIRST_COMPLETED)
        show()
        if interrupted.is_set():
            raise KeyboardInterrupt
        for future in finished:
            future.result()


def _start_worker(shares: Any, parent: int) -> None:
    global _progress
    _progress = shares
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()


def _die_with(parent: int) -> None:
    """End this process when its parent is gone: a killed command must leave nobody who writes its folders."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(i: int, job: Job) -> Result:
    def note(fraction: float) -> None:
        _progress[i] = fraction

    return _run(job, note)
