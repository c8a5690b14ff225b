"""The benchmark for GPUs runs, on the CPU and tiny: what it prints for a GPU has the same keys."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kronzo

BENCHMARK = Path(__file__).resolve().parents[1] / "benchmarks" / "bench_gpu.py"


def run(*options):
    return subprocess.run([sys.executable, str(BENCHMARK), *options], capture_output=True, text=True)


@pytest.mark.slow
def test_every_method_and_adamw_take_steps_and_sweeps_stand_beside_a_copy():
    tiny = ["--models", "nano", "--batch", "4", "--context", "16", "--part", "2", "--rounds", "1"]
    done = run("--device", "cpu", *tiny)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["config"]["device_name"] == "cpu"
    assert set(found["results"]) == {f"{name}, nano" for name in (*kronzo.METHODS, "adamw")}
    assert all(row["peak"] > 0 and row["seconds median"] > 0 for row in found["results"].values())
    assert {"kronzo sweep / copy, nano", "mezo / adamw, peak, nano"} <= set(found["ratios"])


@pytest.mark.slow
def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = run()
    assert done.returncode != 0 and "--device cpu" in done.stderr and "Traceback" not in done.stderr
