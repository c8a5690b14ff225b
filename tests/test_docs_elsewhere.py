"""The Python blocks marked `notest`, which need several processes or take longer, run here."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kronzo.pretrain.config import from_dict
from kronzo.pretrain.loop import pretrain
from kronzo.pretrain.plan import read_plan

DOCS = Path(__file__).resolve().parents[1] / "docs"
ELSEWHERE = {"distributed.md": 2, "glue.md": 1, "reproduce.md": 1}
MODEL = """
import torch
import kronzo

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(torch.nn.Linear(6, 6) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


model = Model()
"""
STEP = """
opt.step(lambda: model(torch.ones(2, 6)).square().mean())
"""
pytestmark = pytest.mark.slow


def blocks(page):
    return re.findall(r"^```python notest\n(.*?)^```$", (DOCS / page).read_text(encoding="utf-8"), re.M | re.S)


def in_two_processes(program, folder):
    """Run a program under torchrun; return the steps that its optimizer took in each process."""
    told = 'open(f"rank-{torch.distributed.get_rank()}", "w").write(str(opt.last.step))'
    (folder / "train.py").write_text(f"{program}\nassert opt.last.accepted\n{told}\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [(folder / f"rank-{rank}").read_text() for rank in range(2)]


def test_no_block_is_left_out():
    assert {page.name: len(found) for page in DOCS.glob("*.md") if (found := blocks(page.name))} == ELSEWHERE


def test_a_loop_of_ones_own_under_torchrun(tmp_path):
    assert in_two_processes(blocks("distributed.md")[0], tmp_path) == ["99", "99"]


def test_sharded_weights(tmp_path):
    assert in_two_processes(MODEL + blocks("distributed.md")[1] + STEP, tmp_path) == ["0", "0"]


def test_reproduce_from_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = {"plan": read_plan("test")}
    exec(blocks("reproduce.md")[0], given)
    assert (tmp_path / "runs" / "mine" / "report.html").stat().st_size > 10_000


@pytest.mark.extra
def test_glue_from_python(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    config = {
        "data": {"source": str(tmp_path / "corpus.txt"), "tokenizer": "bytes"},
        "model": {"name": "nano", "context": 16, "layers": 1, "heads": 2, "width": 16},
        "budget": {"batch_size": 4, "steps": 2},
        "evaluation": {"points": 2, "tokens": 256},
    }
    (tmp_path / "corpus.txt").write_text("\n\n".join(f"Document {i}. " + "It says. " * 200 for i in range(40)))
    pretrain(from_dict(config), tmp_path / "runs" / "fo", progress=False)
    (tmp_path / "glue" / "RTE").mkdir(parents=True)
    for split in ("train", "dev"):
        rows = [f"{i}\t{split} {i}\tsecond\t{('entailment', 'not_entailment')[i % 2]}" for i in range(24)]
        text = "\n".join(["index\tsentence1\tsentence2\tlabel", *rows])
        (tmp_path / "glue" / "RTE" / f"{split}.tsv").write_text(text + "\n")
    given = {}
    exec(blocks("glue.md")[0], given)
    assert set(given["scores"]["backbone"]) == {"majority", "random", "fo"}
