"""Token folders from inputs of any size: shard by shard, resumable, checksummed, in bounded memory.

An input (a file, or the hub) is cut into shards of some 16 million characters. A shard is finished when it has its
final name; a build that was killed goes on with the first one that is absent or damaged, and ends with the same bytes.
At the end the shards are joined into train.bin and val.bin, nanoGPT's format, and dropped. Which documents are held out
depends on their text alone, never on files or order. While joining, the disk holds the tokens (2 bytes each) twice.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import tokenfiles
from kronzo.pretrain.cache import MANIFEST, entry, file_sha256, write_json
from kronzo.pretrain.data import describe
from kronzo.pretrain.textfiles import SUFFIXES, Progress, TextSource, silent, text_file
from kronzo.pretrain.tokenizer import Tokenizer, find_tokenizer

VAL_FRACTION = 0.0005
_SHARD_CHARACTERS = 16_000_000
_COPY_BYTES = 1 << 22
_JOB = "build.json"
_FORMAT = 1


def find_inputs(paths: Iterable[Path]) -> list[TextSource]:
    """The text files among paths and inside folders, in the order of their names within each.

    Raises:
        InputError: an absent path, or one without text files.
    """
    found = []
    for path in paths:
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        named = [file for file in files if file.name.endswith(SUFFIXES)]
        if not named:
            raise InputError(f"{path} holds no text; give files named {', '.join(SUFFIXES)} or a folder of them.")
        found += [text_file(file) for file in named]
    return found


def build(
    inputs: list[TextSource],
    out: Path,
    tokenizer: str = "gpt2",
    *,
    name: str = "openwebtext",
    val_fraction: float = VAL_FRACTION,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Tokenize inputs into OUT/{train.bin, val.bin, tokenizer/, manifest.json}, going on where a build stopped.

    Costs one pass over the text in some 200 MB of memory, whatever the size; GPT-2's BPE takes 1 s a 10 MB and core.

    Args:
        inputs: where the documents come from.
        out: an empty folder, or one of the same build.
        tokenizer: "gpt2", "bytes", a tokenizer.json or a folder with a saved tokenizer.
        name: what the manifest calls the corpus.
        val_fraction: held-out share of the documents, by hash.
        progress: called with a label, inputs done and inputs in all.

    Returns:
        The manifest.

    Raises:
        InputError: the folder holds something else, a tokenizer that needs training, unreadable input.
    """
    found = find_tokenizer(tokenizer)
    if found is None:
        raise InputError(
            f"tokenizer {tokenizer!r} must be trained first; give gpt2, bytes, or the file of a trained one."
        )
    if not 0 < val_fraction < 1:
        raise InputError(f"val_fraction={val_fraction}: the held-out share must lie between 0 and 1, as in 0.0005.")
    job = {
        "inputs": [source.identity for source in inputs],
        "tokenizer": found.fingerprint,
        "val_fraction": val_fraction,
        "format": _FORMAT,
    }
    _claim(out, json.loads(json.dumps(job)))
    if not (out / MANIFEST).is_file():
        _finish(out, name, found, _shards(inputs, out / "shards", found, job, progress or silent))
    shutil.rmtree(out / "shards", ignore_errors=True)
    manifest: dict[str, Any] = json.loads((out / MANIFEST).read_text(encoding="utf-8"))
    return manifest


def _claim(out: Path, job: dict[str, Any]) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
        if (out / _JOB).is_file():
            if json.loads((out / _JOB).read_text(encoding="utf-8")) != job:
                raise InputError(f"{out} holds a build of other inputs or settings; give another --out or remove it.")
        elif any(out.iterdir()):
            raise InputError(f"{out} holds other files; give an empty folder or a new one as --out.")
        else:
            write_json(out / _JOB, job)
    except OSError as error:
        raise InputError(f"{out} cannot be written ({error.strerror}); give another --out.") from error


def _shards(
    inputs: list[TextSource], root: Path, tokenizer: Tokenizer, job: dict[str, Any], show: Progress
) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The shards of all inputs, in order, with their manifests; those that are absent or damaged are made."""
    for i, source in enumerate(inputs):
        show("tokenizing files", i, len(inputs))
        yield from _input_shards(source, i, root, tokenizer, job)
    show("tokenizing files", len(inputs), len(inputs))


def _input_shards(
    source: TextSource, i: int, root: Path, tokenizer: Tokenizer, job: dict[str, Any]
) -> Iterator[tuple[Path, dict[str, Any]]]:
    cut = tokenfiles.cut_of(job["val_fraction"])
    stream: _Stream | None = None
    done = 0

    def make(folder: Path) -> dict[str, Any]:
        nonlocal stream
        if stream is None or stream.taken != done:
            stream = _Stream(source.documents(), done)
        paths = {split: folder / f"{split}.bin" for split in tokenfiles.SPLITS}
        counts = tokenfiles.write_splits(stream.take(_SHARD_CHARACTERS), tokenizer, cut, paths)
        return {"last": stream.empty, **counts}

    for j in itertools.count():
        folder, manifest = entry(root, f"{i:05d}-{j:05d}", {"job": job, "input": i, "shard": j}, make)
        yield folder, manifest
        if manifest["last"]:
            return
        done += sum(manifest["documents"].values())


class _Stream:
    """Documents that can be taken by size; `taken` counts those that are gone, `empty` says whether one is left."""

    def __init__(self, documents: Iterator[str], skip: int) -> None:
        self._documents = itertools.islice(documents, skip, None)
        self._next = next(self._documents, None)
        self.taken = skip

    @property
    def empty(self) -> bool:
        return self._next is None

    def take(self, characters: int) -> Iterator[str]:
        while self._next is not None and characters > 0:
            yield self._next
            characters -= len(self._next)
            self.taken += 1
            self._next = next(self._documents, None)


def _finish(out: Path, name: str, tokenizer: Tokenizer, shards: Iterable[tuple[Path, dict[str, Any]]]) -> None:
    """Join the shards, write the tokenizer and, last, the manifest."""
    made = list(shards)
    counts = {
        what: {split: sum(manifest[what][split] for _, manifest in made) for split in tokenfiles.SPLITS}
        for what in ("documents", "tokens", "bytes")
    }
    for split, number in counts["documents"].items():
        if number == 0:
            raise InputError(
                f"none of the {sum(counts['documents'].values())} documents falls into {split}.bin; give more text or "
                "another --val-fraction, and another --out."
            )
    try:
        for split in tokenfiles.SPLITS:
            _join([folder / f"{split}.bin" for folder, _ in made], out / f"{split}.bin")
        tokenizer.save(out / "tokenizer")
        sha256 = {split: file_sha256(out / f"{split}.bin") for split in tokenfiles.SPLITS}
        facts = {"source": name, "tokenizer": describe(tokenizer), **counts, "sha256": sha256, "versions": {}}
        write_json(out / MANIFEST, facts)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written ({error.strerror}); free some space, then run this again."
        ) from error


def _join(parts: Iterable[Path], whole: Path) -> None:
    beside = whole.with_suffix(".partial")
    with beside.open("wb") as file:
        for part in parts:
            with part.open("rb") as read:
                shutil.copyfileobj(read, file, _COPY_BYTES)
    beside.replace(whole)
