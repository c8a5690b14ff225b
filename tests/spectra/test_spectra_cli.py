"""The command: help without torch, every format, one sentence and exit code 2 on bad input."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from spectra_models import TinyLM, train
from typer.testing import CliRunner

import spectra
from spectra import cli


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "spectra"
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with spectra.GradientRecorder(model, optimizer, every=3, store=folder):
        train(model, optimizer, range(7))
    return folder


def invoke(*words):
    return CliRunner().invoke(cli.app, [str(word) for word in words])


def test_help_and_version_do_not_import_torch():
    code = """
import sys
from spectra import cli
for words in (["--help"], ["report", "--help"], ["plot", "--help"], ["--version"]):
    try:
        cli.app(words)
    except SystemExit as done:
        assert not done.code
assert "torch" not in sys.modules and "pandas" not in sys.modules and "matplotlib" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"spectra {spectra.__version__}" in done.stdout


@pytest.mark.parametrize("format", ["table", "markdown", "csv", "json"])
def test_report_prints_each_format(store, format):
    done = invoke("report", store, "--format", format)
    assert done.exit_code == 0 and "block.mlp_in" in done.stdout
    assert invoke("report", store.parent, "--format", format).stdout == done.stdout


def test_report_json_switch_and_filters(store):
    loaded = json.loads(
        invoke("report", store, "--json", "--layer", "*mlp*", "--metric", "stable_rank", "--step", 3).stdout
    )
    assert loaded["stages"] == [3] and len(loaded["layers"]) == 2 and "stable_rank" in loaded["layers"][0]


def test_plot_writes_png_and_pdf(store, tmp_path):
    done = invoke("plot", store, "--out", tmp_path / "figures")
    assert done.exit_code == 0
    for path in done.stdout.split():
        assert Path(path).read_bytes()[:4] in (b"\x89PNG", b"%PDF")
    assert len(done.stdout.split()) >= 4


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["report", "nowhere"], "is not a folder"),
        (["report", "STORE", "--format", "xml"], "unknown format"),
        (["report", "STORE", "--metric", "rank"], "unknown metric"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(store, words, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["spectra", *(str(store) if word == "STORE" else word for word in words)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    printed = capsys.readouterr()
    assert stopped.value.code == 2 and printed.out == ""
    assert printed.err.startswith("spectra: ") and expected in printed.err and printed.err.count("\n") == 1


def test_a_corrupt_part_is_one_sentence_and_the_rest_is_served(store, tmp_path):
    damaged = shutil.copytree(store, tmp_path / "spectra")
    next((damaged / "parts").iterdir()).write_bytes(b"no parquet")
    command = [sys.executable, "-c", "from spectra.cli import main; main()", "report", str(damaged)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (said,) = done.stderr.splitlines()
    assert said.startswith("spectra: warning: part part-") and said.endswith("it is skipped")
    assert "2 captures" in done.stdout


def test_a_glob_over_layers_leaves_a_picture_of_each(store, tmp_path):
    assert invoke("plot", store, "--layer", "block.mlp_*", "--out", tmp_path).exit_code == 0
    assert {path.name for path in tmp_path.glob("scree*.png")} == {"scree-block.mlp_in.png", "scree-block.mlp_out.png"}
