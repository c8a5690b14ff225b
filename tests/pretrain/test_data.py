import errno
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from text_files import write_texts

from kronzo.errors import InputError
from kronzo.pretrain import data, tokenfiles
from kronzo.pretrain.batches import Corpus
from kronzo.pretrain.cache import entry
from kronzo.pretrain.data import open_corpus
from kronzo.pretrain.tokenizer import ByteTokenizer, IdTokenizer

TEXTS = [f"document {i}: " + "lorem ipsum dolor " * (i % 7 + 1) for i in range(200)]


def counting(train: int = 1000, val: int = 203) -> Corpus:
    """A corpus whose ids are their own positions."""
    ids = np.arange(max(train, val), dtype=np.uint16)
    return Corpus("counting", IdTokenizer(60_000, 0), ids[:train], ids[:val])


def documents_of(corpus: Corpus, ids: np.ndarray) -> list[str]:
    ends = np.flatnonzero(ids == corpus.tokenizer.end_of_text)
    return [corpus.tokenizer.decode(part) for part in np.split(ids, ends + 1)[:-1]]


# Batches


@given(
    seed=st.integers(0, 2**40), step=st.integers(0, 10**6), rows=st.integers(1, 5), context=st.integers(1, 30),
    world=st.integers(1, 4),
)  # fmt: skip
def test_batch_is_a_pure_function_whose_ranks_share_one_batch(seed, step, rows, context, world):
    corpus = counting()
    x, y = corpus.batch(seed=seed, step=step, batch_size=rows * world, context=context)
    parts = [
        corpus.batch(seed=seed, step=step, batch_size=rows, context=context, rank=rank, world=world)
        for rank in range(world)
    ]
    assert torch.equal(x, torch.cat([part for part, _ in parts]))
    assert torch.equal(y, torch.cat([part for _, part in parts]))
    assert x.shape == y.shape == (rows * world, context)
    assert x.dtype == y.dtype == torch.int64
    assert torch.equal(x, x[:, :1] + torch.arange(context))
    assert torch.equal(y, x + 1)


def test_batches_differ_by_seed_and_step_and_stay_what_they_were():
    corpus = counting()
    batches = {(s, t): corpus.batch(seed=s, step=t, batch_size=4, context=8)[0][:, 0].tolist() for s, t in GOLDEN}
    assert batches == GOLDEN


GOLDEN = {(0, 0): [64, 436, 236, 959], (0, 1): [528, 379, 626, 888], (1, 0): [972, 899, 622, 438]}


def test_every_window_is_drawn_the_last_one_too():
    corpus = counting(train=12)
    starts = {
        int(x[0, 0]) for step in range(200) for x, _ in [corpus.batch(seed=0, step=step, batch_size=1, context=8)]
    }
    assert starts == {0, 1, 2, 3}


def test_validation_windows_are_fixed_and_do_not_overlap():
    batches = list(counting().validation(batch_size=8, context=10))
    assert [len(x) for x, _ in batches] == [8, 8, 4]
    x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
    assert torch.equal(x.flatten(), torch.arange(200))
    assert torch.equal(y, x + 1)


