"""The run folder: who may write it, what it was started with, and how it ended."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain.config import Config, differences, from_toml, to_toml

CONFIG, MANIFEST, RESULT, LOCK, TOKENIZER = "config.toml", "manifest.json", "result.json", ".lock", "tokenizer"
_OURS = (CONFIG, MANIFEST, RESULT, LOCK, "metrics.jsonl", "checkpoints", "spectra", TOKENIZER, "replay.jsonl")
_PACKAGES = ("kronzo", "torch", "numpy", "safetensors", "tokenizers")


@contextmanager
def locked(run: Path, ours: Iterable[str] = _OURS, marker: str = CONFIG) -> Iterator[None]:
    """Create the folder if need be and hold it for this process.

    Args:
        run: the folder.
        ours: names that may stand in it.
        marker: the file that shows it is what it should be, beside which other names are left alone.

    Raises:
        InputError: not writable, holding something that is no run, or in use by another process.
    """
    try:
        run.mkdir(parents=True, exist_ok=True)
        refuse_foreign(run, ours, marker)
        descriptor = os.open(run / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise InputError(f"{run}: cannot be written ({error.strerror}); give another folder with --out.") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise InputError(f"{run}: another process is writing it; wait for it or give another --out.") from error
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS):
            raise
        raise InputError(
            f"{run}: {os.strerror(error.errno or 0)}; make room and run the same command, which goes on from the "
            "last checkpoint."
        ) from error
    finally:
        os.close(descriptor)


def refuse_foreign(run: Path, ours: Iterable[str], marker: str) -> None:
    """Refuse a folder that holds other names than `ours`, unless `marker` shows what it is.

    Raises:
        InputError: naming the first of them.
    """
    foreign = sorted(
        path.name for path in run.iterdir() if path.name not in {*ours, LOCK} and path.suffix != ".writing"
    )
    if foreign and not (run / marker).exists():
        raise InputError(f"{run}: holds {foreign[0]!r} and is no run; give an empty or new folder with --out.")


def holds(run: Path, config: Config) -> bool:
    """Whether the folder holds the run of this resolved config; False when it holds none yet.

    Raises:
        InputError: the folder holds a run of another config.
    """
    if not (run / CONFIG).exists():
        return False
    changed = differences(config, from_toml(run / CONFIG))
    if changed:
        more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
        raise InputError(
            f"{run}: holds another run ({'; '.join(changed[:3])}{more}); give another --out, or --fresh to start over."
        )
    return True


def claim(run: Path, config: Config, manifest: Mapping[str, Any], save_tokenizer: Callable[[Path], None]) -> None:
    """Write tokenizer, manifest.json and, last, config.toml into a folder that holds no run yet."""
    if (run / CONFIG).exists():
        return
    save_tokenizer(run / TOKENIZER)
    write_json(run / MANIFEST, manifest)
    _write(run / CONFIG, to_toml(config))


def clear(run: Path) -> None:
    """Remove what a run has written, and nothing else."""
    for name in _OURS:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        elif name != LOCK:
            path.unlink(missing_ok=True)


def write_json(path: Path, values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Write a JSON file beside and rename it."""
    _write(path, json.dumps(values, indent=1, ensure_ascii=False, default=str) + "\n")


def _write(path: Path, text: str) -> None:
    beside = path.with_name(path.name + ".writing")
    with beside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def environment() -> dict[str, Any]:
    """Return what the numbers of a run may depend on: versions, machine, threads, and the git commit if any."""
    import torch

    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in _PACKAGES},
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "git": _git_commit(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def _git_commit() -> str | None:
    """Return the commit of the checkout this package runs from, "-dirty" when changed; None without a checkout."""
    here = Path(__file__).parent
    commands = (
        ["ls-files", "--error-unmatch", Path(__file__).name],
        ["describe", "--always", "--dirty", "--abbrev=40"],
    )
    output = ""
    for arguments in commands:
        try:
            done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, check=False)
        except OSError:
            return None
        if done.returncode:
            return None
        output = done.stdout.strip()
    return output


def is_transformers_folder(path: Path) -> bool:
    """Whether this is the folder of a GPT-2 that transformers has saved; nothing is imported for it."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "gpt2"
