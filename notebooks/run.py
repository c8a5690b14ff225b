"""Run the notebooks: `python notebooks/run.py [NAME ...] [--preset laptop] [--write]`.

Each runs in a folder of its own, below a time limit for every cell. With --write the outputs are stored in the
notebook, without what goes to standard error: warnings and progress bars speak of one machine.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
SECONDS = 300
"""Limit of one cell; none takes 30 s alone on two cores at smoke."""

_PRESET = re.compile(r'^PRESET = "\w+"', re.MULTILINE)


def run(path: Path, folder: Path, preset: str = "smoke", seconds: int = SECONDS) -> nbformat.NotebookNode:
    """Execute a notebook in a folder and return it with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed.
        nbclient.exceptions.CellTimeoutError: a cell took more than the limit.
    """
    book = nbformat.read(path, as_version=4)
    first = book.cells[0]
    first.source = _PRESET.sub(f'PRESET = "{preset}"', first.source)
    NotebookClient(book, timeout=seconds, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute(
        env=os.environ | {"OMP_NUM_THREADS": "1"}
    )  # models this small lose time on threads
    return book


def tidied(book: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Drop standard error, times and the machine's own metadata; the same run then gives the same file."""
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    book.metadata = {"kernelspec": book.metadata["kernelspec"], "language_info": {"name": "python"}}
    return book


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="01_gradient_spectra, ...; all by default")
    parser.add_argument("--preset", default="smoke", choices=("smoke", "laptop"))
    parser.add_argument("--write", action="store_true", help="store the outputs")
    options = parser.parse_args()
    for path in [FOLDER / f"{name}.ipynb" for name in options.names] or sorted(FOLDER.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            book = run(path, Path(folder), options.preset, SECONDS if options.preset == "smoke" else 3600)
        print(f"{path.name}: {len(book.cells)} cells")
        if options.write:
            nbformat.write(tidied(book), path)


if __name__ == "__main__":
    main()
