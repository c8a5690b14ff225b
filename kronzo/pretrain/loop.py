"""The training loop, first order and zeroth order alike, from a config to a finished run folder."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from kronzo import distributed
from kronzo.errors import Collapse
from kronzo.pretrain import checkpoint, folder, optimizers, steps
from kronzo.pretrain.config import Config
from kronzo.pretrain.data import Corpus
from kronzo.pretrain.precision import coefficient_error
from kronzo.pretrain.process import interrupts, own_random_stream, peak_bytes, processes
from kronzo.pretrain.progress import Reporter
from kronzo.pretrain.rebuild import Logs, initial, newest
from kronzo.pretrain.resolve import corpus_of, resolve
from kronzo.pretrain.result import Counters, Result, has_result, read_result


def pretrain(
    config: Config,
    out: Path | str,
    *,
    progress: bool = True,
    stop: Callable[[int], bool] | None = None,
    watch: Callable[[float], None] | None = None,
    fresh: bool = False,
) -> Result:
    """Train a GPT-2 as the config says, or go on where the run in `out` stopped, or return its result when finished.

    A run that was killed and started again, however often, ends with the same weights and the same metrics.jsonl, up to
    seconds and bytes. The caller's random streams and thread settings stay as they are. Under torchrun the processes
    share every step (docs/distributed.md) and the first one writes.

    Args:
        config: the run.
        out: its folder, held by one process at a time.
        progress: show a bar (a plain line now and then when standard error is no terminal).
        stop: asked after each step, and before going on, with the number of finished steps; True saves and returns.
        watch: told just before that what fraction of the run is done.
        fresh: remove the run in `out` first.

    Raises:
        InputError: bad values, data or folders, a checkpoint of another model, no space left.
        KeyboardInterrupt: after Ctrl-C or SIGTERM, once the step is finished and saved.
    """
    with processes(config.device):
        return _pretrain(
            config, Path(out), progress, stop or (lambda step: False), watch or (lambda fraction: None), fresh
        )


def _pretrain(
    config: Config,
    run: Path,
    progress: bool,
    stop: Callable[[int], bool],
    watch: Callable[[float], None],
    fresh: bool,
) -> Result:
    first = distributed.world()[0] == 0
    with folder.locked(run) if first else nullcontext():
        if fresh and first:
            folder.clear(run)
        corpus = corpus_of(config.data, show=progress and first)
        config = resolve(config, corpus)
        done = first and folder.holds(run, config) and has_result(run)
        if distributed.together([done])[0][0]:
            return read_result(run)
        with own_random_stream(config.device), interrupts() as interrupted:
            trainer = _Trainer(config, corpus, run, show=progress and first)
            if first:
                folder.claim(run, config, trainer.manifest(), corpus.tokenizer.save)
            return trainer.train(stop, watch, interrupted)


class _Trainer:
    """One run, with what its steps need.

    Args:
        config: resolved.
        corpus: where the batches come from.
        run: a claimed run folder.
        show: show progress.
    """

    def __init__(self, config: Config, corpus: Corpus, run: Path, *, show: bool) -> None:
        self.config, self.corpus, self.run, self.show = config, corpus, run, show
        self.rank, self.ranks = distributed.world()
        self.console = Reporter("", 0, show=False)
        torch.manual_seed(config.seed)
        self.model, self.optimizer = initial(config)
        self.model.use(**asdict(config.forward))
        self.context = self.model.config.context
        self.shard, self.shards = steps.share(config, self.optimizer)
        self.steps = steps.num_steps(config.budget, config.optimizer, self.optimizer, self.context)
        self.schedule = LambdaLR(self.optimizer, optimizers.lr_factor(config.optimizer, self.steps))
        self.take_step = steps.build(
            self.model, self.optimizer, config.optimizer, config.budget.accumulate, self._after_backward
        )
        self.windows = list(
            corpus.validation(
                batch_size=config.evaluation.batch_size, context=self.context, max_tokens=config.evaluation.tokens
            )
        )
        self.counters = Counters()
        self.recorder: Any = None

    def manifest(self) -> dict[str, Any]:
        """Return what the run's numbers depend on beside the config."""
        return folder.environment() | {
            "seed": self.config.seed,
            "processes": self.ranks,
            "steps": self.steps,
            "parameters": self.model.num_parameters,
            "corpus": self.corpus.manifest,
        }

    def train(
        self, stop: Callable[[int], bool], watch: Callable[[float], None], interrupted: threading.Event
    ) -> Result:
        """Run to the end of the budget, or until stopped or interrupted."""
        covered = self._restore()
        now = self.counters
        watch(now.step / self.steps)
        if now.step and _any(stop(now.step))[0]:
            return self._finish()
        self.recorder = self._recorder() if self.config.spectra.enabled else None
        evaluations = _points(self.steps, self.config.evaluation.points)
        saves = _points(self.steps, self.config.checkpoint.points + 1) | {self.steps}
        saved = time.monotonic()
        title = f"{self.config.optimizer.method} {self.run.name}"
        with (
            Logs(self.run, self.optimizer, covered) as logs,
            self.recorder or nullcontext(),
            Reporter(title, self.steps, now.step, show=self.show) as report,
        ):
            if now.step == 0 and self.config.forward.precision != "float32":
                self._advise(report)
            if now.step == 0 and 0 in evaluations:
                logs.write(
                    {"step": 0, "tokens": 0, "token_forwards": 0, "forwards": 0, "seconds": 0.0} | self._evaluate()
                )
            while now.step < self.steps and not now.diverged:
                try:
                    record = self._step()
                except Collapse as collapse:
                    report.say(str(collapse))
                    now.diverged, now.val_loss = True, math.nan
                    break
                if now.step in evaluations:
                    record |= self._evaluate()
                logs.write(record)
                report.update(now.step, f"val {now.val_loss:.3f}")
                watch(now.step / self.steps)
                wanted, signalled = _any(stop(now.step), interrupted.is_set())
                seconds = self.config.checkpoint.every_seconds
                late = bool(seconds) and time.monotonic() - saved > seconds
                if now.step in saves or late or wanted or signalled or now.diverged:
                    self._save(logs)
                    saved = time.monotonic()
                if signalled:
                    raise KeyboardInterrupt
                if wanted:
                    break
        return self._finish()

    def _advise(self, report: Reporter) -> None:
        """Say what forwards of low precision cost a zeroth-order method, on the first batch."""
        if not optimizers.is_zeroth_order(self.config.optimizer):
            return
        x, y = self.corpus.batch(
            seed=self.config.seed, step=0, batch_size=self.config.budget.batch_size, context=self.context
        )
        found = coefficient_error(self.model, *self._to_device(x, y), self.optimizer.param_groups[0]["eps"])
        if self.show or found.unresolved:
            report.say(f"{found}" + ("; raise optimizer.eps or use float32" if found.unresolved else ""))

    def _step(self) -> dict[str, Any]:
        started = time.perf_counter()
        now, budget = self.counters, self.config.budget
        rows = budget.batch_size // self.shards
        x, y = self.corpus.batch(
            seed=self.config.seed,
            step=now.step,
            batch_size=rows,
            context=self.context,
            rank=self.shard,
            world=self.shards,
        )
        lr = self.optimizer.param_groups[0]["lr"]
        steps.start_streams(self.config.seed, now.step, self.shard, self.shards)
        outcome = self.take_step(*self._to_device(x, y))
        self.schedule.step()
        now.step += 1
        spent = distributed.together([outcome.forwards, outcome.token_forwards])
        now.tokens += x.numel() * self.shards
        now.forwards += int(sum(forwards for forwards, _ in spent)) // self.shards
        now.token_forwards += int(sum(tokens for _, tokens in spent))
        now.seconds += time.perf_counter() - started
        return {
            "step": now.step,
            "tokens": now.tokens,
            "token_forwards": now.token_forwards,
            "forwards": now.forwards,
            "seconds": round(now.seconds, 6),
            "loss": outcome.loss,
            "lr": lr,
            **outcome.details,
            "peak_bytes": peak_bytes(self.config.device),
        }

    def _to_device(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.device == "cpu":
            return x, y
        return x.to(self.config.device, non_blocking=True), y.to(self.config.device, non_blocking=True)

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        """Return the mean loss over the held-out windows, in nats a token, without dropout."""
        self.model.eval()
        mine = [self.model.losses(*self._to_device(x, y)).sum() for x, y in self.windows[self.rank :: self.ranks]]
        self.model.train()
        now, everyones = self.counters, distributed.together([float(sum(mine))])
        now.val_loss = sum(total for (total,) in everyones) / sum(len(x) for x, _ in self.windows)
        if not math.isfinite(now.val_loss):
            now.diverged = True
        elif now.val_loss < now.best_val_loss:
            now.best_val_loss, now.best_step = now.val_loss, now.step
        return {"val_loss": now.val_loss}

    def _after_backward(self, tokens: int) -> None:
        if self.recorder is not None:
            self.recorder.micro_batch(tokens=tokens)

    def _recorder(self) -> Any:
        import spectra

        wanted = self.config.spectra
        captures = {int(stage * self.steps) for stage in wanted.stages}
        captures |= set(range(0, self.steps, wanted.every)) if wanted.every else set()
        return spectra.GradientRecorder(
            self.model,
            self.optimizer,
            every=sorted(captures),
            layers=wanted.layers,
            store=self.run / "spectra",
            start_step=self.counters.step,
        )

    def _save(self, logs: Logs) -> None:
        """Save a checkpoint; not past a capture that the disk had no room for, so that going on takes it again."""
        if self.recorder is not None and isinstance(self.recorder.error, OSError):
            raise self.recorder.error
        if self.rank:
            return
        meta = asdict(self.counters) | logs.sync()
        state = {
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "random": torch.get_rng_state(),
        }
        if self.config.device == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state()
        checkpoint.save(self.run, self.counters.step, self.model, state, meta, self.config.checkpoint.keep)

    def _restore(self) -> dict[str, Any]:
        """Load the newest checkpoint that is whole; return its meta values."""
        found = newest(self.run, self.console.say)
        if found is None:
            return {}
        checkpoint.load_weights(self.model, found.weights, str(found.path))
        self.optimizer.load_state_dict(found.state["optimizer"])
        self.schedule.load_state_dict(found.state["schedule"])
        torch.set_rng_state(found.state["random"])
        if self.config.device == "cuda":
            torch.cuda.set_rng_state(found.state["random_cuda"])
        self.counters = Counters(**{key: found.meta[key] for key in asdict(self.counters)})
        return found.meta

    def _finish(self) -> Result:
        now = self.counters
        result = now.result(self.run, finished=now.step == self.steps or now.diverged)
        if result.finished and not self.rank:
            result.write()
        return result


def _any(*flags: bool) -> list[bool]:
    """Return for each flag whether a process has raised it."""
    return [any(column) for column in zip(*distributed.together(flags))]


def _points(steps: int, points: int) -> set[int]:
    """Return `points` step numbers equally spaced in 0..steps, both ends included; one point is the end."""
    return {steps} if points == 1 else {round(steps * i / (points - 1)) for i in range(points)}
