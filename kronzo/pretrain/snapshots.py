"""Gradient spectra of models one already has: checkpoints of a run, or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spectra
from kronzo.errors import InputError, install
from kronzo.pretrain import checkpoint, folder, gpt2
from kronzo.pretrain.config import from_toml
from kronzo.pretrain.data import Corpus, open_corpus
from kronzo.pretrain.resolve import corpus_of, shape_of

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Subject:
    """One set of weights to look at.

    Attributes:
        step: the step of its checkpoint, 0 for a Hugging Face folder.
        model: in evaluation mode.
        loss: (model, (x, y)) -> mean cross-entropy.
        context: the longest sequence.
    """

    step: int
    model: nn.Module
    loss: Callable[[nn.Module, Pair], Tensor]
    context: int


def snapshots(
    source: Path,
    *,
    data: str | None = None,
    tokenizer: str | None = None,
    batches: int = 8,
    batch_size: int = 8,
    context: int | None = None,
    seed: int = 0,
    out: Path | None = None,
) -> spectra.Run:
    """Return the spectra of the mean gradient over some training batches, with the split-half null, at fixed weights.

    Args:
        source: a run (its newest checkpoint), one checkpoint, the `checkpoints` folder of a run (each of them), or a
            folder that transformers opens (extra hf).
        data: as for `open_corpus`; by default the corpus of the run.
        tokenizer: with data; by default that of the run, or "gpt2" for a Hugging Face folder.
        batches: an even number of batches.
        batch_size: sequences in one.
        context: tokens in a sequence; the model's own by default.
        seed: of the stream of batches.
        out: a spectra store to write, or None for memory.

    Raises:
        InputError: no model or no data there, a corpus with more ids than the model knows, an odd number of batches.
    """
    if batches < 2 or batches % 2:
        raise InputError(f"--batches {batches}: two halves are compared, so an even number of at least 2 is needed.")
    corpus = _corpus(source, data, tokenizer)
    parts: list[Any] = []
    run = None
    for subject in _subjects(source, corpus):
        stream, tokens = _stream(corpus, subject, batches, batch_size, context, seed)
        run = spectra.snapshot(subject.model, subject.loss, stream, tokens=tokens, step=subject.step, store=out)
        parts += run.parts
    if run is None:
        raise InputError(f"{source}: no usable checkpoint there; give a run, a checkpoint or a Hugging Face folder.")
    return run if out is not None else spectra.Run(parts, run.manifest)


def growth(
    source: Path,
    out: Path,
    *,
    data: str | None = None,
    tokenizer: str | None = None,
    batches: int = 8,
    batch_size: int = 8,
    context: int | None = None,
    seed: int = 0,
) -> list[Path]:
    """Write how Weyl and edge rank grow with the tokens, beside planted controls: growth.csv and two figures.

    Args:
        source: as for `snapshots`; of several checkpoints the last.
        out: the folder to write to.
        data: as for `snapshots`.
        tokenizer: as for `snapshots`.
        batches: at least 4; ranks are taken after 4, 8, 16, ... of them.
        batch_size: sequences in one.
        context: tokens in a sequence; the model's own by default.
        seed: of the stream of batches.

    Returns:
        The files written.

    Raises:
        InputError: as for `snapshots`; fewer than 4 batches.
    """
    from spectra.growth_plot import rank_growth_figure
    from spectra.style import save

    if batches < 4:
        raise InputError(f"--batches {batches}: controls are made of four quarters, so at least 4 are needed.")
    corpus = _corpus(source, data, tokenizer)
    subjects = list(_subjects(source, corpus))
    if not subjects:
        raise InputError(f"{source}: no usable checkpoint there; give a run, a checkpoint or a Hugging Face folder.")
    subject = subjects[-1]
    stream, tokens = _stream(corpus, subject, batches, batch_size, context, seed)
    frame = spectra.rank_growth(subject.model, subject.loss, stream, tokens=tokens)
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / "growth.csv", index=False, lineterminator="\n")
    written = [out / "growth.csv"]
    for metric in ("weyl_rank", "edge_rank"):
        written += save(rank_growth_figure(frame, metric), out / f"growth-{metric}")
    return written


def _stream(
    corpus: Corpus, subject: Subject, batches: int, batch_size: int, context: int | None, seed: int
) -> tuple[list[Pair], int]:
    """Return the batches to look at, and the tokens in one."""
    length = min(context or subject.context, subject.context)
    stream = [corpus.batch(seed=seed, step=i, batch_size=batch_size, context=length) for i in range(batches)]
    return stream, batch_size * length


def _run_of(source: Path) -> Path | None:
    """Return the run folder a source belongs to, None for a Hugging Face folder."""
    for candidate in (source, source.parent, source.parent.parent):
        if (candidate / folder.CONFIG).is_file():
            return candidate
    if (source / "config.json").is_file():
        return None
    raise InputError(f"{source}: neither a run, a checkpoint of one, nor a Hugging Face folder; check the path.")


def _corpus(source: Path, data: str | None, tokenizer: str | None) -> Corpus:
    run = _run_of(source)
    if data is not None:
        return open_corpus(data, tokenizer or ("gpt2" if run is None else str(run / folder.TOKENIZER)))
    if run is None:
        raise InputError(f"{source}: a Hugging Face folder names no corpus; give one with --data.")
    return corpus_of(from_toml(run).data)


def _subjects(source: Path, corpus: Corpus) -> Iterator[Subject]:
    run = _run_of(source)
    if run is None:
        yield _hugging_face(source, corpus)
        return
    config = from_toml(run)
    for path in _checkpoints(source, run):
        found = checkpoint.read(path)
        model = gpt2.GPT2(shape_of(config.model, corpus.vocab_size))
        checkpoint.load_weights(model, found.weights, str(path))
        yield Subject(int(path.name), model.eval(), _our_loss, model.config.context)


def _checkpoints(source: Path, run: Path) -> list[Path]:
    """Return the checkpoint folders meant by a run (its newest), its `checkpoints` (each) or one of them."""
    root = run / checkpoint.FOLDER
    every = sorted((path for path in root.glob("*") if path.name.isdigit()), key=lambda path: int(path.name))
    if source.resolve() == run.resolve():
        return every[-1:]
    return every if source.resolve() == root.resolve() else [source]


def _our_loss(model: nn.Module, batch: Pair) -> Tensor:
    loss: Tensor = model.loss(*batch)  # type: ignore[operator]
    return loss


def _their_loss(model: nn.Module, batch: Pair) -> Tensor:
    x, y = batch
    return nn.functional.cross_entropy(model(input_ids=x).logits.flatten(0, 1), y.flatten())


def _hugging_face(source: Path, corpus: Corpus) -> Subject:
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise InputError(f"{source}: a Hugging Face folder needs transformers; run {install('hf')}.") from error
    try:
        model = AutoModelForCausalLM.from_pretrained(source, local_files_only=True, dtype=torch.float32)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"{source}: transformers cannot open it ({str(error).splitlines()[0]}).") from error
    ids = int(model.config.vocab_size)
    if corpus.tokenizer.num_ids > ids:
        raise InputError(
            f"{source}: it knows {ids} ids, the tokenizer has {corpus.tokenizer.num_ids}; give --tokenizer."
        )
    return Subject(0, model.eval(), _their_loss, int(getattr(model.config, "max_position_embeddings", 1024)))
