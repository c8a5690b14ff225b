import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kronzo.errors import InputError
from kronzo.pretrain.data import open_corpus
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.ngram import reference_losses
from kronzo.pretrain.plan import read_plan
from kronzo.pretrain.reproduce import reproduce

VOLATILE = ("seconds", "peak_bytes")
RUNS = ("fo", "adamw", "adamw-tokens", "kronzo-directional", "kronzo-average", "lozo", "subzero", "mezo")


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduce") / "out"
    said: list[str] = []
    path = reproduce(read_plan("test"), folder, preset="test", progress=False, workers=1, say=said.append)
    assert path == folder / "report.html" and path.stat().st_size > 10_000
    assert "stable rank" in said[0] and "KronZO" in said[1]
    return folder


def _metrics(folder: Path) -> dict[str, list[dict]]:
    lines = {name: (folder / name / "metrics.jsonl").read_text().splitlines() for name in RUNS}
    return {
        name: [{k: v for k, v in json.loads(line).items() if k not in VOLATILE} for line in text]
        for name, text in lines.items()
    }


def _weights(folder: Path) -> dict[str, str]:
    newest = {n: max((folder / n / "checkpoints").iterdir(), key=lambda p: int(p.name)) for n in RUNS}
    return {n: hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest() for n, path in newest.items()}


def test_every_part_is_left_in_the_folder(out: Path) -> None:
    for name in (*(f"{run}/metrics.jsonl" for run in RUNS), "tuning.json", "reference.json", "run.json", "fo/spectra"):
        assert (out / name).exists(), name
    assert {p.suffix for p in (out / "figures").iterdir()} == {".png", ".pdf"}
    assert {p.suffix for p in (out / "tables").iterdir()} == {".md", ".csv"}


def test_budgets_are_equal_up_to_one_step(out: Path) -> None:
    budget = read_plan("test").comparison.budget.token_forwards
    for name in set(RUNS) - {"fo", "adamw-tokens"}:
        frame = read_metrics(out / name)
        step = frame["token_forwards"].diff().max()
        assert budget - step < frame["token_forwards"].iloc[-1] <= budget, name
    drawn = {name: read_metrics(out / name)["tokens"].iloc[-1] for name in RUNS}
    assert drawn["adamw-tokens"] == drawn["kronzo-average"] == drawn["mezo"] > drawn["kronzo-directional"]


def test_all_methods_start_from_the_same_weights(out: Path) -> None:
    first = {name: read_metrics(out / name)["val_loss"].iloc[0] for name in set(RUNS) - {"fo"}}
    assert len(set(first.values())) == 1
    assert len({read_metrics(out / name)["val_loss"].iloc[-1] for name in set(RUNS) - {"fo"}}) == len(first)


def test_reference_lines_are_scored_on_the_windows_that_runs_are_evaluated_on(out: Path) -> None:
    plan = read_plan("test")
    corpus = open_corpus("synthetic", "none")
    windows = list(corpus.validation(batch_size=1, context=plan.context, max_tokens=plan.comparison.evaluation.tokens))
    counts = np.bincount(corpus.train, minlength=corpus.vocab_size)
    distinct = np.count_nonzero(counts)
    unigram = (counts + distinct / corpus.vocab_size) / (counts.sum() + distinct)
    naive = -np.mean([np.log(unigram[int(w)]) for _, y in windows for w in y.ravel()])
    stored = json.loads((out / "reference.json").read_text())
    assert stored["unigram"] == pytest.approx(naive, rel=1e-12)
    assert stored["unigram"] != reference_losses(corpus)["unigram"]


def test_a_finished_folder_is_not_trained_again(out: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    reproduce(read_plan("test"), out, preset="test", progress=False, workers=1)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before


def test_another_plan_or_a_foreign_folder_is_refused(out: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds another plan \(.*seed is 0 there and 1 here"):
        reproduce(read_plan("test", ["seed=1"]), out, progress=False)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds .letter"):
        reproduce(read_plan("test"), tmp_path, progress=False, fresh=True)
    assert (tmp_path / "letter.txt").read_text() == "mine"


LONGER = ["--set", "fo.budget.steps=400", "--set", "comparison.budget.token_forwards=60000"]


def _command(folder: Path) -> list[str]:
    return [sys.executable, "-m", "kronzo", "reproduce", "--preset", "test", "--out", str(folder), "--quiet", *LONGER]


@pytest.mark.slow
def test_killed_in_both_parts_it_ends_with_the_same_weights(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(_command(whole), check=True, capture_output=True)
    for run in ("fo", "mezo"):
        parent = subprocess.Popen(_command(killed), stdout=subprocess.DEVNULL, start_new_session=True)
        _until(lambda run=run: _grown(killed / run / "metrics.jsonl"), parent)
        os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
    subprocess.run(_command(killed), check=True, capture_output=True)
    assert _weights(killed) == _weights(whole)
    assert _metrics(killed) == _metrics(whole)
    import spectra

    left, right = (spectra.open(folder / "fo" / "spectra").frame for folder in (whole, killed))
    assert left["step"].tolist() == right["step"].tolist()
    assert left["stable_rank"].tolist() == right["stable_rank"].tolist()


def _grown(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _until(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "it ended before it could be killed"
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
