import errno
import json
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronzo.errors import InputError
from kronzo.pretrain import cache, ngram, tokenfiles
from kronzo.pretrain.batches import Corpus
from kronzo.pretrain.data import open_corpus
from kronzo.pretrain.tokenizer import IdTokenizer

ids = st.lists(st.integers(0, 9), min_size=2, max_size=60)


def naive(train: list[int], scored: list[tuple[int, int]], vocabulary: int) -> dict[str, float]:
    """The equations of the module, a dictionary each."""
    counts, pairs = Counter(train), Counter(pairwise(train))
    followed, successors = Counter(train[:-1]), Counter(v for v, _ in pairs)

    def unigram(w: int) -> float:
        return (counts[w] + len(counts) / vocabulary) / (len(train) + len(counts))

    def bigram(v: int, w: int) -> float:
        if not followed[v]:
            return unigram(w)
        return (pairs[v, w] + successors[v] * unigram(w)) / (followed[v] + successors[v])

    return {
        "unigram": -sum(math.log(unigram(w)) for _, w in scored) / len(scored),
        "bigram": -sum(math.log(bigram(v, w)) for v, w in scored) / len(scored),
    }


@given(train=ids, val=ids, chunk=st.integers(1, 70))
def test_losses_equal_the_naive_ones_whatever_the_chunk(train, val, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenfiles, "_CHUNK_TOKENS", chunk)
        found = ngram.fit_and_score(np.array(train, np.uint16), ngram.neighbours(np.array(val, np.uint16)), 12)
    assert found == pytest.approx(naive(train, list(pairwise(val)), 12), rel=1e-12)


@given(train=ids, v=st.integers(0, 11))
def test_the_probabilities_of_all_successors_sum_to_one(train, v):
    for model in ("unigram", "bigram"):
        losses = [
            ngram.fit_and_score(np.array(train), ngram.neighbours(np.array([v, w])), 12)[model] for w in range(12)
        ]
        assert sum(math.exp(-loss) for loss in losses) == pytest.approx(1.0, rel=1e-12)


def test_the_largest_vocabulary_does_not_overflow():
    train = np.array([65_535, 65_535, 0, 65_535, 65_535], np.uint16)
    found = ngram.fit_and_score(train, ngram.neighbours(train), 65_536)
    assert found == pytest.approx(naive(train.tolist(), list(pairwise(train.tolist())), 65_536), rel=1e-12)


def test_reference_losses_are_cached_beside_the_corpus(tmp_path, monkeypatch):
    corpus = open_corpus("synthetic", cache=tmp_path)
    first = ngram.reference_losses(corpus)
    assert list(first) == ["unigram", "bigram"]
    assert ngram.reference_losses(corpus, max_tokens=1000)["bigram"] > first["bigram"]
    with monkeypatch.context() as patch:
        patch.setattr(ngram, "fit_and_score", lambda *_: pytest.fail("computed again"))
        assert ngram.reference_losses(corpus) == first
    with monkeypatch.context() as patch:
        patch.setattr(ngram, "MAX_TOKENS", 2000)
        assert ngram.reference_losses(corpus) == ngram.reference_losses(corpus, max_tokens=2000) != first
    file = corpus.folder / "reference_losses.json"
    assert set(json.loads(file.read_text())) == {str(corpus.train.size), "1000", "2000"}
    file.write_text("{")
    assert ngram.reference_losses(corpus) == first
    assert ngram.reference_losses(open_corpus("synthetic", cache=tmp_path)) == first


def test_a_cache_that_may_only_be_read_costs_a_warning_and_not_the_losses(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    corpus = open_corpus("synthetic", cache=tmp_path)
    monkeypatch.setattr(cache, "write_json", refuse)
    with pytest.warns(UserWarning, match=r"reference_losses.json is derived anew each time: .*Read-only file system"):
        losses = ngram.reference_losses(corpus)
    monkeypatch.undo()
    assert ngram.reference_losses(corpus) == losses


def test_losses_on_windows_are_those_of_the_tokens_a_run_is_evaluated_on():
    corpus = open_corpus("synthetic")
    batches = corpus.validation(batch_size=3, context=16, max_tokens=320)
    pairs = [(v, w) for x, y in batches for v, w in zip(x.flatten().tolist(), y.flatten().tolist(), strict=True)]
    assert len(pairs) == 320
    expected = naive(corpus.train[:5000].tolist(), pairs, corpus.vocab_size)
    assert ngram.reference_losses(corpus, 5000, windows=(16, 320)) == pytest.approx(expected, rel=1e-12)
    assert ngram.reference_losses(corpus, 5000) != pytest.approx(expected, rel=1e-3)


def test_too_few_tokens_are_refused():
    one, two = np.zeros(1, np.uint16), np.zeros(2, np.uint16)
    with pytest.raises(InputError, match="held-out split of tiny has 1 tokens"):
        ngram.reference_losses(Corpus("tiny", IdTokenizer(4, 0), two, one))
    with pytest.raises(InputError, match="max_tokens=1"):
        ngram.reference_losses(Corpus("tiny", IdTokenizer(4, 0), two, two), max_tokens=1)
