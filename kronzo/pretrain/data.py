"""Opening a corpus: any source, tokenized once, as training and held-out token ids on disk.

`open_corpus` tokenizes a source once into the cache. A document is held out when the hash of its text falls under the
held-out fraction, so the split depends neither on order nor on what else is there, and equal documents are on one side.
Every document is followed by an end-of-text.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import synthetic, tokenfiles
from kronzo.pretrain.batches import Corpus
from kronzo.pretrain.cache import MANIFEST, cache_dir, entry
from kronzo.pretrain.corpus import text_source
from kronzo.pretrain.textfiles import Progress, TextSource, local_path, silent, text_sha256
from kronzo.pretrain.tokenizer import BpeTokenizer, IdTokenizer, Tokenizer, find_tokenizer

__all__ = ["Corpus", "describe", "open_corpus"]

VAL_FRACTION = 0.05
_FORMAT = 1


def open_corpus(
    source: str,
    tokenizer: str = "bytes",
    *,
    cache: Path | None = None,
    val_fraction: float | None = None,
    max_documents: int | None = None,
    progress: Progress | None = None,
) -> Corpus:
    """Open a corpus, tokenized into the cache at the first call.

    Args:
        source: "pydocs", "pydocs:numpy,scipy", "pytopics", "synthetic" (order2), "synthetic:order1", a file (.txt,
            .jsonl, .jsonl.gz, .parquet, .bin of uint16 ids) or a folder with train.bin and val.bin.
        tokenizer: "bytes", "bpe:N" (trained on the training split), "gpt2", a tokenizer.json or a folder with a saved
            tokenizer. Ignored by the synthetic source and by token folders that hold their own tokenizer.
        cache: instead of KRONZO_CACHE or the user's cache folder.
        val_fraction: held-out share of the documents, 0.05 by default.
        max_documents: only the first so many documents.
        progress: called with a label, what is done and the total.

    Raises:
        InputError: unknown source or tokenizer, missing extra, unreadable, empty or too small corpus.
    """
    root = cache or cache_dir()
    show = progress or silent
    fraction = VAL_FRACTION if val_fraction is None else val_fraction
    if not 0 < fraction < 1:
        raise InputError(f"val_fraction={fraction}: the held-out share must lie between 0 and 1, as in 0.05.")
    if max_documents is not None and max_documents < 2:
        raise InputError(f"max_documents={max_documents}: two documents are needed, one to train and one held out.")
    kind, _, option = source.partition(":")
    if kind == "synthetic":
        return _open_synthetic(option, root)
    path = local_path(source)
    if path.is_dir() or path.suffix == ".bin":
        return _open_tokens(path, tokenizer, root, fraction)
    text = text_source(source, root, show)
    return _open_text(text, tokenizer, root, fraction, max_documents, show)


def _open_text(
    source: TextSource, name: str, root: Path, fraction: float, max_documents: int | None, show: Progress
) -> Corpus:
    tokenizer = find_tokenizer(name)
    identity = {
        "source": source.identity,
        "tokenizer": tokenizer.fingerprint if tokenizer else name,
        "val_fraction": fraction,
        "max_documents": max_documents,
        "format": _FORMAT,
    }

    def build(folder: Path) -> dict[str, Any]:
        return _tokenize(source, tokenizer or name, fraction, max_documents, folder, show)

    label = f"{source.name}-{tokenizer.name if tokenizer else name}"
    folder, manifest = entry(root / "corpora", label, identity, build)
    train, val = (tokenfiles.open_tokens(folder / f"{split}.bin") for split in tokenfiles.SPLITS)
    return Corpus(source.name, Tokenizer.load(folder / "tokenizer"), train, val, manifest, folder)


def _tokenize(
    source: TextSource,
    tokenizer: Tokenizer | str,
    fraction: float,
    max_documents: int | None,
    folder: Path,
    show: Progress,
) -> dict[str, Any]:
    """Read the source twice (three times to train a BPE): once to split it, once to encode it; memory stays bounded."""

    def documents() -> Iterator[str]:
        return itertools.islice(source.documents(), max_documents)

    total, cut = _split(source, documents(), fraction)
    if isinstance(tokenizer, str):
        tokenizer = _train(tokenizer, documents(), cut, total, show)
    paths = {split: folder / f"{split}.bin" for split in tokenfiles.SPLITS}
    label = f"encoding {source.name}"
    counts = tokenfiles.write_splits(documents(), tokenizer, cut, paths, lambda done: show(label, done, total))
    tokenizer.save(folder / "tokenizer")
    return {
        "source": source.name,
        "tokenizer": describe(tokenizer),
        "split": f"documents whose sha256 starts below {cut:#018x} are held out",
        **counts,
        "sha256": text_sha256(documents()),
        "versions": source.versions,
    }


def _train(name: str, documents: Iterator[str], cut: int, total: int, show: Progress) -> Tokenizer:
    """A BPE of the size that "bpe:N" names, trained on the documents that are not held out."""

    def training() -> Iterator[str]:
        for done, text in enumerate(documents, 1):
            if tokenfiles.text_hash(text) >= cut:
                yield text
            show(f"training {name}", done, total)

    return BpeTokenizer.train(training(), int(name.removeprefix("bpe:")))


def _split(source: TextSource, documents: Iterator[str], fraction: float) -> tuple[int, int]:
    """The number of documents and the hash below which one is held out, moved so that neither split is empty."""
    hashes = sorted(tokenfiles.text_hash(text) for text in documents)
    if not hashes or hashes[0] == hashes[-1]:
        raise InputError(
            f"corpus {source.name} holds {len(set(hashes))} different documents; two are needed, one to train and one "
            "held out: give more text, or part the documents by <|endoftext|> or blank lines."
        )
    return len(hashes), min(max(tokenfiles.cut_of(fraction), hashes[0] + 1), hashes[-1])


def describe(tokenizer: Tokenizer) -> dict[str, Any]:
    """What a manifest says about a tokenizer."""
    return {
        "name": tokenizer.name,
        "num_ids": tokenizer.num_ids,
        "vocab_size": tokenizer.vocab_size,
        "end_of_text": tokenizer.end_of_text,
        "fingerprint": tokenizer.fingerprint,
    }


def _open_synthetic(option: str, root: Path) -> Corpus:
    order = option or f"order{synthetic.ORDERS[-1]}"
    known = [f"order{n}" for n in synthetic.ORDERS]
    if order not in known:
        raise InputError(f"synthetic:{option} is unknown; give synthetic:{' or synthetic:'.join(known)}.")
    number = int(order.removeprefix("order"))
    tokenizer = IdTokenizer(synthetic.VOCABULARY, synthetic.END_OF_TEXT)
    name = f"synthetic:{order}"

    def build(folder: Path) -> dict[str, Any]:
        splits = dict(zip(tokenfiles.SPLITS, synthetic.tokens(number), strict=True))
        scans = {split: tokenfiles.scan(ids, tokenizer.end_of_text) for split, ids in splits.items()}
        for split, ids in splits.items():
            (folder / f"{split}.bin").write_bytes(ids.astype("<u2").tobytes())
        return _token_manifest(name, tokenizer, scans) | {"entropy_rate": synthetic.entropy_rate(number)}

    folder, manifest = entry(root / "corpora", name, {"source": name, "format": _FORMAT}, build)
    train, val = (tokenfiles.open_tokens(folder / f"{split}.bin") for split in tokenfiles.SPLITS)
    return Corpus(name, tokenizer, train, val, manifest, folder)


def _open_tokens(path: Path, name: str, root: Path, fraction: float) -> Corpus:
    """A .bin file, or a folder with train.bin and val.bin; the files stay where they are."""
    tokenizer = _tokenizer_of(path, name)
    if path.is_dir():
        missing = [f"{split}.bin" for split in tokenfiles.SPLITS if not (path / f"{split}.bin").is_file()]
        if missing:
            raise InputError(
                f"folder {path} holds no {' and no '.join(missing)}; give a folder with train.bin and val.bin."
            )
        splits = {split: tokenfiles.open_tokens(path / f"{split}.bin") for split in tokenfiles.SPLITS}
    else:
        ids = tokenfiles.open_tokens(path)
        start = tokenfiles.tail_start(ids, fraction, tokenizer.end_of_text)
        splits = {"train": ids[:start], "val": ids[start:]}

    built = _built(path)

    def build(folder: Path) -> dict[str, Any]:
        scans = {split: tokenfiles.scan(ids, tokenizer.end_of_text) for split, ids in splits.items()}
        for split, found in scans.items():
            if built and built["sha256"][split] != found["sha256"]:
                raise InputError(f"{path / split}.bin is damaged (its sha256 is not the manifest's); build it again.")
        return _token_manifest(path.name, tokenizer, scans) | built

    files = [path / f"{split}.bin" for split in splits] if path.is_dir() else [path]
    stats = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    identity = {"files": stats, "tokenizer": tokenizer.fingerprint, "val_fraction": fraction, "format": _FORMAT}
    folder, manifest = entry(root / "corpora", f"{path.name}-{tokenizer.name}", identity, build)
    return Corpus(manifest["source"], tokenizer, splits["train"], splits["val"], manifest, folder)


def _built(path: Path) -> dict[str, Any]:
    """What `kronzo data build` wrote beside the token files of a folder, or nothing.

    Raises:
        InputError: the manifest is damaged.
    """
    if not (path / MANIFEST).is_file():
        return {}
    try:
        manifest = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        return {key: manifest[key] for key in ("source", "documents", "bytes", "sha256", "versions")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path / MANIFEST} is unreadable ({error!r}); build the folder again or remove it."
        ) from error


def _tokenizer_of(path: Path, name: str) -> Tokenizer:
    """The tokenizer that a token folder holds, else the named one."""
    if (path / "tokenizer").is_dir():
        return Tokenizer.load(path / "tokenizer")
    tokenizer = find_tokenizer(name)
    if tokenizer is None:
        raise InputError(
            f"{path} holds ids and no text to train the tokenizer {name!r} on; name the one the ids are of, as gpt2."
        )
    return tokenizer


def _token_manifest(source: str, tokenizer: Tokenizer, scans: dict[str, dict[str, Any]]) -> dict[str, Any]:
    largest = max(found["largest"] for found in scans.values())
    if largest >= tokenizer.vocab_size:
        raise InputError(
            f"corpus {source} holds the id {largest}, tokenizer {tokenizer.name} has {tokenizer.vocab_size} ids; name "
            "the tokenizer its ids are of, as gpt2."
        )
    columns = {
        what: {split: found[what] for split, found in scans.items()} for what in ("documents", "tokens", "sha256")
    }
    sizes = {split: 2 * tokens for split, tokens in columns["tokens"].items()}
    return {"source": source, "tokenizer": describe(tokenizer), **columns, "bytes": sizes, "versions": {}}
