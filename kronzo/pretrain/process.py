"""What a run does to its process: random streams, signals, memory."""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import torch

from kronzo.pretrain.torchrun import place


def peak_bytes(device: str) -> int:
    """Return the most memory held so far: allocated on a GPU, else the resident set of the process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    if (status := Path("/proc/self/status")).is_file():
        return resident_bytes("VmHWM", status)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def resident_bytes(key: str, status: Path = Path("/proc/self/status")) -> int:
    """Return what Linux says of the process's resident set: "VmRSS" now, "VmHWM" at most since the program began.

    getrusage would start from the peak of the process that started this one.
    """
    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024


def tell_warnings(say: Callable[[str], object]) -> None:
    """Hand the warnings of this process to `say` as sentences: where in a library they arose helps no user."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        say(f"warning: {message}")

    warnings.showwarning = show


@contextmanager
def processes(device: str) -> Iterator[None]:
    """Join the processes that torchrun has started, if it has: by NCCL on GPUs, one each, else by gloo."""
    if place()[1] == 1 or torch.distributed.is_initialized():
        yield
        return
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def own_random_stream(device: str) -> Iterator[None]:
    """Put torch's random streams back at the end."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()] if device == "cuda" else []):
        yield


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C or SIGTERM into a flag that the loop reads between steps; the second one acts at once."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def notice(*_: object) -> None:
        flag.set()
        restore()

    for number in before:
        signal.signal(number, notice)
    try:
        yield flag
    finally:
        restore()
