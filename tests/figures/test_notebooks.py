"""The notebooks: thin, executed, and they still run."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
BOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE = re.compile(r"(?<![\w./:])/(?:root|home|tmp|work|Users)/")

each_book = pytest.mark.parametrize("path", BOOKS, ids=[path.stem for path in BOOKS])


def _cells(path: Path) -> list[dict[str, Any]]:
    return list(json.loads(path.read_text(encoding="utf-8"))["cells"])


def test_the_five_are_there() -> None:
    assert [path.stem[:2] for path in BOOKS] == ["01", "02", "03", "04", "05"]


@each_book
def test_a_preset_stands_first_and_every_cell_was_run(path: Path) -> None:
    cells = _cells(path)
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert re.match(r'PRESET = "smoke"', "".join(cells[0]["source"]))
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell["outputs"] if output["output_type"] == "error"]
    assert any("image/png" in output.get("data", {}) for cell in code for output in cell["outputs"])


@each_book
def test_it_is_thin_and_says_nothing_of_a_machine(path: Path) -> None:
    assert path.stat().st_size < 1_000_000
    assert MACHINE.findall(path.read_text(encoding="utf-8")) == []
    longest = max(len("".join(cell["source"]).splitlines()) for cell in _cells(path) if cell["cell_type"] == "code")
    assert longest <= 40


@each_book
@pytest.mark.slow
@pytest.mark.extra
def test_it_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbclient")
    monkeypatch.syspath_prepend(str(FOLDER))
    from run import run

    book = run(path, tmp_path)
    assert all(cell.execution_count for cell in book.cells if cell.cell_type == "code")
    del sys.modules["run"]
