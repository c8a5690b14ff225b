import json
import sys

import pytest
from text_files import write_texts

from kronzo import cli

TEXTS = [f"document {i} " + "words and words " * (i % 5) for i in range(300)]


def run(capsys, monkeypatch, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["kronzo", "data", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
        raise SystemExit(0)
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def test_info_shows_counts_reference_lines_and_the_entropy_rate_in_80_columns(capsys, monkeypatch):
    code, out, _ = run(capsys, monkeypatch, "info", "synthetic")
    assert code == 0
    assert "synthetic:order2: tokenizer none, 64 ids, padded to 64" in out
    assert "1,048,576" in out and "unigram 3.5" in out and "entropy rate, nats a token: 1.91" in out
    assert all(len(line) <= 80 for line in out.splitlines() if not line.startswith("cached in"))
    code, out, _ = run(capsys, monkeypatch, "info", "synthetic", "--json")
    facts = json.loads(out)
    assert facts["tokens"] == {"train": 1_048_576, "val": 65_536}
    assert set(facts["reference_losses"]) == {"unigram", "bigram"}


def test_build_makes_a_corpus_and_a_token_folder(capsys, monkeypatch, tmp_path):
    path = write_texts(tmp_path / "a.jsonl", TEXTS)
    code, out, _ = run(capsys, monkeypatch, "build", str(path), "--val-fraction", "0.1")
    assert code == 0 and "a.jsonl: tokenizer bytes" in out
    arguments = ["build", "openwebtext", "--from", str(path), "--out", str(tmp_path / "o"), "--tokenizer", "bytes"]
    code, out, _ = run(capsys, monkeypatch, *arguments, "--val-fraction", "0.1")
    assert code == 0 and "openwebtext: tokenizer bytes" in out
    assert (tmp_path / "o" / "train.bin").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("info", "pydoc"), "did you mean 'pydocs'"),
        (("build", "openwebtext"), "give --out DIR"),
        (("build", "pytopics", "--out", "x"), "--from and --out are for openwebtext"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(capsys, monkeypatch, arguments, message):
    code, _, err = run(capsys, monkeypatch, *arguments)
    assert code == 2 and message in err and err.count("\n") == 1
