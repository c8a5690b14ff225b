from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kronzo.pretrain import doctor
from kronzo.pretrain.data import open_corpus


def test_extras_are_read_from_the_metadata() -> None:
    lines = [
        "torch>=2.6",
        "numpy<3,>=1.26; python_version >= '3.11'",
        'pytest>=8; extra == "test"',
        "no-such-package-here>=1; extra == 'test'",
        "pytest>=8; extra == 'all'",
    ]
    assert doctor._extras(lines) == {"test": {"pytest": pytest.__version__, "no-such-package-here": None}}


def test_what_is_here_is_found(own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "glue" / "CoLA").mkdir(parents=True)
    monkeypatch.setenv("KRONZO_DATA", str(tmp_path))
    corpus = open_corpus("synthetic", "none")
    found = doctor.examine()
    assert found["spectra"] == {"home": str(Path(doctor.__file__).parents[2] / "spectra"), "ours": True}
    assert found["torch"]["devices"][0].startswith("cpu") and found["torch"]["threads"] >= 1
    assert found["cache"]["folder"] == str(own_cache) and found["cache"]["writable"]
    expected = {
        "source": corpus.name,
        "tokenizer": "none",
        "train_tokens": corpus.train.size,
        "val_tokens": corpus.val.size,
    }
    assert expected in found["cache"]["corpora"]
    assert found["data"]["found"] == ["glue (CoLA)"]
    assert json.loads(doctor.as_json(found)) == found


def test_the_text_fits_and_names_the_command_for_what_is_missing() -> None:
    found = doctor.examine()
    found["extras"] = {"hf": {"transformers": None, "accelerate": None}, "glue": {"scikit-learn": "1.5.0"}}
    text = doctor.as_text(found)
    assert 'hf: without transformers, accelerate: pip install -e ".[hf]"' in text
    assert "glue: scikit-learn 1.5.0\n" in text
    words = [word for line in text.splitlines() if len(line) > 80 for word in line.split() if "/" not in word]
    assert words == [], "only paths may be longer"
    found["extras"] = {}
    found["spectra"] = {"home": "/somewhere/spectra", "ours": False}
    text = doctor.as_text(found)
    assert "used from a folder" in text and "NOT ours: /somewhere/spectra" in text


def test_a_damaged_corpus_and_an_empty_cache_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRONZO_CACHE", str(tmp_path / "none" / "yet"))
    monkeypatch.delenv("KRONZO_DATA", raising=False)
    text = doctor.as_text(doctor.examine())
    assert "no corpus yet; kronzo data build pydocs makes one" in text and "KRONZO_DATA is not set" in text
    broken = tmp_path / "none" / "yet" / "corpora" / "pydocs-1234"
    broken.mkdir(parents=True)
    (broken / "manifest.json").write_text("{")
    found = doctor.examine()
    assert "pydocs-1234 (damaged)" in doctor.as_text(found)
    assert json.loads(doctor.as_json(found))["cache"]["corpora"][0]["train_tokens"] is None


def test_the_command_imports_nothing_heavy_but_torch(tmp_path: Path) -> None:
    program = (
        "import sys; from kronzo import cli; sys.argv = ['kronzo', 'doctor', '--json']\n"
        "try:\n    cli.main()\nfinally:\n"
        "    heavy = ('pandas', 'matplotlib', 'transformers', 'tiktoken')\n"
        "    print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0 and json.loads(done.stdout)["kronzo"]
    assert done.stderr.strip().splitlines()[-1] == "[]"
