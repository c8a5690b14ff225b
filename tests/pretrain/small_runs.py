"""A run of a few thousand parameters on the synthetic corpus, shared by the tests of the loop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from kronzo import cli
from kronzo.pretrain.config import Config, from_dict, override
from kronzo.pretrain.log import read_metrics

STEPS = 12
BASE = {
    "model": {"name": "nano", "context": 16, "layers": 1, "heads": 2, "width": 16},
    "data": {"source": "synthetic"},
    "budget": {"batch_size": 4, "steps": STEPS},
    "evaluation": {"points": 3, "tokens": 512, "batch_size": 8},
    "checkpoint": {"every_seconds": 0.0, "keep": 3},
}
NOT_REPRODUCED = ["seconds", "peak_bytes"]


def small_config(*settings: str) -> Config:
    return from_dict(override(BASE, settings))


def weights_of(run: Path, step: int = STEPS) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / str(step) / "model.safetensors")


def assert_same_run(left: Path, right: Path, step: int = STEPS) -> None:
    """Same weights bit for bit, and same metrics.jsonl up to seconds and bytes."""
    expected, found = weights_of(left, step), weights_of(right, step)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    tables = [read_metrics(run).drop(columns=NOT_REPRODUCED) for run in (left, right)]
    assert tables[0].equals(tables[1])
    assert list(tables[0]["step"]) == list(range(step + 1))


def run_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object
) -> tuple[int, str, str]:
    """Run `kronzo WORDS` in this process; return its exit code, what it printed and what it said beside."""
    monkeypatch.setattr(sys, "argv", ["kronzo", *map(str, words)])
    code = 0
    try:
        cli.main()
    except SystemExit as ending:
        code = int(ending.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err
