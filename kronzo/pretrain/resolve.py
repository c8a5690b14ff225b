"""A config meets its corpus and its machine: every value that matters is written out."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import torch

from kronzo.errors import InputError
from kronzo.pretrain import gpt2, optimizers
from kronzo.pretrain.config import Config, DataConfig, ModelConfig
from kronzo.pretrain.data import Corpus, open_corpus
from kronzo.pretrain.progress import Stages


def corpus_of(data: DataConfig, *, show: bool = False) -> Corpus:
    """Open the corpus of a [data] section, with progress where `show` says so and it has to be built.

    Raises:
        InputError: as `open_corpus`.
    """
    with Stages(show=show) as stages:
        return open_corpus(
            data.source,
            data.tokenizer,
            val_fraction=data.val_fraction,
            max_documents=data.max_documents,
            progress=stages.update,
        )


def check(config: Config) -> None:
    """Refuse what can be seen before the corpus, which may take minutes to build, is opened.

    Raises:
        InputError: an unknown shape, method or keyword, spectra without gradients, or a device that is not here.
    """
    shape_of(config.model, 1)
    optimizers.resolve(config.optimizer)
    if config.spectra.enabled and optimizers.is_zeroth_order(config.optimizer):
        raise InputError(f"spectra.enabled: {config.optimizer.method} has no gradients; use adamw or sgd.")
    if config.device == "cuda" and not torch.cuda.is_available():
        raise InputError("device = 'cuda': torch sees no CUDA device here; use cpu or auto.")


def resolve(config: Config, corpus: Corpus) -> Config:
    """Return the config with every value written out: shape, optimizer keywords, device.

    Raises:
        InputError: values that do not fit together or the corpus.
    """
    shape = shape_of(config.model, corpus.vocab_size)
    if shape.vocab_size < corpus.tokenizer.num_ids:
        raise InputError(
            f"model.vocab_size = {shape.vocab_size} is below the {corpus.tokenizer.num_ids} of tokenizer "
            f"{corpus.tokenizer.name}; give 0 to take the corpus' own."
        )
    check(config)
    available = "cuda" if torch.cuda.is_available() else "cpu"
    return replace(
        config,
        device=available if config.device == "auto" else config.device,
        init=_absolute(config.init),
        data=replace(config.data, source=_absolute(config.data.source), tokenizer=_absolute(config.data.tokenizer)),
        model=replace(config.model, **asdict(shape)),
        optimizer=optimizers.resolve(config.optimizer),
    )


def _absolute(text: str) -> str:
    """Return an existing relative path from the root on, so that the config means the same from every folder."""
    path = Path(text)
    return str(path.absolute()) if (path.suffix or len(path.parts) > 1) and path.exists() else text


def shape_of(model: ModelConfig, vocab_size: int) -> gpt2.GPT2Config:
    """Return the shape that [model] describes, with the corpus' vocabulary where it gives none."""
    given = {key: value for key, value in asdict(model).items() if key != "name" and value is not None}
    return gpt2.config(model.name, **(given | {"vocab_size": model.vocab_size or vocab_size}))