@given(max_tokens=st.integers(1, 400), batch_size=st.integers(1, 9))
def test_validation_of_fewer_tokens_is_spread_over_the_split(max_tokens, batch_size):
    x = torch.cat([x for x, _ in counting().validation(batch_size=batch_size, context=10, max_tokens=max_tokens)])
    starts = x[:, 0]
    assert len(x) == min(20, max(1, max_tokens // 10))
    assert (starts % 10 == 0).all() and len(set(starts.tolist())) == len(x)
    gaps = torch.diff(torch.cat([starts, torch.tensor([200])]))
    assert gaps.max() - gaps.min() <= 10


def test_a_corpus_shorter_than_a_context_is_refused_with_the_numbers():
    corpus = counting(train=8, val=9)
    corpus.batch(seed=0, step=0, batch_size=1, context=7)
    with pytest.raises(InputError, match=r"training split of counting has 8 tokens, a context of 8 needs 9"):
        corpus.batch(seed=0, step=0, batch_size=1, context=8)
    with pytest.raises(InputError, match=r"held-out split of counting has 9 tokens, a context of 9 needs 10"):
        next(corpus.validation(batch_size=1, context=9))


def test_an_id_outside_the_vocabulary_is_refused():
    corpus = Corpus("foreign", ByteTokenizer(), np.full(50, 400, dtype=np.uint16), np.zeros(50, dtype=np.uint16))
    with pytest.raises(InputError, match="holds the id 400, tokenizer bytes has 320 ids"):
        corpus.batch(seed=0, step=0, batch_size=1, context=8)


def test_reading_a_large_file_keeps_resident_memory_bounded(tmp_path):
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("needs /proc")
    path = tmp_path / "train.bin"
    with path.open("wb") as file:
        file.truncate(1 << 28)
    corpus = Corpus("large", ByteTokenizer(), tokenfiles.open_tokens(path), np.zeros(9, dtype=np.uint16))

    def resident_mb() -> float:
        line = next(line for line in status.read_text().splitlines() if line.startswith("RssFile"))
        return int(line.split()[1]) / 1024

    before = resident_mb()
    for step in range(300):
        corpus.batch(seed=0, step=step, batch_size=32, context=64)
    assert resident_mb() - before < 32


# Text


def test_documents_are_split_by_their_text_and_kept_whole(tmp_path):
    corpus = open_corpus(str(write_texts(tmp_path / "a.jsonl", TEXTS)), val_fraction=0.2)
    train, val = documents_of(corpus, corpus.train), documents_of(corpus, corpus.val)
    assert sorted(train + val) == sorted(TEXTS)
    assert not set(train) & set(val)
    assert 20 <= len(val) <= 60
    assert corpus.manifest["documents"] == {"train": len(train), "val": len(val)}
    assert corpus.manifest["tokens"] == {"train": corpus.train.size, "val": corpus.val.size}
    assert corpus.manifest["bytes"]["val"] == sum(len(text.encode()) for text in val)
    other = open_corpus(str(write_texts(tmp_path / "b.jsonl", TEXTS[::-1] + TEXTS[:50])), val_fraction=0.2)
    assert set(documents_of(other, other.val)) == set(val)
    assert set(documents_of(other, other.train)) == set(train)


def test_the_smallest_corpus_has_one_document_each_and_one_document_is_refused(tmp_path):
    corpus = open_corpus(str(write_texts(tmp_path / "two.jsonl", ["one", "two"])))
    assert {*documents_of(corpus, corpus.train), *documents_of(corpus, corpus.val)} == {"one", "two"}
    most = open_corpus(str(write_texts(tmp_path / "two.jsonl", ["one", "two"])), val_fraction=0.999)
    assert most.train.size and most.val.size
    with pytest.raises(InputError, match="holds 1 different documents; two are needed"):
        open_corpus(str(write_texts(tmp_path / "one.jsonl", ["same", "same"])))


def test_max_documents_takes_the_first(tmp_path):
    corpus = open_corpus(str(write_texts(tmp_path / "a.jsonl", TEXTS)), max_documents=10)
    assert sorted(documents_of(corpus, corpus.train) + documents_of(corpus, corpus.val)) == sorted(TEXTS[:10])


def test_the_bpe_is_trained_on_the_training_split_alone(tmp_path):
    texts = [f"text {i} aaaa" for i in range(40)]
    held_out = [text + " zqzqzqzqzq" * 50 for text in texts]
    path = write_texts(tmp_path / "a.jsonl", texts)
    split = tokenfiles.cut_of(0.2)
    mixed = [new if tokenfiles.text_hash(new) < split else old for old, new in zip(texts, held_out, strict=True)]
    mixed = [text for text in mixed if "zq" in text or tokenfiles.text_hash(text) >= split]
    corpus = open_corpus(str(write_texts(path, mixed)), "bpe:270", val_fraction=0.2)
    assert any("zqzq" in text for text in documents_of(corpus, corpus.val))
    assert not any("zqzq" in text for text in documents_of(corpus, corpus.train))
    assert corpus.tokenizer.encode("aaaa").size < 4
    assert corpus.tokenizer.encode("zqzq").size == 4


# The cache


def test_a_second_open_reads_the_cache_and_a_changed_file_does_not(tmp_path, monkeypatch):
    path = write_texts(tmp_path / "a.jsonl", TEXTS)
    first = open_corpus(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(data, "_tokenize", lambda *_: pytest.fail("built again"))
        assert np.array_equal(open_corpus(str(path)).train, first.train)
    write_texts(path, TEXTS[:100])
    assert open_corpus(str(path)).train.size < first.train.size


@pytest.mark.parametrize("name", ["train.bin", "val.bin", "manifest.json", "tokenizer/kronzo_tokenizer.json"])
@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_entry_is_built_again(tmp_path, name, harm):
    path = write_texts(tmp_path / "a.jsonl", TEXTS)
    corpus = open_corpus(str(path), cache=tmp_path / "cache")
    whole = {file: (corpus.folder / file).read_bytes() for file in ("train.bin", "val.bin", name)}
    (corpus.folder / name).unlink()
    if harm != "remove":
        kept = whole[name] if harm == "flip" else whole[name][:-1]
        (corpus.folder / name).write_bytes(bytes([kept[0] ^ 1]) + kept[1:])
    again = open_corpus(str(path), cache=tmp_path / "cache")
    assert {file: (again.folder / file).read_bytes() for file in whole} == whole
    assert [path.name for path in (tmp_path / "cache" / "corpora").iterdir()] == [again.folder.name]


def test_a_build_that_fails_leaves_nothing(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"text": "fine"}) + "\n{\n")
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: not JSON"):
        open_corpus(str(path), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "corpora").iterdir())


