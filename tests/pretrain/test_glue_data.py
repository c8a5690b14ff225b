"""GLUE's files are read exactly, counted against the official numbers, and refused by name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from glue_files import rows_json, rte, stsb, tsv

from kronzo.errors import InputError
from kronzo.pretrain import glue_data, hub
from kronzo.pretrain.glue_data import TASKS, chosen, fingerprint, home, read


def test_quotes_are_text_and_only_tabs_and_newlines_split(tmp_path: Path) -> None:
    head = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
    train = ['1\t1\t2\t"Yes\t"No" he said\u2028there\x85.', "0\t3\t4\tit's 5\" long\tnull\r"]
    tsv(tmp_path / "MRPC" / "train.tsv", head, *train)
    tsv(tmp_path / "MRPC" / "dev.tsv", head, "1\t5\t6\tNA\tnan")
    found = read(TASKS["mrpc"], str(tmp_path))
    assert found["train"].texts == (('"Yes', '"No" he said\u2028there\x85.'), ("it's 5\" long", "null"))
    assert found["train"].labels == (1.0, 0.0)
    assert found["dev"].texts == (("NA", "nan"),)


def test_cola_has_no_header_but_in_its_test_split(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        tsv(tmp_path / "CoLA" / f"{split}.tsv", f"gj04\t1\t\tFirst of {split}.", f"cj99\t0\t*\tBad {split}.")
    tsv(tmp_path / "CoLA" / "test.tsv", "index\tsentence", "0\tBill whistled past the house.")
    found = read(TASKS["cola"], str(tmp_path))
    assert found["train"].texts == (("First of train.",), ("Bad train.",)) and found["dev"].labels == (1.0, 0.0)
    assert found["test"].texts == (("Bill whistled past the house.",),) and found["test"].labels == ()


def test_mnli_has_two_dev_and_two_test_splits(tmp_path: Path) -> None:
    head = "index\tpromptID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label"
    for split in ("train", "dev_matched", "dev_mismatched"):
        tsv(tmp_path / "MNLI" / f"{split}.tsv", head, f"0\t1\tg\t{split} a\tb\tneutral\tcontradiction")
    for split in ("test_matched", "test_mismatched"):
        tsv(tmp_path / "MNLI" / f"{split}.tsv", "index\tsentence1\tsentence2", f"0\t{split} a\tb")
    found = read(TASKS["mnli"], str(tmp_path))
    assert list(found) == ["train", "dev", "dev_mismatched", "test", "test_mismatched"]
    assert [split.texts[0][0].split()[0] for split in found.values()] == [
        "train", "dev_matched", "dev_mismatched", "test_matched", "test_mismatched",
    ]  # fmt: skip
    assert found["dev_mismatched"].labels == (2.0,)


def test_json_subsets_go_together_and_are_called_subsets(tmp_path: Path) -> None:
    rows_json(tmp_path / "QQP" / "subset_dev.json", ("a", "b", "0"), ("c", "d", "1"))
    rows_json(tmp_path / "QQP" / "subset_train.json", ("e", "f", "1"), ("c", "d", "1"))
    tsv(tmp_path / "QQP" / "train_subset.tsv", "id\tquestion1\tquestion2\tis_duplicate", "0\tx\ty\t0")
    found = read(TASKS["qqp"], str(tmp_path))
    assert found["train"].texts == (("e", "f"),) and found["train"].repeated == 1
    assert str(found["train"]) == (
        "1 rows, a subset of 363846, 1 left out (also in an evaluation split) [subset_train.json]"
    )
    assert str(found["dev"]) == "2 rows, a subset of 40430 [subset_dev.json]" and not found["dev"].whole


def test_whole_data_keep_their_repeats_and_are_not_called_subsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = replace(TASKS["rte"], sizes={"train": 2, "dev": 1})
    head = "index\tsentence1\tsentence2\tlabel"
    tsv(tmp_path / "RTE" / "train.tsv", head, "0\ta\tb\tentailment", "1\tc\td\tentailment")
    tsv(tmp_path / "RTE" / "dev.tsv", head, "0\ta\tb\tentailment")
    found = read(task, str(tmp_path))
    assert str(found["train"]) == "2 rows [train.tsv]" and found["train"].repeated == 0
    with pytest.raises(InputError, match="2 rows where train officially has 1"):
        read(replace(task, sizes={"train": 1, "dev": 1}), str(tmp_path))


def test_incomplete_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    rte(tmp_path)
    path = tmp_path / "RTE" / "train.tsv"
    path.write_text(path.read_text() + "99\tonly one\n")
    found = read(TASKS["rte"], str(tmp_path))["train"]
    assert len(found) == 24 and found.incomplete == 1 and "1 left out (incomplete)" in str(found)
    path.write_text(path.read_text() + "100\ttwo\n" * 2)
    with pytest.raises(InputError, match="3 of 27 rows lack one of sentence1, sentence2, label"):
        read(TASKS["rte"], str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("train.tsv", b"index\tsentence1\tlabel\n0\ta\tentailment\n", "no column 'sentence2'"),
        ("train.tsv", b"index\tsentence1\tsentence2\tlabel\n0\ta\tb\tyes\n", "label 'yes'; rte has entailment"),
        ("train.tsv", b"index\tsentence1\n0\t\xff\n", "byte 18 is not UTF-8"),
        ("train.tsv", b"index\tsentence1\tsentence2\tlabel\n", "no rows"),
        ("train.tsv", None, "no train split"),
        ("dev.tsv", None, "no dev split"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    rte(tmp_path)
    path = tmp_path / "RTE" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(InputError, match=words):
        read(TASKS["rte"], str(tmp_path))


def test_bad_json_and_bad_scores_are_refused(tmp_path: Path) -> None:
    (tmp_path / "QNLI").mkdir()
    for name in ("subset_dev.json", "subset_train.json"):
        (tmp_path / "QNLI" / name).write_text("[1, 2]")
    with pytest.raises(InputError, match=r"not of the form \{id"):
        read(TASKS["qnli"], str(tmp_path))
    stsb(tmp_path)
    path = tmp_path / "STS-B" / "dev.tsv"
    path.write_text(path.read_text().replace("\t5.000", "\tfive"))
    with pytest.raises(InputError, match="label 'five'; stsb has a number from 0 to 5"):
        read(TASKS["stsb"], str(tmp_path))


def test_tasks_and_folders_are_found_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [task.name for task in chosen("cola, SST-2,cola")] == ["cola", "sst2"]
    assert len(chosen("all")) == 9
    for wrong, near in (("colla", "cola"), ("", ".")):
        with pytest.raises(InputError, match=f"did you mean {near}"):
            chosen(wrong)
    monkeypatch.delenv("KRONZO_DATA", raising=False)
    with pytest.raises(InputError, match="no --data and no KRONZO_DATA"):
        home(None)
    monkeypatch.setenv("KRONZO_DATA", str(tmp_path))
    with pytest.raises(InputError, match="glue: no such folder"):
        home(None)
    (tmp_path / "glue").mkdir()
    assert home(None) == str(tmp_path / "glue") and home("hub") == "hub"


def test_the_fingerprint_sees_texts_and_labels(tmp_path: Path) -> None:
    before = fingerprint(read(TASKS["rte"], str(rte(tmp_path))))
    assert before == fingerprint(read(TASKS["rte"], str(rte(tmp_path))))
    path = tmp_path / "RTE" / "dev.tsv"
    path.write_text(path.read_text().replace("not_entailment", "entailment", 1))
    assert fingerprint(read(TASKS["rte"], str(tmp_path))) != before


class _Columns:
    """A split as `datasets` gives it."""

    def __init__(self, **columns: list[Any]) -> None:
        self.columns, self.column_names = columns, list(columns)

    def __getitem__(self, name: str) -> list[Any]:
        return self.columns[name]


def test_the_hub_gives_the_same_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _Columns(premise=["a", "b"], hypothesis=["c", "d"], label=[2, 0], idx=[0, 1])
    names = ("train", "validation_matched", "validation_mismatched", "test_matched", "test_mismatched")
    asked = []
    loaded = SimpleNamespace(load_dataset=lambda *given: asked.append(given) or dict.fromkeys(names, rows))
    monkeypatch.setitem(sys.modules, "datasets", loaded)
    monkeypatch.setattr(hub, "require", lambda *_: None)
    found = read(TASKS["mnli"], "hub")
    assert asked == [("nyu-mll/glue", "mnli")]
    assert found["dev_mismatched"].texts == (("a", "c"), ("b", "d")) and found["dev"].labels == (2.0, 0.0)
    assert found["test"].labels == () and str(found["dev"]) == "2 rows, a subset of 9815 [hub]"


def test_the_hub_out_of_reach_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda name: object())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="nyu-mll/glue is on the hub and HF_HUB_OFFLINE is set"):
        read(TASKS["rte"], "hub")


COUNTS = {
    "CoLA": (8551, 1043, True),
    "SST-2": (67349, 872, True),
    "MRPC": (3668, 408, True),
    "STS-B": (5749, 1500, True),
    "RTE": (2490, 277, True),
    "WNLI": (635, 71, True),
    "QNLI": (8999, 5463, False),
    "QQP": (8999, 1000, False),
    "MNLI": (8999, 1000, False),
}


@pytest.mark.parametrize("folder", COUNTS)
def test_real_data_have_the_known_counts(folder: str, local_data: Callable[[str], Path]) -> None:
    (task,) = chosen(folder)
    train, dev, whole = COUNTS[folder]
    found = read(task, str(local_data(f"glue/{folder}").parent))
    assert (len(found["train"]), len(found["dev"]), found["train"].whole) == (train, dev, whole)
    assert not any(split.incomplete for split in found.values())
    assert set(found["dev"].labels) <= {0.0, 1.0, 2.0} or task.name == "stsb"
    assert glue_data.fingerprint(found) == glue_data.fingerprint(found)
