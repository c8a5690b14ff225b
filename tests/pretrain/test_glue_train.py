"""Fine-tuning: rows become batches exactly, padding is not seen, equal seeds are equal, and it learns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from glue_files import rte, stsb, tsv

from kronzo.errors import InputError
from kronzo.pretrain import glue_train, gpt2, optimizers
from kronzo.pretrain.config import OptimizerConfig
from kronzo.pretrain.glue_data import TASKS, Split, read
from kronzo.pretrain.glue_train import Classifier, Data, Recipe, encode, fine_tune, prepared
from kronzo.pretrain.tokenizer import ByteTokenizer

SHAPE = gpt2.GPT2Config(vocab_size=320, context=24, layers=1, heads=2, width=16)
EOT = 256


def recipe(method: str = "adamw", **values) -> Recipe:
    optimizer = optimizers.resolve(OptimizerConfig(method=method, directions=values.pop("directions", None)))
    return Recipe(optimizer, **{"lr": (1e-2,), "epochs": 2, "batch_size": 4} | values)


def data_of(root: Path, task: str, given: Recipe) -> Data:
    return prepared(TASKS[task], read(TASKS[task], str(root)), ByteTokenizer(), SHAPE.context, given)


def tune(data: Data, given: Recipe, seed: int = 0, lr: float = 1e-2):
    return fine_tune(gpt2.GPT2(SHAPE, seed=1), data, given, lr, seed, lambda fraction: None)


def test_rows_are_marked_and_the_longer_text_is_cut() -> None:
    split = Split((("ab", "c"), ("x" * 50, "yz"), ("x" * 50, "y" * 40), ("", "")), (0.0,) * 4, "", 4)
    rows = encode(split, ByteTokenizer(), 12)
    a, b, c, x, y, z = b"abcxyz"
    assert rows.ids[0].tolist() == [EOT, a, b, EOT, c, EOT]
    assert rows.ids[1].tolist() == [EOT, *[x] * 7, EOT, y, z, EOT]
    assert [len(ids) for ids in rows.ids] == [6, 12, 12, 3]
    assert abs((rows.ids[2] == x).sum() - (rows.ids[2] == y).sum()) <= 1
    (single,) = encode(Split((("q" * 30,),), (1.0,), "", 1), ByteTokenizer(), 12).ids
    assert single.tolist() == [EOT, *[ord("q")] * 10, EOT]


def test_the_head_stands_on_the_last_token_and_does_not_see_padding() -> None:
    model = Classifier(gpt2.GPT2(SHAPE, seed=0), 3, seed=0).eval()
    split = Split((("a much longer one", "x"), ("abc", "d")), (0.0, 1.0), "", 2)
    rows = encode(split, ByteTokenizer(), SHAPE.context)
    together = glue_train._outputs(model, rows, EOT, 2)
    for i in range(2):
        x = torch.from_numpy(rows.ids[i])[None]
        expected = model.head(model.backbone.hidden(x)[0, -1])
        np.testing.assert_allclose(together[i], expected.detach().numpy(), atol=1e-6)


def test_losses_are_cross_entropy_and_squared_error() -> None:
    x = torch.tensor([[EOT, 5, EOT], [EOT, EOT, EOT]])
    y = torch.tensor([[2.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    model = Classifier(gpt2.GPT2(SHAPE, seed=0), 2, seed=3)
    outputs = model(x, y[:, 0].long()).double()
    p = outputs.exp() / outputs.exp().sum(1, keepdim=True)
    expected = -(p[0, 1].log() + p[1, 0].log()) / 2
    loss = model.loss(x, y)
    assert loss.dtype == torch.float64 and loss.item() == pytest.approx(expected.item(), rel=1e-6)
    model = Classifier(gpt2.GPT2(SHAPE, seed=0), 1, seed=3)
    outputs = model(x, y[:, 0].long())[:, 0].double()
    assert model.loss(x, y).item() == pytest.approx(((outputs - y[:, 1]) ** 2).mean().item(), rel=1e-9)


def test_every_epoch_takes_each_row_once_in_its_own_order(tmp_path: Path) -> None:
    given = recipe(batch_size=5)
    data = data_of(rte(tmp_path), "rte", given)
    batches = list(glue_train._batches(data.train, given, 0))
    first, second = np.concatenate(batches[:4]), np.concatenate(batches[4:])
    assert len(batches) == 8 and len(set(first)) == len(set(second)) == 20
    assert first.tolist() != second.tolist()
    again = list(glue_train._batches(data.train, given, 0))
    assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
    other = list(glue_train._batches(data.train, given, 1))
    assert not all(np.array_equal(a, b) for a, b in zip(batches, other, strict=True))
    few = list(glue_train._batches(data.train.take(np.arange(3)), given, 0))
    assert [len(batch) for batch in few] == [3, 3]


def test_subsets_and_held_out_rows_are_drawn_once(tmp_path: Path) -> None:
    rte(tmp_path, train=40, dev=20)
    whole = data_of(tmp_path, "rte", recipe())
    assert len(whole.train) == 40 and set(whole.rest) == {"dev"}
    part = data_of(tmp_path, "rte", recipe(lr=(1e-3, 1e-2), train_rows=30, dev_rows=10))
    assert (len(part.train), len(part.rest["held_out"]), len(part.rest["dev"])) == (27, 3, 10)
    assert not set(part.train.index) & set(part.rest["held_out"].index)
    again = data_of(tmp_path, "rte", recipe(lr=(1e-3, 1e-2), train_rows=30, dev_rows=10))
    assert np.array_equal(part.rest["dev"].index, again.rest["dev"].index)


def test_equal_seeds_are_equal_and_the_callers_stream_stays(tmp_path: Path) -> None:
    given = recipe()
    data = data_of(rte(tmp_path), "rte", given)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    one, same, other = tune(data, given), tune(data, given), tune(data, given, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    assert one.loss == same.loss != other.loss
    assert (one.steps, one.forwards) == (12, 36) and not one.diverged


def test_a_separable_task_is_learned(tmp_path: Path) -> None:
    given = recipe(epochs=10)
    data = data_of(rte(tmp_path), "rte", given)
    found = tune(data, given)
    assert found.predictions["dev"].tolist() == data.rest["dev"].labels.tolist()


def test_scores_are_predicted_in_the_units_of_the_labels(tmp_path: Path) -> None:
    given = recipe(epochs=20)
    data = data_of(stsb(tmp_path), "stsb", given)
    found, labels = tune(data, given).predictions["dev"], data.rest["dev"].labels
    assert np.abs(found - labels).mean() < 0.5 * np.abs(labels - labels.mean()).mean()


@pytest.mark.parametrize("method", ["kronzo", "mezo"])
def test_zeroth_order_lowers_the_loss(tmp_path: Path, method: str) -> None:
    given = recipe(method, epochs=30)
    found = tune(data_of(rte(tmp_path), "rte", given), given)
    assert found.loss is not None and found.loss < 0.8 * np.log(2) and found.forwards == 2 * found.steps


def test_what_is_no_number_is_called_diverged(tmp_path: Path) -> None:
    given = recipe("sgd", epochs=3)
    found = tune(data_of(stsb(tmp_path), "stsb", given), given, lr=1e30)
    assert found.diverged and np.isfinite(found.predictions["dev"]).all()


def test_training_rows_that_all_stand_in_dev_are_one_sentence(tmp_path: Path) -> None:
    head, row = "index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"
    for split in ("train", "dev"):
        tsv(tmp_path / "RTE" / f"{split}.tsv", head, row)
    with pytest.raises(InputError, match="all of its 1 rows stand in an evaluation split as well"):
        data_of(tmp_path, "rte", recipe())
