"""Peak memory of training a GPT-2, by part: predicted from shapes, and measured in fresh processes.

Five parts are alive at the peak, beside the interpreter with torch in it:

    weights       the parameters
    optimizer     what it keeps between steps: moments, kept factors
    activations   with a backward what it needs; else the widest moment of one block
    logits        of the tokens that are looked at together, and their softmax
    transient     gradients, copies of the weights, coordinates: the rest of the peak
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

import kronzo
from kronzo.errors import InputError
from kronzo.layout import direction_budget, needs_snapshot
from kronzo.pretrain import gpt2
from kronzo.pretrain.config import FIRST_ORDER
from kronzo.pretrain.tables import nearest
from kronzo.pretrain.units import MISSING, count, size

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
STAGES = ("weights", "optimizer", "activations", "logits", "peak")
_SAVED = 16
"""Activations of width w that a block keeps for its backward: both norms' inputs and outputs, q, k, v, the attention's
output, and 4 w before and after the GELU."""
_WIDEST = 11
"""The same while a block runs without gradients: two streams, the norm's output, 4 w before and after the GELU."""
_BACKWARD = 8
"""Gradients of the same that a block's backward holds at once."""
_HEAP = 2**25
"""Bytes from which glibc always gives an allocation pages of its own, which go back to the system when it is freed."""
_USABLE = 0.8
"""Share of the free memory that a measurement may be predicted to take: allocators hold more than what is alive."""


