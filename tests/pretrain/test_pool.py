import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kronzo.errors import InputError
from kronzo.pretrain.config import OptimizerConfig, from_dict
from kronzo.pretrain.pool import Job, Pool
from kronzo.pretrain.result import Result

SMALL = {
    "threads": 1,
    "model": {"name": "nano", "context": 8, "layers": 1, "heads": 1, "width": 8},
    "data": {"source": "synthetic", "tokenizer": "none"},
    "optimizer": {"method": "mezo", "lr": 1e-3},
    "budget": {"batch_size": 2, "steps": 6},
    "evaluation": {"points": 2, "tokens": 64},
}
TOO_FINE = OptimizerConfig("mezo", lr=1e-3, eps=1e-12)


def _jobs(folder: Path, steps: int = 6, seeds: int = 3) -> list[Job]:
    config = from_dict(SMALL | {"budget": {"batch_size": 2, "steps": steps}})
    return [Job(replace(config, seed=seed), folder / str(seed), 1.0) for seed in range(seeds)]


def _run_all(jobs: list[Job], workers: int) -> list[Result]:
    with Pool(1, workers=workers, show=False) as pool:
        return pool.run(jobs, "runs")


def test_one_worker_runs_here_and_leaves_the_threads_alone(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    results = _run_all(_jobs(tmp_path), 1)
    assert [r.folder.name for r in results] == ["0", "1", "2"] and all(r.finished for r in results)
    assert torch.get_num_threads() == before


def test_a_job_that_is_refused_is_refused_here(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / "letter.txt").write_text("not a run")
    with pytest.raises(InputError, match=r"holds 'letter\.txt' and is no run"):
        _run_all(_jobs(tmp_path), 1)


def test_a_job_ends_at_its_fraction_and_goes_on_from_there(tmp_path: Path) -> None:
    (job,) = _jobs(tmp_path, steps=8, seeds=1)
    job = replace(job, config=replace(job.config, evaluation=replace(job.config.evaluation, points=5)))
    part = replace(job, until=0.5)
    (half,) = _run_all([part], 1)
    lines = (tmp_path / "0" / "metrics.jsonl").read_text()
    assert (half.steps, half.finished) == (4, False)
    assert _run_all([part], 1) == [half] and (tmp_path / "0" / "metrics.jsonl").read_text() == lines
    (whole,) = _run_all([job], 1)
    assert whole.finished and (tmp_path / "0" / "metrics.jsonl").read_text().startswith(lines)
    assert _run_all([part], 1)[0].val_loss == half.val_loss != whole.val_loss, "a run that has gone further"


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    one = _run_all(_jobs(tmp_path / "one"), 1)
    two = _run_all(_jobs(tmp_path / "two"), 2)
    assert [r.val_loss for r in one] == [r.val_loss for r in two]


@pytest.mark.slow
def test_a_workers_warning_is_said_here_as_a_sentence(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    jobs = [replace(job, config=replace(job.config, optimizer=TOO_FINE)) for job in _jobs(tmp_path)]
    _run_all(jobs, 2)
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert lines and all(line.startswith("warning: ") for line in lines), lines


SCRIPT = """
import sys
from pathlib import Path
from tests.pretrain.test_pool import _jobs, _run_all
if __name__ == "__main__":
    _run_all(_jobs(Path(sys.argv[1]), steps=10**6, seeds=2), 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).resolve().parents[2]
    environment = os.environ | {"PYTHONPATH": str(root)}
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path / "runs")], env=environment)
    metrics = [tmp_path / "runs" / name / "metrics.jsonl" for name in "01"]
    _until(lambda: all(path.exists() and path.stat().st_size for path in metrics), 120)
    children = _children(parent.pid)
    assert len(children) >= 2
    parent.send_signal(number)
    parent.wait(60)
    _until(lambda: not any(_alive(pid) for pid in children), 60)


@pytest.mark.slow
def test_ctrl_c_while_workers_start_is_the_parents_alone(tmp_path: Path) -> None:
    """A terminal sends it to every process of the group, also to those that are still importing."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started: list[int] = []
    _until(
        lambda: started.extend(p for p in _children(parent.pid) if "spawn_main" in _read(p, "cmdline")) or started, 120
    )
    assert all(_deaf_to_ctrl_c(pid) for pid in started)
    os.killpg(parent.pid, signal.SIGINT)
    said = parent.communicate(timeout=60)[1]
    assert said.count("Traceback") == 1 and said.endswith("raise KeyboardInterrupt\nKeyboardInterrupt\n"), said


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""


def _deaf_to_ctrl_c(pid: int) -> bool:
    masks = [line.split()[1] for line in _read(pid, "status").splitlines() if line.startswith(("SigBlk", "SigIgn"))]
    return any(int(mask, 16) >> (signal.SIGINT - 1) & 1 for mask in masks)


def _children(pid: int) -> list[int]:
    return [int(p) for task in Path(f"/proc/{pid}/task").iterdir() for p in (task / "children").read_text().split()]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def _until(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.2)
