"""What a run is: frozen dataclasses read from TOML, overridden by `section.key=value`, resolved and written back.

A resolved config has every value that matters written out, so that `kronzo pretrain RUN/config.toml` repeats the run
bit for bit on the same kind of machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import tables

BUDGETS = ("steps", "tokens", "token_forwards")
FIRST_ORDER = ("adamw", "sgd")


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the model: a name of kronzo.pretrain.gpt2.MODELS, with fields replaced.

    Args:
        name: the shape to start from.
        vocab_size: rows of the embedding; 0 takes the corpus' padded vocabulary.
        context, layers, heads, width, bias, dropout: as in GPT2Config; None keeps the named shape's.
    """

    name: str = "nano"
    vocab_size: int = 0
    context: int | None = None
    layers: int | None = None
    heads: int | None = None
    width: int | None = None
    bias: bool | None = None
    dropout: float | None = None


@dataclass(frozen=True)
class ForwardConfig:
    """How the forwards of training are computed: arguments of kronzo.pretrain.gpt2.GPT2.use.

    Args:
        precision: "float32" or "bfloat16" (autocast; the weights stay float32, evaluations too).
        compile: by torch.compile.
        checkpoint_blocks: keep one activation a block for the backward and compute the rest again; first order only.
    """

    precision: str = "float32"
    compile: bool = False
    checkpoint_blocks: bool = False


@dataclass(frozen=True)
class DataConfig:
    """The corpus and its tokenizer: arguments of kronzo.pretrain.data.open_corpus.

    Args:
        source: "pydocs", "pytopics", "synthetic" or a path.
        tokenizer: "bytes", "bpe:512", "gpt2" or the path of a tokenizer.json.
        val_fraction: share of the documents held out; None takes the source's own.
        max_documents: read only so many.
    """

    source: str = "pydocs"
    tokenizer: str = "bytes"
    val_fraction: float | None = None
    max_documents: int | None = None


@dataclass(frozen=True)
class OptimizerConfig:
    """The method and its keywords; None leaves the method's own default, which the resolved config spells out.

    Args:
        method: "adamw", "sgd" or a key of kronzo.METHODS.
        published: start from kronzo.published(method), the paper's settings.
        lr: learning rate at the top of the schedule.
        schedule: "cosine" or "constant", after the warm-up.
        warmup: fraction of the steps over which lr rises linearly.
        min_lr_ratio: lr at the end of the cosine, as a fraction of lr.
        weight_decay: decoupled, on matrices only.
        betas: of AdamW.
        clip: largest gradient norm, first order only; 0 never clips.
        momentum: of SGD and of the zeroth-order methods that have it.
        eps, directions, rule, refresh_every, window, window_rule, data, rank, restore, factors: keywords of the
            zeroth-order methods; factors is "square" or ["max", k].
        scale: glob of parameter names -> factor on the search there, e.g. {"wte.weight" = 2.0}.
        extra: keywords of the method's class that have no key here, e.g. {"noise" = "device"}.
    """

    method: str = "adamw"
    published: bool = False
    lr: float | None = None
    schedule: str = "cosine"
    warmup: float = 0.0
    min_lr_ratio: float = 0.1
    weight_decay: float | None = None
    betas: tuple[float, ...] | None = None
    clip: float | None = None
    momentum: float | None = None
    eps: float | None = None
    directions: int | None = None
    rule: str | None = None
    refresh_every: int | None = None
    window: int | None = None
    window_rule: str | None = None
    data: str | None = None
    rank: int | None = None
    restore: str | None = None
    factors: str | tuple[str | int, ...] | None = None
    scale: dict[str, float] = field(default_factory=dict)
    extra: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class BudgetConfig:
    """How long to train: exactly one of steps, tokens and token_forwards (none means 1000 steps).

    Args:
        batch_size: sequences a step; step t of every method sees batch t of one stream.
        accumulate: parts the batch is cut into to save memory; divides batch_size.
        steps: optimizer steps.
        tokens: distinct tokens drawn.
        token_forwards: tokens passed through a forward; a backward counts as two forwards.
    """

    batch_size: int = 8
    accumulate: int = 1
    steps: int | None = None
    tokens: int | None = None
    token_forwards: int | None = None


@dataclass(frozen=True)
class SpectraConfig:
    """Capture of gradient spectra, first order only.

    Args:
        enabled: write RUN/spectra.
        stages: fractions of the run's steps at which to capture.
        every: capture every so many steps as well; 0 does not.
        layers: glob of parameter names.
    """

    enabled: bool = False
    stages: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 0.975)
    every: int = 0
    layers: str = "*"


@dataclass(frozen=True)
class EvaluationConfig:
    """Validation loss on fixed windows of held-out documents.

    Args:
        points: evaluations equally spaced in the budget, start and end included.
        tokens: at most so many held-out tokens an evaluation.
        batch_size: sequences a forward.
    """

    points: int = 11
    tokens: int = 65536
    batch_size: int = 16


@dataclass(frozen=True)
class CheckpointConfig:
    """When to save; the last step always is.

    Args:
        every_seconds: at the first step after so many seconds; 0 does not.
        points: additional checkpoints equally spaced in the budget, the end included.
        keep: checkpoints kept, the newest ones.
    """

    every_seconds: float = 60.0
    points: int = 1
    keep: int = 2


