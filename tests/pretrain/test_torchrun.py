"""`kronzo pretrain` under torchrun: the run of one process, shared."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from small_runs import NOT_REPRODUCED, STEPS, small_config, weights_of

from kronzo.pretrain import rebuild
from kronzo.pretrain.config import to_toml
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.loop import pretrain

BASE = ["budget.batch_size=8", "checkpoint.points=4"]
SEARCH = ["optimizer.method=kronzo", "optimizer.directions=4", "optimizer.rule=directional"]
pytestmark = pytest.mark.slow


def launch(folder: Path, ranks: int, *settings: str, out: str = "ranks") -> subprocess.Popen[str]:
    (folder / "c.toml").write_text(to_toml(small_config(*BASE, *settings)))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [*launcher, "-m", "kronzo", "pretrain", "c.toml", "--out", out, "--quiet"]
    return subprocess.Popen(
        command, cwd=folder, env=os.environ | {"OMP_NUM_THREADS": "1"}, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip


def start(folder: Path, ranks: int, *settings: str, out: str = "ranks") -> subprocess.CompletedProcess[str]:
    child = launch(folder, ranks, *settings, out=out)
    said = child.communicate(timeout=500)
    return subprocess.CompletedProcess(child.args, child.returncode, *said)


def kill_all_in(folder: Path) -> None:
    """SIGKILL to torchrun and to its ranks, which have sessions of their own: to all that work in the folder."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cwd").readlink() == folder.resolve():
                os.kill(int(process.name), signal.SIGKILL)


def assert_like_one_process(folder: Path, *settings: str) -> None:
    pretrain(small_config(*BASE, *settings), folder / "one", progress=False)
    found, expected = weights_of(folder / "ranks"), weights_of(folder / "one")
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-5)
    columns = ["step", "tokens", "token_forwards", "forwards", "lr"]
    tables = [read_metrics(folder / name) for name in ("ranks", "one")]
    assert tables[0]["val_loss"].iloc[-1] == pytest.approx(tables[1]["val_loss"].iloc[-1], rel=1e-5)
    assert tables[0][columns].equals(tables[1][columns])
    assert len(list(rebuild.verify(folder / "ranks"))) >= 1


def test_two_ranks_with_half_the_batch_each_equal_one_process_and_go_on_after_a_stop(tmp_path: Path) -> None:
    done = start(tmp_path, 2, *SEARCH)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation loss") == 1
    assert_like_one_process(tmp_path, *SEARCH)
    assert json.loads((tmp_path / "ranks" / "manifest.json").read_text())["processes"] == 2
    for name in (str(STEPS), "9"):
        (tmp_path / "ranks" / "checkpoints" / name / "meta.json").unlink()
    (tmp_path / "ranks" / "result.json").unlink()
    before = weights_of(tmp_path / "ranks")
    done = start(tmp_path, 2, *SEARCH)
    assert done.returncode == 0, done.stderr
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(tmp_path / "ranks").items())


def test_two_ranks_share_the_directions_within_the_budget(tmp_path: Path) -> None:
    settings = [*SEARCH[:2], "optimizer.restore=snapshot", "budget.token_forwards=12288"]
    done = start(tmp_path, 2, "optimizer.extra.parallel=directions", *settings)
    assert done.returncode == 0, done.stderr
    metrics = read_metrics(tmp_path / "ranks")
    assert metrics["token_forwards"].iloc[-1] == 11 * 8 * 128 + 2 * 128 <= 12288
    assert list(metrics["sent_bytes"].iloc[2:]) == [8 * 5] * 10


def test_dropout_of_shares_goes_on_after_a_stop_and_shared_directions_have_one_mask(tmp_path: Path) -> None:
    data, together = tmp_path / "data", tmp_path / "together"
    data.mkdir(), together.mkdir()
    settings = ["optimizer.method=kronzo", "optimizer.directions=2", "optimizer.restore=snapshot", "model.dropout=0.2"]
    assert start(data, 2, *settings).returncode == 0
    before = weights_of(data / "ranks")
    shutil.rmtree(data / "ranks" / "checkpoints" / str(STEPS))
    (data / "ranks" / "result.json").unlink()
    assert start(data, 2, *settings).returncode == 0
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(data / "ranks").items())

    done = start(together, 2, *settings, "optimizer.extra.parallel=directions")
    assert done.returncode == 0, done.stderr
    pretrain(small_config(*BASE, *settings), together / "one", progress=False)
    found, expected = weights_of(together / "ranks"), weights_of(together / "one")
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_first_order_in_several_processes_is_one_sentence(tmp_path: Path) -> None:
    done = start(tmp_path, 2, "optimizer.method=adamw")
    assert done.returncode and "adamw in 2 processes" in done.stderr


def test_killed_at_random_moments_two_ranks_end_with_the_same_weights(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir(), whole.mkdir()
    settings = [*SEARCH, "budget.steps=400", "checkpoint.points=200", "evaluation.points=41"]
    moments, metrics = random.Random(0), killed / "ranks" / "metrics.jsonl"
    for goal in (20, 90, 150, 250):
        child = launch(killed, 2, *settings)
        while child.poll() is None and (not metrics.exists() or len(metrics.read_bytes().splitlines()) < goal):
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.1))
        kill_all_in(killed)
        assert child.wait() == -signal.SIGKILL
    for folder in (killed, whole):
        done = start(folder, 2, *settings)
        assert done.returncode == 0, done.stderr
    expected = weights_of(whole / "ranks", 400)
    assert all(torch.equal(expected[name], weight) for name, weight in weights_of(killed / "ranks", 400).items())
    tables = [read_metrics(folder / "ranks").drop(columns=NOT_REPRODUCED) for folder in (killed, whole)]
    assert tables[0].equals(tables[1]) and len(tables[0]) == 401
