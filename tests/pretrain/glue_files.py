"""Small folders in the layout of the GLUE download, and a tiny pretrained run to fine-tune on them."""

from __future__ import annotations

import json
from pathlib import Path

from small_runs import BASE

from kronzo.pretrain.config import from_dict
from kronzo.pretrain.loop import pretrain

ENTAILED = ("entailment", "not_entailment")


def tsv(path: Path, *lines: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())
    return path


def rows_json(path: Path, *rows: tuple[str, str, str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {str(i): {"text_a": a, "text_b": b, "label": label} for i, (a, b, label) in enumerate(rows)}
    path.write_text(json.dumps(content))
    return path


def rte(root: Path, train: int = 24, dev: int = 8) -> Path:
    """RTE whose second text starts with A or B as its label says; returns the folder of GLUE."""
    for split, number in (("train", train), ("dev", dev)):
        lines = [f"{i}\t{split} {i} x\t{'AB'[i % 2] * 6}\t{ENTAILED[i % 2]}" for i in range(number)]
        tsv(root / "RTE" / f"{split}.tsv", "index\tsentence1\tsentence2\tlabel", *lines)
    return root


def stsb(root: Path, train: int = 24, dev: int = 8) -> Path:
    head = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    for split, number in (("train", train), ("dev", dev)):
        lines = [f"{i}\tg\tf\ty\to\ts\ts\t{split} {i}\t{'ABCDEF'[i % 6] * 6}\t{i % 6}.000" for i in range(number)]
        tsv(root / "STS-B" / f"{split}.tsv", head, *lines)
    return root


def backbone(folder: Path, method: str = "adamw", steps: int = 2, seed: int = 0, width: int = 16) -> Path:
    """Pretrain a few thousand parameters on bytes for a few steps."""
    corpus = folder.parent / "corpus.txt"
    corpus.parent.mkdir(parents=True, exist_ok=True)
    if not corpus.exists():
        corpus.write_text("\n\n".join(f"Document {i}. " + "It says something. " * 150 for i in range(40)))
    values = {
        **BASE,
        "seed": seed,
        "model": BASE["model"] | {"context": 24, "width": width},
        "data": {"source": str(corpus), "tokenizer": "bytes"},
        "optimizer": {"method": method},
        "budget": {"batch_size": 2, "steps": steps},
        "evaluation": {"points": 1, "tokens": 48, "batch_size": 2},
    }
    pretrain(from_dict(values), folder, progress=False)
    return folder
