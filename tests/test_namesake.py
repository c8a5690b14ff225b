"""The colour package `spectra` on PyPI has the import name of ours: both commands say so instead of breaking."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(("command", "function"), [("kronzo", "main"), ("spectra", "spectra_main")])
def test_both_commands_refuse_the_colour_package(command: str, function: str, tmp_path: Path) -> None:
    (tmp_path / "spectra").mkdir()
    (tmp_path / "spectra" / "__init__.py").write_text("def html(colour): return colour\n")
    code = f"import sys; sys.argv = ['{command}', '--help']; from kronzo.cli import {function}; {function}()"
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith(f"{command}: `import spectra` finds {tmp_path}") and done.stderr.count("\n") == 1


def test_spectra_enters_through_the_check() -> None:
    from importlib.metadata import entry_points

    (script,) = entry_points(group="console_scripts", name="spectra")
    assert script.value == "kronzo.cli:spectra_main"