def test_two_processes_may_build_at_once(tmp_path):
    path = write_texts(tmp_path / "a.jsonl", TEXTS)
    code = (
        "import pathlib, sys; from kronzo.pretrain.data import open_corpus\n"
        "print(open_corpus(sys.argv[1], 'bpe:300', cache=pathlib.Path(sys.argv[2])).train.tolist())"
    )
    command = [sys.executable, "-c", code, str(path), str(tmp_path / "cache")]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    found = [json.loads(process.communicate(timeout=120)[0]) for process in both]
    expected = open_corpus(str(path), "bpe:300", cache=tmp_path / "other").train.tolist()
    assert found == [expected, expected]


def test_a_later_build_keeps_the_earlier_entry(tmp_path):
    identity = {"what": "race"}

    def build(folder: Path) -> dict[str, str]:
        if not (tmp_path / "won").exists():
            (tmp_path / "won").touch()
            entry(tmp_path / "cache", "race", identity, build)
        (folder / "file").write_text("content")
        return {}

    folder, _ = entry(tmp_path / "cache", "race", identity, build)
    assert (folder / "file").read_text() == "content"
    assert list((tmp_path / "cache").iterdir()) == [folder]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path, monkeypatch):
    path = write_texts(tmp_path / "a.jsonl", TEXTS)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tokenfiles, "write_splits", full)
        with pytest.raises(InputError, match=r"cannot be written \(No space left on device\); free some space"):
            open_corpus(str(path), cache=tmp_path / "cache")
    assert not list((tmp_path / "cache" / "corpora").iterdir())
    assert open_corpus(str(path), cache=tmp_path / "cache").train.size


def test_progress_ends_at_the_total(tmp_path):
    seen: dict[str, list[tuple[int, int]]] = {}
    open_corpus(
        str(write_texts(tmp_path / "a.jsonl", TEXTS)),
        "bpe:300",
        progress=lambda label, done, total: seen.setdefault(label, []).append((done, total)),
    )
    assert list(seen) == ["training bpe:300", "encoding a.jsonl"]
    assert all(calls[-1] == (len(TEXTS), len(TEXTS)) and calls == sorted(calls) for calls in seen.values())


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written .*KRONZO_CACHE"):
        open_corpus("synthetic", cache=tmp_path / "file")


# Token files


