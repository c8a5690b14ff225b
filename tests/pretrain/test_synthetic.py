import hashlib

import numpy as np
import pytest

from kronzo.pretrain import synthetic
from kronzo.pretrain.data import open_corpus
from kronzo.pretrain.ngram import reference_losses

SHA256 = {
    1: "f5bf2230bf8acda0094322ad75b3d5a4c38895c6056cbeec9b1656603f080e21",
    2: "7be89fefa0128472064ac5786bb22dc000de0bf033ae282fdd3cf93f8268c2b7",
}


@pytest.mark.parametrize("order", synthetic.ORDERS)
def test_the_tokens_are_what_they_were(order):
    train, val = synthetic.tokens(order)
    assert (train.size, val.size) == (synthetic.TRAIN_TOKENS, synthetic.VAL_TOKENS)
    assert hashlib.sha256(np.concatenate([train, val]).astype("<u2").tobytes()).hexdigest() == SHA256[order]


@pytest.mark.parametrize("order", synthetic.ORDERS)
def test_the_tokens_follow_the_weights_and_have_the_entropy_rate(order):
    """-mean log p of 1 M tokens, in a chain with this table, has a standard error of about 0.002 nats."""
    train, _ = synthetic.tokens(order)
    table = synthetic.weights(order)
    p = table / table.sum(axis=-1, keepdims=True)
    assert (table > 0).all()
    losses = -np.log(p[train[:-2], train[1:-1], train[2:]])
    assert losses.mean() == pytest.approx(synthetic.entropy_rate(order), abs=0.006)
    assert train.max() == synthetic.VOCABULARY - 1


def test_order_one_forgets_the_symbol_before_the_last():
    table = synthetic.weights(1)
    assert (table == table[:1]).all()
    assert not (synthetic.weights(2) == synthetic.weights(2)[:1]).all()


def test_a_bigram_reaches_the_entropy_rate_of_order_one_only():
    one, two = (open_corpus(f"synthetic:order{order}") for order in (1, 2))
    rate = one.manifest["entropy_rate"]
    assert rate < reference_losses(one)["bigram"] < rate + 0.02
    assert reference_losses(two)["bigram"] > two.manifest["entropy_rate"] + 0.5
    for corpus in (one, two):
        assert reference_losses(corpus)["unigram"] > reference_losses(corpus)["bigram"] + 0.5


def test_the_default_is_order_two_and_its_ids_are_its_text():
    corpus = open_corpus("synthetic")
    assert corpus.name == "synthetic:order2"
    assert corpus.vocab_size == synthetic.VOCABULARY
    ids = corpus.val[:50][corpus.val[:50] != corpus.tokenizer.end_of_text]
    assert np.array_equal(corpus.tokenizer.encode(corpus.tokenizer.decode(corpus.val[:50])), ids)
