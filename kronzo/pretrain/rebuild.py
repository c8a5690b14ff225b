"""RUN/replay.jsonl, the scalars of a zeroth-order run: written beside metrics.jsonl, read back into weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kronzo import distributed, replay
from kronzo.errors import InputError
from kronzo.pretrain import checkpoint, folder, gpt2, optimizers
from kronzo.pretrain.config import Config, from_toml
from kronzo.pretrain.log import FILE as METRICS
from kronzo.pretrain.log import MetricsWriter
from kronzo.pretrain.resolve import shape_of

FILE = "replay.jsonl"
_SIZES = {"metrics_bytes": METRICS, "replay_bytes": FILE}
"""Key in a checkpoint's meta values -> the file of which it covers so many bytes."""


def initial(config: Config) -> tuple[gpt2.GPT2, torch.optim.Optimizer]:
    """Return the model and the optimizer that a resolved config starts from."""
    model = gpt2.GPT2(shape_of(config.model, 0), seed=config.seed, device=config.device)
    if config.init:
        checkpoint.load_weights(model, checkpoint.initial_weights(Path(config.init)), config.init)
    return model, optimizers.build(model, config.optimizer, config.seed)


class Logs:
    """metrics.jsonl and, for a zeroth-order method, replay.jsonl, cut back to a checkpoint; a context manager.

    Of several processes the first one writes.

    Args:
        run: the run folder.
        optimizer: restored to that checkpoint.
        covered: the checkpoint's meta values; empty at the start of a run.
    """

    def __init__(self, run: Path, optimizer: Any, covered: Mapping[str, Any]) -> None:
        self._writers: dict[str, MetricsWriter] = {}
        self._journal: replay.Journal | None = None
        if distributed.world()[0]:
            return
        self._writers["metrics_bytes"] = MetricsWriter(run / METRICS, covered.get("metrics_bytes", 0))
        if hasattr(optimizer, "replay"):
            self._journal, size = replay.Journal(optimizer), covered.get("replay_bytes", 0)
            self._writers["replay_bytes"] = MetricsWriter(run / FILE, size)
            if not size:
                self._writers["replay_bytes"].write(self._journal.header())

    def write(self, record: dict[str, Any]) -> None:
        """Add the record of the step just taken, or of step 0 before the first one."""
        if self._writers:
            self._writers["metrics_bytes"].write(record)
        if self._journal is not None and record["step"]:
            self._writers["replay_bytes"].write(self._journal.line())

    def sync(self) -> dict[str, int]:
        """Bring all lines to the disk; return the sizes for the checkpoint's meta values."""
        return {key: writer.sync() for key, writer in self._writers.items()}

    def __enter__(self) -> Logs:
        return self

    def __exit__(self, *raised: object) -> None:
        for writer in self._writers.values():
            writer.__exit__(*raised)


def newest(run: Path, say: Callable[[str], None]) -> checkpoint.Checkpoint | None:
    """Return the newest whole checkpoint that the logs reach; of several processes the first one chooses."""
    rank, _ = distributed.world()
    found = None if rank else checkpoint.latest(run, usable=lambda meta: _covers(run, meta), say=say)
    step = int(distributed.together([-1 if found is None else found.meta["step"]])[0][0])
    return checkpoint.read(run / checkpoint.FOLDER / str(step)) if rank and step >= 0 else found


def _covers(run: Path, meta: Mapping[str, Any]) -> bool:
    """Whether the logs of a run are as long as a checkpoint's meta values say."""
    files = {run / name: meta[key] for key, name in _SIZES.items() if key in meta}
    return all(path.exists() and path.stat().st_size >= size for path, size in files.items())


@dataclass(frozen=True)
class Compared:
    """A checkpoint against its replay.

    Attributes:
        step: finished steps.
        difference: the largest one between two weights.
        allowed: what rounding explains; 0 where the run had snapshots.
    """

    step: int
    difference: float
    allowed: float


