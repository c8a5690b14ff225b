"""RUN/checkpoints/N: model.safetensors, state.pt and meta.json, complete or absent.

A checkpoint is written in a folder beside, brought to the disk and renamed; its meta.json holds checksums of itself
and of the other files, so that a truncated or changed one is recognised and the one before is taken. Nothing in it is
executed when it is read: safetensors, and torch.load with weights_only.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from kronzo.errors import InputError
from kronzo.pretrain.folder import is_transformers_folder

FOLDER = "checkpoints"
MODEL, STATE, META = "model.safetensors", "state.pt", "meta.json"
_UNFINISHED = ".writing-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read into memory.

    Args:
        path: its folder.
        weights: parameter name -> tensor.
        state: optimizer, schedule and random state.
        meta: plain values: step, counters, sizes.
    """

    path: Path
    weights: dict[str, Tensor]
    state: dict[str, Any]
    meta: dict[str, Any]


def save(run: Path, step: int, model: nn.Module, state: Mapping[str, Any], meta: Mapping[str, Any], keep: int) -> Path:
    """Write RUN/checkpoints/STEP and remove all but the newest `keep`.

    Args:
        run: the run folder.
        step: number of finished steps, the folder's name.
        model: its parameters are written, tied ones once.
        state: tensors, numbers, strings, lists and dicts only.
        meta: plain values that JSON holds.
        keep: checkpoints to keep.

    Raises:
        OSError: the disk is full or the folder not writable; earlier checkpoints are untouched.
    """
    root = run / FOLDER
    beside = root / f"{_UNFINISHED}{step}"
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        save_weights(dict(model.named_parameters()), beside / MODEL)
        _save_state(dict(state), beside / STATE)
        files = {name: _fingerprint(beside / name) for name in (MODEL, STATE)}
        _write_meta(beside / META, {"step": step, **meta, "files": files})
        for name in (MODEL, STATE, META, ""):
            _sync(beside / name)
        target = root / str(step)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(beside, target)
        _sync(root)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    for old in on_disk(run)[keep:]:
        shutil.rmtree(old)
    return target


def save_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Write a .safetensors file; raises OSError where the disk refuses it."""
    try:
        save_file({name: tensor.detach() for name, tensor in weights.items()}, path)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def _save_state(state: dict[str, Any], path: Path) -> None:
    try:
        with path.open("wb") as file:
            torch.save(state, file)
    except RuntimeError as error:  # torch's writer hides what the file said
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise


def latest(run: Path, *, usable: Callable[[dict[str, Any]], bool], say: Callable[[str], None]) -> Checkpoint | None:
    """Return the newest undamaged checkpoint, or None when there is none.

    Args:
        run: the run folder.
        usable: a further condition on the meta values.
        say: told of every checkpoint passed over.
    """
    paths = on_disk(run)
    for path in paths:
        try:
            found = read(path)
            if usable(found.meta):
                return found
            problem = f"{path}: does not fit the log of the run."
        except InputError as error:
            problem = str(error)
        say(f"{problem} {'The one before is taken.' if path != paths[-1] else 'There is none before it.'}")
    return None


def read(path: Path) -> Checkpoint:
    """Read one checkpoint folder, checking every byte.

    Raises:
        InputError: a missing, truncated or changed file.
    """
    try:
        meta = _read_meta(path / META)
        for name, expected in meta["files"].items():
            if _fingerprint(path / name) != expected:
                raise InputError(f"{path / name}: damaged, its checksum differs from the one in {META}.")
        weights = load_file(path / MODEL)
        state = torch.load(path / STATE, weights_only=True, map_location="cpu")
    except (OSError, ValueError, KeyError, SafetensorError, RuntimeError, pickle.UnpicklingError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: not a whole checkpoint ({type(error).__name__}: {error}).") from error
    return Checkpoint(path, weights, state, meta)


def initial_weights(source: Path) -> dict[str, Tensor]:
    """Return the weights of a run (its newest checkpoint), a checkpoint, a .safetensors file or a Hugging Face folder.

    A damaged newest checkpoint gives way to the one before, with a warning.

    Raises:
        InputError: nothing usable there.
    """
    if (source / META).is_file():
        return read(source).weights
    if is_transformers_folder(source):
        from kronzo.integrations.hf_weights import load

        return {name: parameter.detach() for name, parameter in load(source).named_parameters()}
    if source.is_dir():
        problems: list[str] = []
        found = latest(source, usable=lambda meta: True, say=problems.append)
        if found is None:
            raise InputError(f"{source}: no usable checkpoint there; give a run, a checkpoint or a .safetensors file.")
        for problem in problems:
            warnings.warn(problem, stacklevel=2)
        return found.weights
    try:
        return load_file(source)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{source}: no weights can be read from it ({error}); give a run or checkpoint.") from error


def load_weights(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copy weights into the model, refusing any other shape.

    Raises:
        InputError: a parameter that is missing, left over or of another shape, with both shapes.
    """
    parameters = dict(model.named_parameters())
    for name in sorted(parameters.keys() | weights.keys()):
        here = tuple(parameters[name].shape) if name in parameters else "absent"
        there = tuple(weights[name].shape) if name in weights else "absent"
        if here != there:
            raise InputError(
                f"{source} is of another model: {name} is {there} there and {here} here; "
                "give [model] the values of that run's config.toml."
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def on_disk(run: Path) -> list[Path]:
    """Return the checkpoint folders of a run, newest first, whole or not."""
    root = run / FOLDER
    folders = [path for path in root.iterdir() if path.name.isdigit()] if root.is_dir() else []
    return sorted(folders, key=lambda path: int(path.name), reverse=True)


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size}


def _write_meta(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps({"sha256": _digest(values), **values}, indent=1), encoding="utf-8")


def _read_meta(path: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if values.pop("sha256") != _digest(values):
        raise InputError(f"{path}: damaged, its own checksum differs.")
    return values


def _digest(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
