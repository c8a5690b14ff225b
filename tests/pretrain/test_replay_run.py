"""RUN/replay.jsonl and `kronzo replay`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_runs import STEPS, assert_same_run, small_config, weights_of
from typer.testing import CliRunner

from kronzo import replay
from kronzo.cli import app, main
from kronzo.errors import InputError
from kronzo.pretrain import rebuild
from kronzo.pretrain.config import to_toml
from kronzo.pretrain.loop import pretrain

EXACT = ["optimizer.restore=snapshot", "checkpoint.points=4", "checkpoint.keep=9", "model.dropout=0.1"]
RECIPES = {
    "kronzo": ["optimizer.method=kronzo", "optimizer.weight_decay=0.1", "optimizer.warmup=0.3"],
    "kronzo-directional": ["optimizer.method=kronzo", "optimizer.published=true", "optimizer.directions=2"],
    "lozo-momentum": ["optimizer.method=lozo", "optimizer.momentum=0.5", "optimizer.refresh_every=3"],
    "mezo-scaled": ["optimizer.method=mezo", 'optimizer.scale={"wte.weight"=2.0}'],
}


@pytest.mark.parametrize("name", RECIPES)
def test_any_step_is_rebuilt_to_the_bit_and_every_checkpoint_verified(tmp_path: Path, name: str) -> None:
    run = tmp_path / "run"
    pretrain(small_config(*RECIPES[name], *EXACT), run, progress=False)
    for step in (3, 9, STEPS):
        reached, weights = rebuild.rebuild(run, step)
        expected = weights_of(run, step)
        assert reached == step and all(torch.equal(weights[key], expected[key]) for key in expected)
    compared = list(rebuild.verify(run))
    assert [c.step for c in compared] == [3, 6, 9, 12] and all(c.difference == c.allowed == 0 for c in compared)


def test_under_arithmetic_restore_the_checkpoints_are_within_the_rounding(tmp_path: Path) -> None:
    pretrain(small_config("optimizer.method=kronzo", "optimizer.directions=4"), tmp_path, progress=False)
    (last,) = list(rebuild.verify(tmp_path))
    assert 0 < last.difference < last.allowed < 1e-4


@pytest.mark.parametrize("name", ["kronzo", "lozo-momentum"])
def test_stopping_and_going_on_leaves_the_same_log(tmp_path: Path, name: str) -> None:
    """Lines written after the checkpoint are cut off and written again."""
    config = small_config(*RECIPES[name], *EXACT)
    pretrain(config, tmp_path / "whole", progress=False)
    pretrain(config, tmp_path / "parts", progress=False, stop=lambda step: step == 5)
    log = tmp_path / "parts" / rebuild.FILE
    log.write_bytes(log.read_bytes() + b'{"step": 5, "update": {"0": 9.0}}\n{"step": 6, "upd')
    pretrain(config, tmp_path / "parts", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")
    logs = [replay.read(tmp_path / part / rebuild.FILE) for part in ("whole", "parts")]
    assert logs[0] == logs[1] and len(logs[0].records) == STEPS
    assert len(list(rebuild.verify(tmp_path / "parts"))) == 5


@pytest.mark.slow
def test_kill_at_any_moment_and_going_on_leaves_a_log_that_verifies(tmp_path: Path) -> None:
    settings = ["budget.steps=600", "checkpoint.points=60", "checkpoint.keep=99", "optimizer.restore=snapshot"]
    config = tmp_path / "c.toml"
    config.write_text(to_toml(small_config("optimizer.method=kronzo", *settings)))
    run, killed = tmp_path / "run", 0
    command = [sys.executable, "-m", "kronzo", "pretrain", str(config), "--out", str(run), "--quiet"]
    for wait in (0.1, 0.3, 0.7):
        child = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)
        target = time.monotonic() + 120
        seen = sum(1 for _ in run.glob("checkpoints/*"))
        while child.poll() is None and time.monotonic() < target:
            if sum(1 for _ in run.glob("checkpoints/[0-9]*")) > seen:
                time.sleep(wait)
                break
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
    assert killed
    subprocess.run(command, check=True, capture_output=True)
    assert len(list(rebuild.verify(run))) == 60


def test_the_command_writes_weights_and_verifies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pretrain(small_config(*RECIPES["kronzo"], *EXACT), tmp_path / "run", progress=False)
    call = CliRunner().invoke
    done = call(app, ["replay", "run", "--step", "6"])
    assert done.exit_code == 0 and "run after 6 steps: step-6.safetensors" in done.output
    found, expected = load_file("step-6.safetensors"), weights_of(tmp_path / "run", 6)
    assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert "equal to the bit" in call(app, ["replay", "run", "--verify"]).output
    assert [c["step"] for c in json.loads(call(app, ["replay", "run", "--verify", "--json"]).output)] == [3, 6, 9, 12]


def test_a_changed_log_is_one_sentence_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(small_config(*RECIPES["kronzo"], *EXACT), tmp_path / "run", progress=False)
    log = tmp_path / "run" / rebuild.FILE
    lines = log.read_text().splitlines(keepends=True)
    line = json.loads(lines[7])
    line["update"] = {"0": 2 * line["update"]["0"]}
    log.write_text("".join([*lines[:7], json.dumps(line) + "\n", *lines[8:]]))
    monkeypatch.setattr(sys, "argv", ["kronzo", "replay", str(tmp_path / "run"), "--verify"])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and "differs from its replay" in said and said.count("\n") == 1
    assert "checkpoints/9" in said


def test_what_has_no_log_of_scalars_is_refused(tmp_path: Path) -> None:
    pretrain(small_config("optimizer.method=adamw"), tmp_path / "adamw", progress=False)
    assert not (tmp_path / "adamw" / rebuild.FILE).exists()
    with pytest.raises(InputError, match="adamw, whose steps"):
        rebuild.rebuild(tmp_path / "adamw")
    with pytest.raises(InputError, match=r"config\.toml"):
        rebuild.rebuild(tmp_path)
    pretrain(small_config("optimizer.method=mezo", "budget.steps=2"), tmp_path / "mezo", progress=False)
    with pytest.raises(InputError, match="from 0 to 2"):
        rebuild.rebuild(tmp_path / "mezo", 3)
    (tmp_path / "mezo" / rebuild.FILE).unlink()
    with pytest.raises(InputError, match="no log of scalars"):
        rebuild.rebuild(tmp_path / "mezo")