class Rebuilt:
    """The model of a run at its start, with what takes it to any later step.

    Raises:
        InputError: no run there, a first-order one, or no log of scalars.
    """

    def __init__(self, run: Path) -> None:
        if not (run / folder.CONFIG).is_file():
            raise InputError(f"{run}: no {folder.CONFIG} there; give the folder of a run.")
        config = from_toml(run)
        if not optimizers.is_zeroth_order(config.optimizer):
            raise InputError(
                f"{run}: a run of {config.optimizer.method}, whose steps are whole gradients and not a few scalars; "
                "replay needs a zeroth-order method."
            )
        self.log = replay.read(run / FILE)
        self.model, self.optimizer = initial(config)

    def goto(self, step: int | None) -> int:
        """Take the recorded steps up to `step`, or all; return where that is."""
        optimizer: Any = self.optimizer
        replay.apply(optimizer, self.log, step)
        return int(optimizer.param_groups[0]["step"])

    def compare(self, found: checkpoint.Checkpoint) -> Compared:
        """Hold the present weights and state against a checkpoint of this step.

        Raises:
            InputError: they differ by more than the restore mode explains.
        """
        optimizer: Any = self.optimizer
        step = found.meta["step"]
        exact = self.log.header["restore"] == "snapshot"
        records = self.log.records[: step - self.log.header["step"]]
        difference, allowed = 0.0, 0.0
        for name, weight in self.model.named_parameters():
            apart = (weight.detach().cpu() - found.weights[name]).abs().max().item()
            bound = 0.0 if exact else replay.drift_bound(weight, records, optimizer.forwards_per_step + 1)
            if not apart <= bound:
                raise InputError(
                    f"{found.path}: {name} differs from its replay by {apart:.3g}, where {bound:.3g} is allowed: the "
                    "weights or the log were changed, or numpy draws other numbers here."
                )
            difference, allowed = max(difference, apart), max(allowed, bound)
        if not _same_state(optimizer.state_dict(), found.state["optimizer"]):
            raise InputError(f"{found.path}: the optimizer's state differs from its replay; the log was changed.")
        return Compared(step, difference, allowed)


def _same_state(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Whether step, window, kept factors and momentum are the same to the bit."""
    groups = [[(g["step"], g["window"]) for g in state["param_groups"]] for state in (mine, theirs)]
    if groups[0] != groups[1] or mine["state"].keys() != theirs["state"].keys():
        return False
    pairs = ((value, theirs["state"][key][name]) for key, e in mine["state"].items() for name, value in e.items())
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in pairs)


def rebuild(run: Path, step: int | None = None) -> tuple[int, dict[str, Tensor]]:
    """Return (step, weights by name) of a run after so many steps, by default all in its log, without a forward.

    Raises:
        InputError: see `Rebuilt` and `kronzo.replay.apply`.

    Cost: a sweep over the weights a step.
    """
    rebuilt = Rebuilt(run)
    reached = rebuilt.goto(step)
    return reached, {name: weight.detach() for name, weight in rebuilt.model.named_parameters()}


def verify(run: Path) -> Iterator[Compared]:
    """Replay a run past every checkpoint on its disk, comparing each.

    Raises:
        InputError: see `Rebuilt`; no checkpoint there; or one differs.
    """
    paths = sorted(checkpoint.on_disk(run), key=lambda path: int(path.name))
    if not paths:
        raise InputError(f"{run}: no checkpoint there to compare with; replay with --step alone.")
    rebuilt = Rebuilt(run)
    for path in paths:
        rebuilt.goto(int(path.name))
        yield rebuilt.compare(checkpoint.read(path))


def as_text(compared: Sequence[Compared]) -> str:
    """Return a line a checkpoint."""
    lines = [f"{'step':>8}  {'largest difference':>18}  {'rounding allows':>15}"]
    lines += [f"{c.step:>8}  {c.difference:>18.3g}  {c.allowed:>15.3g}" for c in compared]
    equal = all(c.difference == 0 for c in compared)
    return "\n".join([*lines, "equal to the bit" if equal else "equal up to the rounding of arithmetic restore"])


def as_json(compared: Sequence[Compared]) -> str:
    """Return the same as JSON."""
    return json.dumps([asdict(c) for c in compared])
