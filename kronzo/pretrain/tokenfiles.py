"""Token files in nanoGPT's format, flat little-endian uint16 ids: read, scanned, written from documents by split."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from kronzo.errors import InputError
from kronzo.pretrain.tokenizer import Tokenizer

SPLITS = ("train", "val")
_RELEASE_BYTES = 1 << 26
_CHUNK_TOKENS = 1 << 22
_ENCODE_CHARACTERS = 2_000_000


def text_hash(text: str) -> int:
    """The first eight bytes of the sha256 of a text, as a number below 2^64."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def cut_of(fraction: float) -> int:
    """Documents whose hash is below this number are held out."""
    return int(fraction * 2.0**64)


def open_tokens(path: Path) -> np.ndarray:
    """A token file as a read-only memmap, 1-D uint16.

    Raises:
        InputError: absent, empty, or not a whole number of uint16.
    """
    try:
        size = path.stat().st_size
        if size == 0 or size % 2:
            raise InputError(
                f"{path} has {size} bytes; token files hold uint16 ids, an even number above 0: build it again."
            )
        return np.memmap(path, dtype="<u2", mode="r")
    except OSError as error:
        raise InputError(f"token file {path} cannot be read ({error.strerror}); give one that exists.") from error


def release(ids: np.ndarray) -> None:
    """Give the pages of a large memmap back to the system, which keeps them cached: resident memory stays bounded.

    Files under 64 MiB stay mapped. Where the platform has no madvise nothing is done.
    """
    if ids.nbytes < _RELEASE_BYTES:
        return
    base: Any = ids
    while isinstance(base, np.ndarray):
        base = base.base
    if isinstance(base, mmap.mmap) and hasattr(base, "madvise"):
        base.madvise(mmap.MADV_DONTNEED)


def chunks(ids: np.ndarray) -> Iterator[np.ndarray]:
    """The ids in pieces of 4 Mi tokens, their pages released behind them."""
    for start in range(0, ids.size, _CHUNK_TOKENS):
        yield ids[start : start + _CHUNK_TOKENS]
        release(ids)


def scan(ids: np.ndarray, end_of_text: int) -> dict[str, Any]:
    """One pass over ids: their number, the documents (ends of text), the largest id and the sha256 of the file."""
    found = hashlib.sha256()
    documents = largest = 0
    for chunk in chunks(ids):
        found.update(chunk.tobytes())
        documents += int(np.count_nonzero(chunk == end_of_text))
        largest = max(largest, int(chunk.max()))
    return {"tokens": ids.size, "documents": documents, "largest": largest, "sha256": found.hexdigest()}


def tail_start(ids: np.ndarray, fraction: float, end_of_text: int) -> int:
    """Where the held-out tail begins: after the first end-of-text beyond 1 - fraction of the ids, if there is one."""
    start = int(ids.size * (1.0 - fraction))
    for first in range(start, ids.size - 1, _CHUNK_TOKENS):
        ends = np.flatnonzero(ids[first : min(first + _CHUNK_TOKENS, ids.size - 1)] == end_of_text)
        if ends.size:
            return first + int(ends[0]) + 1
    return start


def write_splits(
    documents: Iterable[str],
    tokenizer: Tokenizer,
    cut: int,
    paths: dict[str, Path],
    done: Callable[[int], None] = lambda number: None,
) -> dict[str, dict[str, int]]:
    """Encode documents into one token file a split, an end-of-text after each, in batches of 2 million characters.

    Args:
        documents: in the order in which they are written.
        tokenizer: encodes them.
        cut: documents whose `text_hash` is below it are held out.
        paths: the files of "train" and "val".
        done: called with the number of documents written so far.

    Returns:
        {"documents" | "tokens" | "bytes": {"train": n, "val": n}}, bytes of UTF-8.
    """
    counts = {what: dict.fromkeys(SPLITS, 0) for what in ("documents", "tokens", "bytes")}
    total = 0
    with ExitStack() as stack:
        files = {split: stack.enter_context(paths[split].open("wb")) for split in SPLITS}
        for batch in _batches(documents):
            for text, ids in zip(batch, tokenizer.encode_batch(batch), strict=True):
                split = "val" if text_hash(text) < cut else "train"
                files[split].write(np.append(ids, np.uint16(tokenizer.end_of_text)).astype("<u2").tobytes())
                counts["documents"][split] += 1
                counts["tokens"][split] += ids.size + 1
                counts["bytes"][split] += len(text.encode("utf-8"))
            total += len(batch)
            done(total)
    return counts


def _batches(documents: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for text in documents:
        batch.append(text)
        size += len(text)
        if size >= _ENCODE_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
