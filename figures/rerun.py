"""`python -m figures --rerun`: the runs of runs.toml, and the data collected from them."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from figures import collect, questions
from figures.drawing import ROOT
from kronzo.errors import InputError

PRESETS = ("smoke", "laptop")
"""`laptop` made the committed data; `smoke` does the same small, in a minute."""

RUNS = ROOT / "runs.toml"
_PROGRAMS = {"kronzo": "kronzo", "spectra": "spectra"}


@dataclass(frozen=True)
class Entry:
    """How the data of one file are made.

    Attributes:
        collector: name of a function of figures.collect or figures.questions.
        arguments: its keywords; `{runs}` in a string is the folder of the runs.
        commands: command lines, done in this order; `{runs}` as above.
    """

    collector: str
    arguments: dict[str, Any]
    commands: tuple[str, ...]


def entries(preset: str, path: Path = RUNS) -> dict[str, Entry]:
    """Return the entries of runs.toml by the name of their data file.

    Raises:
        InputError: an unknown preset or collector, or an entry that lacks the preset.
    """
    if preset not in PRESETS:
        raise InputError(f"--preset {preset}: one of {', '.join(PRESETS)} is needed.")
    found = {}
    for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items():
        if preset not in table or _collector(table.get("collector", "")) is None:
            raise InputError(
                f"{path.name}: [{name}] needs a collector, a function of figures.collect or figures.questions, "
                f"and a table {preset}."
            )
        chosen = table[preset]
        arguments = table.get("arguments", {}) | chosen.get("arguments", {})
        found[name] = Entry(table["collector"], arguments, tuple(chosen.get("commands", ())))
    return found


def _collector(name: str) -> Callable[..., pd.DataFrame] | None:
    found: Callable[..., pd.DataFrame] | None = getattr(collect, name, None) or getattr(questions, name, None)
    return found


def rerun(entry: Entry, runs: Path, say: Callable[[str], None]) -> pd.DataFrame:
    """Do the runs of an entry below a folder, what is finished there excepted, and return the data collected from them.

    Raises:
        InputError: a command that is none of kronzo and spectra, or that fails.
    """
    for command in entry.commands:
        program, *words = shlex.split(command.replace("{runs}", str(runs)))
        if program not in _PROGRAMS:
            raise InputError(f"runs.toml: {command!r}: a command of {' or '.join(_PROGRAMS)} is needed.")
        say(f"{program} {shlex.join(words)}")
        ended = subprocess.run([sys.executable, "-m", program, *words], check=False).returncode
        if ended:
            raise InputError(f"{command}: it ended with exit code {ended}; mend it and run again.")
    collector = _collector(entry.collector)
    assert collector is not None, "entries() refuses unknown collectors"
    frame = collector(**{key: _filled(value, runs) for key, value in entry.arguments.items()})
    done = [command.replace("{runs}", f"runs/{runs.name}") for command in entry.commands]
    frame.attrs.setdefault("command", done or [f"figures: {entry.collector}, arguments as in config"])
    return frame


def _filled(value: Any, runs: Path) -> Any:
    """Return the value with {runs} replaced in every string in it."""
    if isinstance(value, str):
        return value.replace("{runs}", str(runs))
    if isinstance(value, dict):
        return {_filled(key, runs): _filled(part, runs) for key, part in value.items()}
    return [_filled(part, runs) for part in value] if isinstance(value, list) else value


def needed(names: Iterable[str], known: dict[str, Entry]) -> list[str]:
    """Return the data files to make.

    Raises:
        InputError: one that runs.toml does not know.
    """
    wanted = list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"runs.toml has no entry [{unknown[0]}]; it has {', '.join(known)}.")
    return wanted
