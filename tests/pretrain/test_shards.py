import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from text_files import write_texts

from kronzo.errors import InputError
from kronzo.pretrain import shards
from kronzo.pretrain.data import open_corpus
from kronzo.pretrain.tokenfiles import cut_of, text_hash

TEXTS = [f"document {i} " + "words and words " * (i % 5) for i in range(300)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(shards, "_SHARD_CHARACTERS", 1500)


def build(paths: list[Path], out: Path, **options) -> dict:
    return shards.build(shards.find_inputs(paths), out, "bytes", **{"val_fraction": 0.1, **options})


def whole(folder: Path) -> dict[str, bytes]:
    names = ("train.bin", "val.bin", "manifest.json")
    return {name: (folder / name).read_bytes() for name in names}


def test_a_build_holds_every_document_on_the_side_of_its_hash(tmp_path):
    manifest = build([write_texts(tmp_path / "a.jsonl", TEXTS)], tmp_path / "out")
    corpus = open_corpus(str(tmp_path / "out"))
    assert corpus.name == "openwebtext"
    for split, ids in (("train", corpus.train), ("val", corpus.val)):
        kept = [text for text in TEXTS if (text_hash(text) < cut_of(0.1)) == (split == "val")]
        assert corpus.tokenizer.decode(ids) == "".join(kept)
        assert manifest["documents"][split] == np.count_nonzero(ids == 256) == len(kept) > 0
        assert manifest["bytes"][split] == corpus.manifest["bytes"][split] == sum(len(text.encode()) for text in kept)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "build.json",
        "manifest.json",
        "tokenizer",
        "train.bin",
        "val.bin",
    }


def test_all_formats_and_any_cut_into_files_give_the_same_tokens(tmp_path):
    (tmp_path / "parts").mkdir()
    for i, suffix in enumerate(("parquet", "tar", "jsonl.gz")):
        write_texts(tmp_path / "parts" / f"{i}.{suffix}", TEXTS[i * 100 : (i + 1) * 100])
    one = build([write_texts(tmp_path / "a.jsonl", TEXTS)], tmp_path / "one")
    many = build([tmp_path / "parts"], tmp_path / "many")
    assert one["sha256"] == many["sha256"]


def test_the_split_does_not_depend_on_the_order(tmp_path):
    mixed = random.Random(0).sample(TEXTS, len(TEXTS))
    for name, texts in (("a", TEXTS), ("b", mixed)):
        build([write_texts(tmp_path / f"{name}.jsonl", texts)], tmp_path / name)
    a, b = (open_corpus(str(tmp_path / name)) for name in "ab")
    assert sorted(a.tokenizer.decode(a.val).split("document")) == sorted(b.tokenizer.decode(b.val).split("document"))


class Killed(BaseException):
    """What ends a build from outside."""


@pytest.mark.parametrize("after", [0, 1, 20, 150, 299])
def test_a_killed_build_goes_on_and_ends_with_the_same_bytes(tmp_path, monkeypatch, after):
    paths = [write_texts(tmp_path / "a.jsonl", TEXTS[:130]), write_texts(tmp_path / "b.jsonl", TEXTS[130:])]
    build(paths, tmp_path / "straight")
    read = []

    def dying(path):
        for text in original(path):
            if len(read) == after:
                raise Killed
            read.append(text)
            yield text

    original = shards.text_file.__globals__["read_documents"]
    with monkeypatch.context() as patch:
        patch.setitem(shards.text_file.__globals__, "read_documents", dying)
        with pytest.raises(Killed):
            build(paths, tmp_path / "out")
    kept = sorted((tmp_path / "out" / "shards").glob("[0-9]*")) if after > 20 else []
    assert bool(kept) == (after > 20)
    times = {path: path.stat().st_mtime_ns for path in kept}
    build_once = shards.tokenfiles.write_splits
    made = []
    monkeypatch.setattr(shards.tokenfiles, "write_splits", lambda *a, **k: made.append(1) or build_once(*a, **k))
    build(paths, tmp_path / "out")
    total = len(times) + len(made)
    assert whole(tmp_path / "out") == whole(tmp_path / "straight")
    made.clear()
    build(paths, tmp_path / "fresh")
    assert total == len(made)


@pytest.mark.parametrize("numbers", [[0], [3], [0, 3]])
def test_a_damaged_shard_is_made_again(tmp_path, monkeypatch, numbers):
    paths = [write_texts(tmp_path / "a.jsonl", TEXTS)]
    build(paths, tmp_path / "straight")
    with monkeypatch.context() as patch:
        patch.setattr(
            shards, "_finish", lambda out, name, tokenizer, parts: list(parts) and (_ for _ in ()).throw(Killed)
        )
        with pytest.raises(Killed):
            build(paths, tmp_path / "out")
    made = sorted((tmp_path / "out" / "shards").glob("[0-9]*"))
    for number in numbers:
        (made[number] / "train.bin").write_bytes(b"damaged")
    build(paths, tmp_path / "out")
    assert whole(tmp_path / "out") == whole(tmp_path / "straight")


def test_a_finished_build_is_not_made_again_and_another_is_refused(tmp_path, monkeypatch):
    paths = [write_texts(tmp_path / "a.jsonl", TEXTS)]
    first = build(paths, tmp_path / "out")
    monkeypatch.setattr(shards, "_finish", lambda *_: pytest.fail("made again"))
    assert build(paths, tmp_path / "out") == first
    with pytest.raises(InputError, match="holds a build of other inputs or settings"):
        build(paths, tmp_path / "out", val_fraction=0.2)
    with pytest.raises(InputError, match="holds other files"):
        build(paths, tmp_path)


def test_damaged_tokens_are_found_when_they_are_opened(tmp_path):
    build([write_texts(tmp_path / "a.jsonl", TEXTS)], tmp_path / "out")
    tokens = bytearray((tmp_path / "out" / "val.bin").read_bytes())
    tokens[0] ^= 1
    (tmp_path / "out" / "val.bin").write_bytes(tokens)
    with pytest.raises(InputError, match=r"val\.bin is damaged"):
        open_corpus(str(tmp_path / "out"))
    (tmp_path / "out" / "manifest.json").write_text(json.dumps({"source": 1}))
    with pytest.raises(InputError, match=r"manifest\.json is unreadable"):
        open_corpus(str(tmp_path / "out"))


def test_what_cannot_be_built_is_refused(tmp_path):
    paths = [write_texts(tmp_path / "a.jsonl", TEXTS)]
    with pytest.raises(InputError, match="must be trained first"):
        shards.build(shards.find_inputs(paths), tmp_path / "out", "bpe:512")
    with pytest.raises(InputError, match="val_fraction=0"):
        build(paths, tmp_path / "out", val_fraction=0)
    with pytest.raises(InputError, match=r"none of the 300 documents falls into val\.bin"):
        build(paths, tmp_path / "out", val_fraction=1e-9)
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="holds no text"):
        shards.find_inputs([tmp_path / "none"])
    with pytest.raises(InputError, match=r"absent\.jsonl cannot be read"):
        shards.find_inputs([tmp_path / "absent.jsonl"])
    with pytest.raises(InputError, match="cannot be written"):
        build(paths, tmp_path / "a.jsonl")
    shutil.rmtree(tmp_path / "out")
