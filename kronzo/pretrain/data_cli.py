"""The commands `kronzo data build` and `kronzo data info`."""

from __future__ import annotations

import json
import textwrap
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kronzo.errors import InputError

if TYPE_CHECKING:
    from kronzo.pretrain.data import Corpus
    from kronzo.pretrain.progress import Reporter

app = typer.Typer(name="data", help="Build a corpus, or say what one holds.", no_args_is_help=True)

_SOURCE = typer.Argument(help="pydocs, pydocs:numpy,scipy, pytopics, synthetic, openwebtext, a file or a token folder.")
_TOKENIZER = typer.Option("--tokenizer", help="bytes, bpe:N, gpt2, a tokenizer.json or a folder with a tokenizer.")
_FRACTION = typer.Option("--val-fraction", help="Held-out share of the documents: 0.05, for openwebtext 0.0005.")
_DOCUMENTS = typer.Option("--max-documents", help="Only the first so many documents.")
_JSON = typer.Option("--json", help="Print JSON.")


@app.command()
def build(
    source: Annotated[str, _SOURCE],
    tokenizer: Annotated[str | None, _TOKENIZER] = None,
    inputs: Annotated[
        list[Path] | None, typer.Option("--from", metavar="PATH", help="Local copy of openwebtext; may be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Token folder that openwebtext is built into.")] = None,
    val_fraction: Annotated[float | None, _FRACTION] = None,
    max_documents: Annotated[int | None, _DOCUMENTS] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Build a corpus: openwebtext into --out, anything else into the cache.

    A build of openwebtext that was stopped goes on where it stood. Its --out is a source like any other afterwards, and
    nanoGPT reads its train.bin and val.bin.
    """
    if source == "openwebtext":
        if out is None or max_documents is not None:
            raise InputError("openwebtext is built whole into a token folder: give --out DIR and no --max-documents.")
        _build_openwebtext(inputs or [], out, tokenizer or "gpt2", val_fraction)
        source = str(out)
    elif inputs or out:
        raise InputError(f"--from and --out are for openwebtext; {source} is built into the cache without them.")
    _show(_open(source, tokenizer or "bytes", val_fraction, max_documents), None, as_json)


@app.command()
def info(
    source: Annotated[str, _SOURCE],
    tokenizer: Annotated[str, _TOKENIZER] = "bytes",
    val_fraction: Annotated[float | None, _FRACTION] = None,
    max_documents: Annotated[int | None, _DOCUMENTS] = None,
    as_json: Annotated[bool, _JSON] = False,
) -> None:
    """Say what a corpus holds and its reference losses; it is built first when it is not in the cache."""
    from kronzo.pretrain.ngram import reference_losses

    corpus = _open(source, tokenizer, val_fraction, max_documents)
    _show(corpus, reference_losses(corpus), as_json)


def _open(source: str, tokenizer: str, val_fraction: float | None, max_documents: int | None) -> Corpus:
    from kronzo.pretrain.data import open_corpus

    with _Progress() as progress:
        return open_corpus(
            source, tokenizer, val_fraction=val_fraction, max_documents=max_documents, progress=progress.show
        )


def _build_openwebtext(paths: list[Path], out: Path, tokenizer: str, val_fraction: float | None) -> None:
    from kronzo.pretrain import hub, shards

    inputs = shards.find_inputs(paths) if paths else [hub.openwebtext()]
    fraction = shards.VAL_FRACTION if val_fraction is None else val_fraction
    with _Progress() as progress:
        shards.build(inputs, out, tokenizer, val_fraction=fraction, progress=progress.show)


class _Progress:
    """One progress bar after the other, a new one whenever the label changes."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._label = ""
        self._bar: Reporter | None = None

    def show(self, label: str, done: int, total: int) -> None:
        from kronzo.pretrain.progress import Reporter

        if self._bar is None or label != self._label:
            self._open.close()
            self._label, self._bar = label, self._open.enter_context(Reporter(label, total, done))
        self._bar.update(done)

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _show(corpus: Corpus, losses: dict[str, float] | None, as_json: bool) -> None:
    facts: dict[str, Any] = {**corpus.manifest, "folder": str(corpus.folder)}
    if losses is not None:
        facts["reference_losses"] = losses
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    for line in _lines(corpus, losses):
        typer.echo(line)


def _lines(corpus: Corpus, losses: dict[str, float] | None) -> list[str]:
    manifest, tokenizer = corpus.manifest, corpus.tokenizer
    lines = [
        f"{corpus.name}: tokenizer {tokenizer.name}, {tokenizer.num_ids} ids, padded to {tokenizer.vocab_size}",
        f"{'':10}{'documents':>14}{'tokens':>18}{'bytes':>18}",
    ]
    for split, label in (("train", "training"), ("val", "held out")):
        numbers = [manifest[what][split] for what in ("documents", "tokens", "bytes")]
        lines.append(f"{label:10}{numbers[0]:>14,}{numbers[1]:>18,}{numbers[2]:>18,}")
    if losses is not None:
        lines.append("held-out loss, nats a token: " + ", ".join(f"{name} {loss:.4f}" for name, loss in losses.items()))
    if "entropy_rate" in manifest:
        lines.append(f"entropy rate, nats a token: {manifest['entropy_rate']:.4f}")
    sha256 = manifest["sha256"]
    hashes = {"sha256": sha256} if isinstance(sha256, str) else {f"sha256 {split}": sha256[split] for split in sha256}
    lines += [f"{label:13}{value}" for label, value in hashes.items()]
    if manifest["versions"]:
        versions = ", ".join(f"{name} {version}" for name, version in manifest["versions"].items())
        lines.append(textwrap.fill(f"from         {versions}", 80, subsequent_indent=" " * 13))
    return [*lines, f"cached in    {corpus.folder}"]