@dataclass(frozen=True)
class Job:
    """What is trained, and how.

    Args:
        shape: of the model.
        batch, context: sequences and tokens in each.
        method: "adamw", "sgd" or a name of kronzo.METHODS.
        dtype: of weights, activations and gradients: "float32" or "bfloat16".
        checkpoint_blocks: first order: keep one activation a block.
        full_logits: hold the logits of all tokens at once, as most training code does.
        directions: of a zeroth-order method.
        device: "cpu" or "cuda".
    """

    shape: gpt2.GPT2Config
    batch: int = 1
    context: int = 1024
    method: str = "kronzo"
    dtype: str = "float32"
    checkpoint_blocks: bool = False
    full_logits: bool = False
    directions: int = 1
    device: str = "cpu"

    def __post_init__(self) -> None:
        for key, known in (("method", (*FIRST_ORDER, *kronzo.METHODS)), ("dtype", tuple(DTYPES))):
            if getattr(self, key) not in known:
                near = nearest(getattr(self, key), known)
                raise InputError(f"{key} {getattr(self, key)!r}: one of {', '.join(known)} is needed; {near!r}?")
        if self.batch < 1 or not 1 <= self.context <= self.shape.context:
            raise InputError(
                f"{self.batch} x {self.context} tokens: at least 1 x 1 is needed, and at most the model's context of "
                f"{self.shape.context}."
            )
        if self.checkpoint_blocks and not self.first_order:
            raise InputError(f"checkpointing with {self.method}, which keeps no activations: drop it.")

    @property
    def first_order(self) -> bool:
        """Whether there is a backward."""
        return self.method in FIRST_ORDER

    def to_json(self) -> str:
        """Return the job as JSON, for the process that measures it."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Job:
        """Return the job that `to_json` wrote."""
        values = json.loads(text)
        return Job(**(values | {"shape": gpt2.GPT2Config(**values["shape"])}))


@dataclass(frozen=True)
class Parts:
    """Bytes alive at the peak of a step, above the interpreter."""

    weights: int
    optimizer: int
    activations: int
    logits: int
    transient: int

    @property
    def peak(self) -> int:
        """Their sum."""
        return sum(vars(self).values())


def predict(job: Job) -> Parts:
    """Return the parts from the shapes alone; nothing is allocated.

    A first-order step peaks where its backward starts, with every activation and the gradient of the tied head, or
    where it ends, with every gradient. On a CPU the heap has not shrunk by then: what
    was freed between tensors that live on stays resident, all activations or, if more, a step's gradients and a block.
    """
    shape, itemsize, tokens = job.shape, DTYPES[job.dtype].itemsize, job.batch * job.context
    stream, head = tokens * shape.width * itemsize, shape.vocab_size * shape.width
    parameters = _parameters(job)
    weights, logits = sum(p.numel() for p in parameters) * itemsize, _logits(job)
    if not job.first_order:
        kept, step = _zeroth_order(job, parameters)
        activations = _WIDEST * stream
        return Parts(weights, kept, activations, max(0, logits + 2 * stream - activations), step)
    optimizer = weights * {"adamw": 2, "sgd": 1}[job.method]
    saved = 1 if job.checkpoint_blocks else _SAVED
    activations = (saved * shape.layers + 2) * stream + 4 * shape.layers * shape.heads * tokens
    block = (_SAVED + _BACKWARD) * stream
    starts = logits + 4 * head + (block if job.checkpoint_blocks else stream)
    held = sum(p.numel() for p in parameters if p.numel() * itemsize < _HEAP) * itemsize
    left = max(0, block + held - activations) if job.device == "cpu" else block - activations
    ends = weights + head * itemsize + left
    return Parts(weights, optimizer, activations, logits, max(starts, ends) - logits)


def _parameters(job: Job) -> list[torch.Tensor]:
    """The parameters without numbers; a block stands for all of them, so that large models are predicted at once."""
    one = gpt2.GPT2(replace(job.shape, layers=1), device="meta", dtype=DTYPES[job.dtype])
    return [p for name, p in one.named_parameters() for _ in range(job.shape.layers if name.startswith("h.") else 1)]


def _logits(job: Job) -> int:
    """Bytes of the logits that exist at once: in the model's precision, in float32 if that differs, their softmax."""
    rows = job.batch * job.context
    if not job.full_logits and rows * job.shape.vocab_size > gpt2.MAX_LOGITS:
        rows = max(1, gpt2.MAX_LOGITS // job.shape.vocab_size)
    copies = (2 if job.dtype == "float32" else 3) + (job.full_logits and job.first_order)
    return rows * job.shape.vocab_size * (4 * copies - (2 if job.dtype == "bfloat16" else 0))


def _zeroth_order(job: Job, parameters: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Bytes that a zeroth-order optimizer keeps between steps, and within one."""
    optimizer = build_zeroth_order(job, [torch.zeros(1)])
    spaces = [(p, optimizer.family(p.shape)) for p in parameters]
    kept = 4 * sum(math.prod(shape) for _, space in spaces for shape in space.kept_shapes.values())
    if needs_snapshot(optimizer.settings.restore, parameters):
        kept += sum(p.numel() * p.element_size() for p in parameters)
    return kept, direction_budget(spaces, job.directions)


def build_zeroth_order(job: Job, params: Iterable[Any]) -> kronzo.ZeroOrder:
    """Return the job's zeroth-order optimizer on parameters."""
    method: Callable[..., kronzo.ZeroOrder] = kronzo.METHODS[job.method]
    return method(params, lr=1e-7, directions=job.directions)


class Stage(NamedTuple):
    """What a process of its own took: bytes above its interpreter, the interpreter's, processor seconds of a step."""

    bytes: int
    interpreter: int
    step_seconds: float


def measure(job: Job, stage: str) -> Stage:
    """Return what one stage takes in a process of its own.

    On the CPU the resident set of the process, on a GPU torch's max_memory_allocated.

    Args:
        job: what to train.
        stage: "weights" (built), "optimizer" (kept after two short steps), "activations" (a forward without the head),
            "logits" (a loss), "peak" (two steps).

    Raises:
        InputError: the process ended early; it says why, where the system does.
    """
    child = [sys.executable, "-W", "ignore", "-m", "kronzo.pretrain.memory_child", stage, job.to_json()]
    done = subprocess.run(child, capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}: killed for want of memory?"]
        raise InputError(f"measuring {stage} failed: {why[0]}; give --predict to predict only.")
    return Stage(**json.loads(done.stdout))


def measured(job: Job) -> tuple[Parts, int]:
    """Return the measured parts and the bytes of the interpreter.

    Buffers that the short steps of the "optimizer" stage leave to the heap are used again by the forwards: what does
    not fit below the peak beside these is theirs.

    Cost: five processes, each of which builds the model.
    """
    stages = [measure(job, stage) for stage in STAGES]
    weights, *beyond, peak = (stage.bytes for stage in stages)
    optimizer, activations, logits = (max(0, each - weights) for each in beyond)
    logits = max(0, logits - activations)
    rest = peak - weights - activations - logits
    optimizer = min(optimizer, max(0, rest))
    return Parts(weights, optimizer, activations, logits, rest - optimizer), stages[-1].interpreter


def largest_batch(job: Job, budget: int) -> int:
    """Return the most sequences whose predicted peak fits the budget in bytes, 0 when not even one does."""

    def peak(batch: int) -> int:
        return predict(replace(job, batch=batch)).peak

    beyond = 1
    while peak(beyond) <= budget:
        beyond *= 2
    return bisect_right(range(1, beyond), budget, key=peak)


def available_bytes(device: str) -> int:
    """Return the memory that a new process can have now."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    meminfo = Path("/proc/meminfo")
    if meminfo.is_file():
        lines = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Examination:
    """What `examine` found.

    Args:
        job: what was asked.
        predicted: from the shapes.
        measured: None when it was not.
        interpreter: bytes of Python with torch in it, which come on top on the CPU; 0 when nothing was measured.
        budget: bytes.
        largest_batch: the most sequences whose predicted peak and interpreter fit the budget.
    """

    job: Job
    predicted: Parts
    measured: Parts | None
    interpreter: int
    budget: int
    largest_batch: int


def examine(job: Job, budget: int | None = None, *, measure_too: bool = True) -> Examination:
    """Predict, measure where it fits the memory that is free now, and find the largest batch for a budget.

    Args:
        job: what to train.
        budget: bytes; by default what is free now.
        measure_too: False predicts only.
    """
    predicted, free = predict(job), available_bytes(job.device)
    found, interpreter = (None, 0)
    if measure_too and predicted.peak <= _USABLE * free:
        found, interpreter = measured(job)
    budget = free if budget is None else budget
    return Examination(job, predicted, found, interpreter, budget, largest_batch(job, budget - interpreter))


def as_json(found: Examination) -> str:
    """Return what `examine` found as JSON: bytes."""
    parts = (found.predicted, found.measured)
    predicted, measured = (asdict(each) | {"peak": each.peak} if each else None for each in parts)
    return json.dumps(asdict(found) | {"predicted": predicted, "measured": measured}, indent=1)


def as_text(found: Examination, name: str) -> str:
    """Return predicted and measured parts side by side, in lines of at most 80 columns."""
    job, parameters = found.job, gpt2.GPT2(found.job.shape, device="meta").num_parameters
    lines = [
        f"{name}, {count(parameters)} parameters: {job.batch} x {job.context} tokens, {job.method}, {job.dtype}, "
        f"{job.device}" + (", checkpointed" if job.checkpoint_blocks else ""),
        f"{'part':14}{'predicted':>12}{'measured':>12}",
    ]
    for key in (*vars(found.predicted), "peak"):
        values = (size(getattr(parts, key)) if parts else MISSING for parts in (found.predicted, found.measured))
        lines.append(f"{key:14}" + "".join(f"{value:>12}" for value in values))
    if found.interpreter:
        lines.append(f"{'interpreter':14}{'':12}{size(found.interpreter):>12}  on top")
    fits = f"{found.largest_batch} x {job.context} tokens" if found.largest_batch else "not even one sequence"
    return "\n".join([*lines, f"largest batch predicted for {size(found.budget)}: {fits}"])
