"""Documents from files: plain text, JSON lines, parquet and tar, streamed, with the place of what is broken."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kronzo.errors import InputError

Progress = Callable[[str, int, int], None]

SUFFIXES = (".txt", ".jsonl", ".jsonl.gz", ".parquet", ".tar", ".tar.gz", ".tar.xz", ".xz")
_SEPARATOR = "<|endoftext|>"
_BLOCK = 2048
_SURROGATE = re.compile("[\ud800-\udfff]")
_BROKEN = (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError)
_FORMAT = 1


@dataclass(frozen=True)
class TextSource:
    """A source of documents.

    Attributes:
        name: what a caption calls it.
        identity: what decides the content, as JSON values.
        documents: gives the documents in a fixed order, anew at every call.
        versions: of the packages the text was taken from.
    """

    name: str
    identity: dict[str, Any]
    documents: Callable[[], Iterator[str]]
    versions: dict[str, str] = field(default_factory=dict)


def silent(label: str, done: int, total: int) -> None:
    """The progress callback that shows nothing."""


def local_path(source: str) -> Path:
    """The path a source names: from where we stand, else from the folder KRONZO_DATA where it exists there."""
    path, data = Path(source).expanduser(), os.environ.get("KRONZO_DATA")
    if data and not path.exists() and (there := Path(data).expanduser() / path).exists():
        return there
    return path


def text_sha256(documents: Iterable[str]) -> str:
    """The sha256 (hex) of documents, each followed by a zero byte."""
    found = hashlib.sha256()
    for document in documents:
        found.update(document.encode("utf-8") + b"\0")
    return found.hexdigest()


def text_file(path: Path) -> TextSource:
    """A file of text: .txt, .jsonl(.gz) of {"text": ...}, .parquet with a column `text`, or tar.

    A .txt is cut at "<|endoftext|>" where it has some, otherwise at blank lines into documents of at
    least 2 048 characters (at a line's end where 8 192 hold no blank line).

    Raises:
        InputError: absent, unreadable or empty; while reading: invalid UTF-8 or JSON with its place.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise InputError(f"corpus {path} cannot be read ({error.strerror}); give a file that exists.") from error
    if not os.access(path, os.R_OK):
        raise InputError(f"corpus {path} cannot be read (permission denied); change its permissions.")
    if status.st_size == 0:
        raise InputError(f"corpus {path} is empty (0 bytes); give a file with text.")
    identity = {"path": str(path.resolve()), "bytes": status.st_size, "modified": status.st_mtime_ns, "format": _FORMAT}
    return TextSource(path.name, identity, lambda: read_documents(path))


def read_documents(path: Path) -> Iterator[str]:
    """The documents of a text file by its suffix, streamed; see `text_file`."""
    if path.name.endswith(".parquet"):
        return _parquet(path)
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return read_jsonl(path)
    if path.name.endswith(".txt"):
        return _plain(path)
    return _tar(path)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of a (gzipped) UTF-8 file; an invalid byte is named by its place in the uncompressed text."""
    offset = 0
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rb") as file:
            lines: IO[bytes] = file  # type: ignore[assignment]
            for number, line in enumerate(lines, 1):
                yield number, line.decode("utf-8")
                offset += len(line)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {offset + error.start} is not UTF-8; convert the file to UTF-8.") from error
    except _BROKEN as error:
        raise InputError(f"{path} cannot be read ({error}); it is damaged or not readable: copy it again.") from error


def read_jsonl(path: Path) -> Iterator[str]:
    """The `text` of every line's object, or the line itself where it is a JSON string; blank lines are skipped."""
    for number, line in _lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number}: not JSON ({error}); every line needs one JSON object.") from error
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise InputError(f'{path}, line {number}: no text; every line needs an object {{"text": "..."}}.')
        if _SURROGATE.search(text):
            raise InputError(
                f"{path}, line {number}: half a surrogate pair, which UTF-8 lacks; mend the escapes \\ud8xx."
            )
        yield text


def _plain(path: Path) -> Iterator[str]:
    separated = any(_SEPARATOR in line for _, line in _lines(path))
    kept: list[str] = []
    size = 0
    for _, line in _lines(path):
        *finished, rest = line.split(_SEPARATOR)
        for part in finished:
            yield from _document([*kept, part])
            kept, size = [], 0
        kept.append(rest)
        size += len(rest)
        if not separated and size >= (_BLOCK if not line.strip() else 4 * _BLOCK):
            yield from _document(kept)
            kept, size = [], 0
    yield from _document(kept)


def _document(parts: list[str]) -> Iterator[str]:
    text = "".join(parts).strip("\r\n")
    if text.strip():
        yield text


def _parquet(path: Path) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False) as file:
            if "text" not in file.schema_arrow.names:
                raise InputError(
                    f"{path} has the columns {', '.join(file.schema_arrow.names)}; it needs one named text."
                )
            for batch in file.iter_batches(batch_size=256, columns=["text"]):
                yield from (text for text in batch.column(0).to_pylist() if text)
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"{path} is not a readable parquet file ({error}); copy it again.") from error


def _tar(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            yield from _members(file, path.name)
    except _BROKEN as error:
        raise InputError(f"{path} is not a readable tar archive ({error}); copy it again.") from error


def _members(file: IO[bytes], name: str) -> Iterator[str]:
    """The texts of a tar of any compression and of the tars in it, read in passing: nothing is unpacked on disk."""
    with tarfile.open(fileobj=file, mode="r|*") as archive:
        for member in archive:
            inner = archive.extractfile(member) if member.isfile() else None
            if inner is None:
                continue
            place = f"{name}/{member.name}"
            if member.name.endswith((".tar", ".xz", ".tar.gz")):
                yield from _members(inner, place)
            elif member.name.endswith(".txt"):
                try:
                    yield from _document([inner.read().decode("utf-8")])
                except UnicodeDecodeError as error:
                    raise InputError(f"{place}: byte {error.start} is not UTF-8; convert the file to UTF-8.") from error
