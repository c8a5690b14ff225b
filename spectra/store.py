"""The folder of a run: a manifest and append-only parquet parts, readable after a kill at any moment.

    manifest.json                             format, schema version, model inventory, settings, versions
    parts/part-000000050-000000050.parquet    the records of one capture (first and last step in the name)
    parts/part-000000000-000000450.parquet    the same after `compact`
    .lock                                     held by the one live recorder

Every file is written beside its place, flushed and renamed, so a file that is there is whole. Any parquet reader opens
the folder of the parts: pandas.read_parquet(f"{folder}/parts").
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from spectra.errors import InputError
from spectra.run import Part, Run
from spectra.schema import SCHEMA, VALUES, VERSION, Record, to_table

PARTS = "parts"
FLOATS = [f"{name}.list.element" for name in VALUES]
"""Columns whose bytes are stored by significance: the values of a spectrum share their leading ones."""

_NAME = re.compile(r"part-(\d{9})-(\d{9})\.parquet")


def _write(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file beside its place, flush it to the disk and rename it: there is never half a file."""
    beside = path.with_name(f".{path.name}.writing")
    try:
        with beside.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def _write_table(folder: Path, first: int, last: int, table: pa.Table) -> None:
    path = folder / PARTS / f"part-{first:09d}-{last:09d}.parquet"
    texts = [field.name for field in table.schema if pa.types.is_string(field.type)]
    options = {"compression": "zstd", "write_statistics": False, "use_dictionary": texts}
    _write(path, lambda file: pq.write_table(table, file, use_byte_stream_split=FLOATS, **options))


def _parts(folder: Path) -> list[Part]:
    """Return the parts by step; one that a compacted part already covers (a kill before its removal) is left out."""
    paths = (folder / PARTS).glob("*.parquet")
    found = [Part(int(name[1]), int(name[2]), path) for path in paths if (name := _NAME.fullmatch(path.name))]
    found.sort(key=lambda part: (part.first, -part.last))
    kept: list[Part] = []
    for part in found:
        if not kept or part.last > kept[-1].last:
            kept.append(part)
    return kept


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / "manifest.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{folder} holds no manifest.json; spectra reads the folder a GradientRecorder wrote; check the path"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}); restore it or record the run again") from error
    if not isinstance(manifest, dict) or manifest.get("format") != "spectra":
        raise InputError(
            f"{path} is not of a spectra store; spectra reads what a GradientRecorder wrote; check the path"
        )
    if manifest["schema_version"] > VERSION:
        raise InputError(
            f"{folder} has schema version {manifest['schema_version']}, written by spectra "
            f"{manifest['versions'].get('spectra')}; this spectra reads up to {VERSION}; install that version or newer"
        )
    return manifest


def open_run(folder: str | Path) -> Run:
    """Return the run recorded in a folder, or in its sub-folder `spectra`.

    Reads the manifest now, the parts when they are asked for. A damaged part is named in a warning and in
    `Run.problems`, and the rest is served. The folder may still be written to; open it again to see more.

    Args:
        folder: what `GradientRecorder(store=...)` was given, or the run folder around it.

    Raises:
        InputError: no such folder, an empty or foreign one, or one of a newer schema.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; spectra reads the folder a GradientRecorder wrote; check the path")
    inner = folder / "spectra" / "manifest.json"
    folder = inner.parent if inner.is_file() else folder
    return Run(_parts(folder), _read_manifest(folder))


class Store:
    """The one writer of a folder.

    Args:
        folder: made when it is not there; it may be empty or hold a spectra store, never anything else.
        start_step: parts from this step on are replaced: they are removed here.
        manifest: settings and inventory; format and schema version are added.

    Raises:
        InputError: a foreign folder, an unwritable one, one of a newer schema, or one with a live recorder.
    """

    def __init__(self, folder: str | Path, start_step: int, manifest: dict[str, Any]) -> None:
        self.folder = Path(folder)
        self._make_folder()
        self._lock = self._take_lock()
        try:
            self._cut(start_step)
            self.write_manifest(manifest)
        except BaseException:
            self.close()
            raise

    def _make_folder(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            names = [path.name for path in self.folder.iterdir() if not path.name.startswith(".")]
        except OSError as error:
            raise InputError(
                f"store={self.folder} cannot be used ({error.strerror}); pass a writable folder"
            ) from error
        if "manifest.json" in names:
            _read_manifest(self.folder)
        elif foreign := set(names) - {PARTS}:
            raise InputError(
                f"store={self.folder} holds other files ({min(foreign)}); pass an empty folder or a spectra store"
            )

    def _take_lock(self) -> IO[bytes]:
        try:
            (self.folder / PARTS).mkdir(exist_ok=True)
            lock = (self.folder / ".lock").open("ab")
        except OSError as error:
            raise InputError(
                f"store={self.folder} cannot be written ({error.strerror}); pass a writable folder"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise InputError(
                f"store={self.folder} has a live recorder; a folder has one writer; close it or pass another folder"
            ) from None
        return lock

    def _cut(self, start_step: int) -> None:
        """Remove the records of start_step and later; leftovers of a killed writer too."""
        for leftover in self.folder.glob("**/.*.writing"):
            leftover.unlink()
        for part in _parts(self.folder):
            if part.last >= start_step and part.first < start_step:
                table = pq.read_table(part.source)
                table = table.filter(pc.less(table["step"], start_step))
                _write_table(self.folder, part.first, int(pc.max(table["step"]).as_py()), table)
        for path in (self.folder / PARTS).iterdir():
            name = _NAME.fullmatch(path.name)
            if name and int(name[2]) >= start_step:
                path.unlink()

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace manifest.json."""
        full = {**manifest, "format": "spectra", "schema_version": VERSION}
        text = json.dumps(full, indent=1, sort_keys=False) + "\n"
        _write(self.folder / "manifest.json", lambda file: file.write(text.encode()))

    def append(self, step: int, records: list[Record]) -> None:
        """Write the records of one capture as a part of their own; a part of the same step is replaced."""
        _write_table(self.folder, step, step, to_table(records))

    def close(self) -> None:
        """Release the folder."""
        self._lock.close()


def compact(folder: str | Path) -> int:
    """Merge the parts of a store into one file, which reads faster; nothing changes for a reader.

    Returns:
        The number of parts merged.

    Raises:
        InputError: no store, a live recorder, or a damaged part (named; remove it first to give it up).
    """
    run = open_run(folder)
    if len(run.parts) < 2:
        return 0
    home = Path(str(run.parts[0].source)).parents[1]
    store = Store(home, run.parts[-1].last + 1, run.manifest)
    try:
        table = pa.concat_tables([part.read(SCHEMA.names) for part in run.parts])
        first, last = run.parts[0].first, run.parts[-1].last
        _write_table(home, first, last, table)
        for part in run.parts:
            path = Path(str(part.source))
            if (part.first, part.last) != (first, last):
                path.unlink()
    finally:
        store.close()
    return len(run.parts)
