"""A first call of either command: one screen, immediate, helpful when mistyped."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

import kronzo.cli
import spectra.cli

APPS = {"kronzo": kronzo.cli.app, "spectra": spectra.cli.app}
HEAVY = ("torch", "numpy", "pandas", "matplotlib", "scipy", "rich.console", "transformers")

by_command = pytest.mark.parametrize("name", APPS)


@by_command
def test_without_arguments_a_command_explains_itself_in_one_screen(name: str) -> None:
    done = CliRunner().invoke(APPS[name], [], prog_name=name)
    lines = done.output.splitlines()
    assert done.exit_code == 0 and len(lines) <= 23 and max(map(len, lines)) <= 80
    assert "..." not in done.output, "a line of the list is cut: shorten the first sentence of that command"
    told = {line.split()[0] for line in lines[lines.index("Commands:") + 1 : -1]}
    groups = {group.typer_instance.info.name for group in APPS[name].registered_groups}
    assert told == {_name(command) for command in APPS[name].registered_commands} | groups
    starts = [line.split()[1] for line in lines if line.startswith(f"  {name} ")]
    assert starts and set(starts) <= told


def _name(command: object) -> str:
    return command.name or command.callback.__name__.replace("_", "-")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "line",
    [
        *("kronzo", "kronzo --help", "kronzo pretrain --help", "kronzo --version"),
        *("spectra", "spectra --help", "spectra report --help"),
    ],
)
def test_help_imports_nothing_heavy(line: str) -> None:
    name = line.split()[0]
    program = (
        f"import sys; sys.argv = {line.split()!r}\n"
        f"from {name}.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print([module for module in {HEAVY!r} if module in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() and done.stderr.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(("name", "typed", "meant"), [("kronzo", "reprodoce", "reproduce"), ("spectra", "plt", "plot")])
def test_an_unknown_command_names_the_nearest(name: str, typed: str, meant: str) -> None:
    done = CliRunner().invoke(APPS[name], [typed])
    assert done.exit_code == 2 and f"No such command '{typed}'. Did you mean '{meant}'" in done.output
