"""No step makes the host wait for the device, but to read the losses once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOSSES = {"average": [2, 2], "directional": [2, 5], "normalized": [2, 2]}
CASES = [
    ("kronzo", "float32", {"refresh_every": 1}),
    ("kronzo", "float32", {"rule": "directional", "refresh_every": 1}),
    ("kronzo", "float32", {"restore": "snapshot", "weight_decay": 0.1}),
    ("lozo", "float32", {"refresh_every": 1, "momentum": 0.9}),
    ("subzero", "float32", {"rank": 4, "refresh_every": 1, "momentum": 0.9}),
    ("tezo", "float32", {"rank": 4}),
    ("mezo", "float32", {}),
    ("mezo", "float32", {"noise": "portable", "momentum": 0.9}),
    ("fzoo", "float32", {}),
]


@pytest.fixture(scope="module")
def run():
    """What the steps of the given cases read and wait for, in a process of its own: the device stays registered."""

    def start(cases):
        child = [sys.executable, str(Path(__file__).with_name("faraway.py")), json.dumps(cases)]
        done = subprocess.run(child, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return start


def test_a_step_reads_its_losses_once_and_waits_for_nothing_else(run):
    for (name, _, keywords), found in zip(CASES, run(CASES), strict=True):
        losses = LOSSES[keywords.get("rule", "average")]
        assert found == {"reads": [losses, losses], "waits": []}, (name, keywords)


def test_weights_of_low_precision_are_looked_at_once_in_steps_that_are_powers_of_two(run):
    [found] = run([("kronzo", "bfloat16", {})])
    assert found == {"reads": [[2, 2], [2], [2, 2], [2]], "waits": []}