@dataclass(frozen=True)
class Config:
    """A whole run.

    Args:
        seed: of weights, batches, dropout and directions.
        threads: torch threads, set by the command line; 0 leaves torch's choice.
        device: "cpu", "cuda" or "auto".
        init: a run, a checkpoint folder or a .safetensors file to start from; "" starts from the seed.
        model, forward, data, optimizer, budget, spectra, evaluation, checkpoint: the sections.
    """

    seed: int = 0
    threads: int = 0
    device: str = "cpu"
    init: str = ""
    model: ModelConfig = field(default_factory=ModelConfig)
    forward: ForwardConfig = field(default_factory=ForwardConfig)
    data: DataConfig = field(default_factory=DataConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    spectra: SpectraConfig = field(default_factory=SpectraConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)

    def __post_init__(self) -> None:
        _check(self)


def from_dict(given: Mapping[str, Any]) -> Config:
    """Build a Config from nested tables.

    Raises:
        InputError: an unknown key (the nearest one is named), a wrong type, or values that cannot be.
    """
    return tables.build(Config, given)


def from_toml(path: Path) -> Config:
    """Read a TOML file; a run folder stands for its config.toml.

    Raises:
        InputError: a missing file, bad TOML, or what `from_dict` refuses.
    """
    return from_dict(read_tables(path))


def read_tables(path: Path) -> dict[str, Any]:
    """Return the raw tables of a TOML file or of a run folder's config.toml."""
    return tables.read(path / "config.toml" if path.is_dir() else path)


def to_dict(config: Config) -> dict[str, Any]:
    """Return nested tables of plain values; None and empty tables are left out."""
    return tables.plain(asdict(config))


def to_toml(config: Config) -> str:
    """Return the config as TOML; `from_toml` of it gives an equal config."""
    return tables.dumps(to_dict(config))


def override(given: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the tables with `section.key=value` settings applied, later ones last.

    One of budget.steps, budget.tokens and budget.token_forwards replaces the others.

    Raises:
        InputError: a setting that is no `section.key=value`.
    """
    result = dict(given)
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if key.startswith("budget.") and key.removeprefix("budget.") in BUDGETS:
            result["budget"] = {k: v for k, v in result.get("budget", {}).items() if k not in BUDGETS}
        result = tables.override(result, setting)
    return result


def differences(given: Config, stored: Config) -> list[str]:
    """Return "section.key: value there, value here" for all that differs and changes a run's result."""
    here, there = tables.flat(to_dict(given)), tables.flat(to_dict(stored))
    keys = [key for key in sorted(here.keys() | there.keys()) if not key.startswith("checkpoint.")]
    return [f"{k} is {there.get(k)!r} there and {here.get(k)!r} here" for k in keys if here.get(k) != there.get(k)]


def _check(config: Config) -> None:
    """Refuse values that cannot be, by name."""
    for key, least in _LEAST.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section) if section else config, name)
        if value is not None and not (math.isfinite(value) and value >= least):
            raise InputError(f"{key} = {value}: a finite number of at least {least} is needed.")
    for key, choices in _CHOICES.items():
        section, _, name = key.rpartition(".")
        value = getattr(getattr(config, section) if section else config, name)
        if value not in choices:
            near = tables.nearest(str(value), choices)
            raise InputError(f"{key} = {value!r}: one of {', '.join(choices)} is needed; did you mean {near!r}?")
    _check_budget(config.budget)
    for stage in config.spectra.stages:
        if not 0.0 <= stage < 1.0:
            raise InputError(f"spectra.stages holds {stage}: fractions of the run in [0, 1) are needed.")
    for key in ("warmup", "min_lr_ratio"):
        if getattr(config.optimizer, key) > 1.0:
            raise InputError(f"optimizer.{key} = {getattr(config.optimizer, key)}: a fraction in [0, 1] is needed.")


_LEAST = {
    "seed": 0,
    "threads": 0,
    "model.vocab_size": 0,
    "optimizer.lr": 0,
    "optimizer.warmup": 0,
    "optimizer.min_lr_ratio": 0,
    "optimizer.weight_decay": 0,
    "optimizer.clip": 0,
    "budget.batch_size": 1,
    "budget.accumulate": 1,
    "budget.steps": 1,
    "budget.tokens": 1,
    "budget.token_forwards": 1,
    "spectra.every": 0,
    "evaluation.points": 1,
    "evaluation.tokens": 1,
    "evaluation.batch_size": 1,
    "checkpoint.every_seconds": 0,
    "checkpoint.points": 1,
    "checkpoint.keep": 1,
}
_CHOICES = {
    "device": ("cpu", "cuda", "auto"),
    "forward.precision": ("float32", "bfloat16"),
    "optimizer.schedule": ("cosine", "constant"),
}


def _check_budget(budget: BudgetConfig) -> None:
    given = [f"budget.{key} = {getattr(budget, key)}" for key in BUDGETS if getattr(budget, key) is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)}: exactly one of {', '.join(BUDGETS)} is needed; drop the others.")
    if budget.batch_size % budget.accumulate:
        raise InputError(
            f"budget.batch_size = {budget.batch_size} is not a multiple of budget.accumulate = {budget.accumulate}: "
            "change one."
        )
