"""Draw the figures and tables, check them, or do their runs again."""

from __future__ import annotations

import argparse
import difflib
import sys
from pathlib import Path

import pandas as pd

from figures import check, rerun, store
from figures.catalogue import DRAWINGS
from figures.drawing import DATA, OUT, SMOKE, Drawing, Files, draw
from kronzo.errors import InputError as KronzoError
from spectra.errors import InputError as SpectraError

TOLERANCE = 0.02
"""Relative difference from the committed smoke values that a rerun on another machine may have."""


def _options(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m figures", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="fig1, table4, q3, ...; all with data by default")
    parser.add_argument("--check", action="store_true", help="draw nothing; say what does not agree")
    parser.add_argument("--rerun", action="store_true", help="do the runs of figures/runs.toml, then draw")
    parser.add_argument("--preset", default="laptop", choices=rerun.PRESETS, help="of --rerun")
    parser.add_argument("--runs", type=Path, help="where the runs are done; by default runs/figures-PRESET")
    return parser.parse_args(words)


def _chosen(names: list[str], folder: Path) -> list[Drawing]:
    """The drawings that are named, or all whose data are there."""
    known = {drawing.name: drawing for drawing in DRAWINGS}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise KronzoError(f"figure {name!r} is unknown: {', '.join(known)} are known; did you mean {near!r}?")
    return [known[name] for name in names] if names else [each for each in DRAWINGS if _has_data(each, folder)]


def _has_data(drawing: Drawing, folder: Path) -> bool:
    return all((folder / f"{name}.parquet").is_file() for name in drawing.data)


def _frames(drawing: Drawing, folder: Path) -> list[pd.DataFrame]:
    return [store.read(name, folder) for name in drawing.data]


def _do_again(options: argparse.Namespace) -> list[str]:
    """Do the runs and draw; at preset smoke compare with its committed values."""
    runs = options.runs or Path("runs") / f"figures-{options.preset}"
    data, out = (DATA, OUT) if options.preset == "laptop" else (runs / "data", runs / "out")
    known = rerun.entries(options.preset)
    drawings = _chosen(options.names, data) if options.names else [d for d in DRAWINGS if set(d.data) <= set(known)]
    for name in rerun.needed((name for drawing in drawings for name in drawing.data), known):
        store.write(name, rerun.rerun(known[name], runs, print), data)
    problems = []
    for drawing in drawings:
        frames = _frames(drawing, data)
        print(*draw(drawing, frames, out), sep="\n")
        committed = Files(SMOKE, drawing.name)
        if options.preset == "smoke" and committed.path(".csv").is_file():
            close = check.same(committed.read_table(), Files(out, drawing.name).read_table(), TOLERANCE)
            problems += [] if close else [f"{drawing.name}: not within 2 % of {committed.path('.csv')}."]
    return problems


def main(words: list[str] | None = None) -> int:
    """Do what the command line says; the exit code is 1 when something does not agree, 2 on bad input."""
    options = _options(words)
    try:
        if options.rerun:
            problems = _do_again(options)
        elif options.check:
            drawings = _chosen(options.names, DATA)
            problems = [problem for each in drawings for problem in check.check(each, _frames(each, DATA), OUT)]
            problems += check.strays(drawings, OUT) if not options.names else []
            print(f"{len(drawings)} figures and tables checked, {len(problems)} problems")
        else:
            problems = []
            for drawing in _chosen(options.names, DATA):
                print(*draw(drawing, _frames(drawing, DATA), OUT), sep="\n")
    except (KronzoError, SpectraError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
