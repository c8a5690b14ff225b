"""A checksummed cache of folders: built beside their place, then renamed, rebuilt when damaged."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kronzo.errors import InputError

MANIFEST = "manifest.json"
_STALE_SECONDS = 86_400.0
_CHUNK_BYTES = 1 << 24


def cache_dir() -> Path:
    """The folder of everything kronzo caches: KRONZO_CACHE, else the user's cache folder of the platform."""
    given = os.environ.get("KRONZO_CACHE")
    if given:
        return Path(given).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("kronzo", appauthor=False)


def digest(value: Any) -> str:
    """The sha256 (hex) of a value's canonical JSON: equal on every machine for equal values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """The sha256 (hex) of a file, read in chunks of 16 MiB."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            found.update(chunk)
    return found.hexdigest()


def write_json(path: Path, value: Any) -> None:
    """Write JSON beside `path` and rename it there, so that a reader never sees half a file."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    beside.replace(path)


def remember(path: Path, value: Any) -> None:
    """`write_json` of something derived, into a cached folder; one that may only be read costs a warning."""
    try:
        write_json(path, value)
    except OSError as error:
        warnings.warn(f"{path.name} is derived anew each time: {_unwritable(path.parent, error)}", stacklevel=2)


def read_entry(folder: Path) -> dict[str, Any] | None:
    """The manifest of a cached folder, or None when it is absent, incomplete or damaged.

    Every file the manifest names is read once and compared with its sha256 (about 1 GB a second).
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"].items()
        whole = all(
            (folder / name).stat().st_size == known["bytes"] and file_sha256(folder / name) == known["sha256"]
            for name, known in files
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest if whole else None


def entry(
    root: Path, name: str, identity: Mapping[str, Any], build: Callable[[Path], dict[str, Any]]
) -> tuple[Path, dict[str, Any]]:
    """The cached folder of `identity` and its manifest, built first when it is not there or damaged.

    Two processes that build the same entry at once both write the same bytes; the later one keeps the earlier's.

    Args:
        root: the cache; entries are `root/name-hash`.
        name: a readable name; characters that a file name should not hold are replaced.
        identity: everything that decides the content, as JSON values.
        build: writes the files into the folder it is given and returns the manifest, to which their sizes and
            sha256 are added as `files`.

    Returns:
        The folder and its manifest.

    Raises:
        InputError: the cache cannot be written.
    """
    key = f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-')[:48]}-{digest(identity)[:16]}"
    folder = root / key
    known = read_entry(folder)
    if known is not None:
        return folder, known
    try:
        root.mkdir(parents=True, exist_ok=True)
        _drop_stale(root, key)
        beside = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=root))
    except OSError as error:
        raise InputError(_unwritable(root, error)) from error
    try:
        manifest = build(beside)
        manifest["files"] = _inventory(beside)
        write_json(beside / MANIFEST, manifest)
        _put(beside, folder)
    except OSError as error:
        raise InputError(_unwritable(root, error)) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder, manifest


def _unwritable(root: Path, error: OSError) -> str:
    return (
        f"{root} cannot be written ({error.strerror}); free some space or choose another folder (KRONZO_CACHE "
        "names that of the cache)."
    )


def _inventory(folder: Path) -> dict[str, dict[str, Any]]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
        for path in paths
    }


def _put(beside: Path, folder: Path) -> None:
    """Rename the finished folder into place; a whole one that another process put there first stays."""
    if folder.exists():
        if read_entry(folder) is not None:
            return
        damaged = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        folder.replace(damaged / "damaged")
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        beside.replace(folder)
    except OSError:
        if read_entry(folder) is None:
            raise


def _drop_stale(root: Path, key: str) -> None:
    """Remove what builds of this entry that were killed more than a day ago have left."""
    for left in root.glob(f".{key}-*"):
        if time.time() - left.stat().st_mtime > _STALE_SECONDS:
            shutil.rmtree(left, ignore_errors=True)