def write_tokens(folder: Path, train: list[int], val: list[int]) -> Path:
    folder.mkdir()
    for name, ids in (("train", train), ("val", val)):
        (folder / f"{name}.bin").write_bytes(np.array(ids, dtype="<u2").tobytes())
    return folder


def test_a_token_folder_is_read_in_place(tmp_path):
    folder = write_tokens(tmp_path / "tokens", [1, 2, 256, 3, 256], [4, 256])
    corpus = open_corpus(str(folder))
    assert (corpus.train.tolist(), corpus.val.tolist()) == ([1, 2, 256, 3, 256], [4, 256])
    assert corpus.manifest["documents"] == {"train": 2, "val": 1}


def test_a_single_token_file_is_cut_after_a_document(tmp_path):
    ids = [1, 2, 3, 256] * 50
    folder = write_tokens(tmp_path / "tokens", ids, [0])
    corpus = open_corpus(str(folder / "train.bin"), val_fraction=0.1)
    assert corpus.train.size == 184 and corpus.train[-1] == 256
    assert corpus.train.tolist() + corpus.val.tolist() == ids


def test_token_files_that_do_not_fit_are_refused(tmp_path):
    folder = write_tokens(tmp_path / "tokens", [1, 50_000, 2], [1, 2])
    with pytest.raises(InputError, match="holds the id 50000, tokenizer bytes has 320 ids"):
        open_corpus(str(folder))
    with pytest.raises(InputError, match="holds ids and no text to train"):
        open_corpus(str(folder), "bpe:300")
    assert open_corpus(str(folder), "gpt2").vocab_size == 50_304
    (folder / "val.bin").write_bytes(b"abc")
    with pytest.raises(InputError, match=r"val\.bin has 3 bytes"):
        open_corpus(str(folder), "gpt2")
    (folder / "val.bin").unlink()
    with pytest.raises(InputError, match=r"holds no val\.bin"):
        open_corpus(str(folder), "gpt2")
    with pytest.raises(InputError, match=r"absent\.bin cannot be read"):
        open_corpus(str(tmp_path / "absent.bin"), "gpt2")


# Bad input and real data


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("pydoc", "did you mean 'pydocs'"),
        ("sinthetic", "did you mean 'synthetic'"),
        ("synthetic:order7", "synthetic:order1 or synthetic:order2"),
        ("pydocs:nunpy", "did you mean 'numpy'"),
        ("nowhere/to/be/found", "neither pydocs, pytopics, synthetic, openwebtext nor a file"),
        ("absent.txt", r"absent\.txt cannot be read"),
    ],
)
def test_an_unknown_source_is_refused_with_the_nearest(source, message):
    with pytest.raises(InputError, match=message):
        open_corpus(source)


def test_bad_settings_are_refused(tmp_path):
    path = write_texts(tmp_path / "a.jsonl", TEXTS)
    with pytest.raises(InputError, match=r"val_fraction=1\.0"):
        open_corpus(str(path), val_fraction=1.0)
    with pytest.raises(InputError, match="max_documents=1"):
        open_corpus(str(path), max_documents=1)
    with pytest.raises(InputError, match="did you mean 'bytes'"):
        open_corpus(str(path), "byte")
    (tmp_path / "a.csv").write_text("x")
    with pytest.raises(InputError, match="unknown suffix"):
        open_corpus(str(tmp_path / "a.csv"))


def test_the_openwebtext_sample_opens_as_text_and_as_tokens(local_data):
    sample = local_data("openwebtext-sample")
    text = open_corpus(str(sample / "openwebtext_10k_subset.jsonl.gz"))
    assert sum(text.manifest["documents"].values()) == 1426
    tokens = open_corpus(str(sample / "nanogpt-format"), "gpt2")
    assert (tokens.train.size, tokens.val.size) == (1_545_425, 109_979)
    assert tokens.manifest["documents"] == {"train": 1326, "val": 100}
    x, y = tokens.batch(seed=0, step=0, batch_size=2, context=1024)
    assert torch.equal(x[:, 1:], y[:, :-1])
