"""What a run does to its process, and what torchrun says to it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from kronzo import InputError
from kronzo.cli import app
from kronzo.pretrain import process, steps, torchrun

PEAKS = """
import resource, subprocess, sys
from kronzo.pretrain.process import peak_bytes
big = bytearray(b"1") * 700_000_000
child = "from kronzo.pretrain.process import peak_bytes; print(peak_bytes('cpu'))"
print(peak_bytes("cpu"), subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a process can start from its parent's peak")
def test_the_peak_of_a_process_is_not_that_of_its_parent() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    parent, child = map(int, done.stdout.split())
    assert parent > 700e6 > child > 50e6
    assert process.resident_bytes("VmRSS") <= process.resident_bytes("VmHWM")


def test_dropout_streams_are_of_the_share_and_the_step() -> None:
    def drawn(step: int, shard: int) -> list[float]:
        steps.start_streams(1, step, shard, 2)
        return torch.rand(3).tolist()

    assert drawn(4, 1) == drawn(4, 1)
    assert len({tuple(drawn(step, shard)) for step in range(3) for shard in range(2)}) == 6
    before = torch.get_rng_state()
    steps.start_streams(1, 4, 0, 1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("command", [["reproduce"], ["compare", "g.toml"], ["data", "build", "x"], ["memory", "nano"]])
def test_commands_that_share_nothing_are_refused_under_torchrun(
    monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(InputError, match=f"kronzo {command[0]} in 2 processes"):
        CliRunner().invoke(app, command, catch_exceptions=False)
    torchrun.check_command("pretrain")
    assert torchrun.place() == (1, 2)
    monkeypatch.setenv("WORLD_SIZE", "1")
    torchrun.check_command(command[0])
    assert torchrun.place() == (0, 1)
