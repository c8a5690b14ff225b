"""Spectra of checkpoints equal those of autograd at their weights; what is no model is refused."""

import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from small_runs import small_config

import spectra
from kronzo.errors import InputError
from kronzo.pretrain import runs
from kronzo.pretrain.config import from_toml
from kronzo.pretrain.loop import pretrain
from kronzo.pretrain.resolve import corpus_of
from kronzo.pretrain.snapshots import growth, snapshots


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "adamw"
    pretrain(small_config(), folder, progress=False)
    return folder


def test_a_run_a_checkpoint_and_all_checkpoints(run, tmp_path):
    newest = snapshots(run, batches=2, batch_size=2)
    assert newest.steps == [12]
    several = tmp_path / "several"
    shutil.copytree(run, several)
    shutil.copytree(several / "checkpoints" / "12", several / "checkpoints" / "6")
    every = snapshots(several / "checkpoints", batches=2, batch_size=2, out=tmp_path / "store")
    assert every.steps == [6, 12]
    one = snapshots(run / "checkpoints" / "12", batches=2, batch_size=2)
    np.testing.assert_array_equal(one.values(12, "wpe.weight"), newest.values(12, "wpe.weight"))
    np.testing.assert_array_equal(
        spectra.open(tmp_path / "store").values(12, "wpe.weight"), one.values(12, "wpe.weight")
    )
    assert newest.frame["weyl_rank"].notna().all() and set(newest.frame["tokens"]) == {2 * 2 * 16}


def test_the_values_are_those_of_autograd_at_the_checkpoint(run):
    found = snapshots(run, batches=2, batch_size=2, seed=5)
    corpus = corpus_of(from_toml(run).data)
    model, _ = runs.open_model(run)
    losses = [model.loss(*corpus.batch(seed=5, step=i, batch_size=2, context=16)) for i in range(2)]
    gradient = torch.autograd.grad(sum(losses) / 2, model.wpe.weight)[0]
    expected = np.linalg.svd(gradient.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(found.values(12, "wpe.weight"), expected, rtol=1e-4, atol=1e-6 * expected[0])


def test_growth_writes_ranks_of_the_gradient_and_of_its_controls(run, tmp_path):
    written = growth(run, tmp_path / "growth", batches=8, batch_size=2)
    assert sorted(path.name for path in written) == [
        "growth-edge_rank.pdf", "growth-edge_rank.png", "growth-weyl_rank.pdf", "growth-weyl_rank.png", "growth.csv",
    ]  # fmt: skip
    frame = pd.read_csv(tmp_path / "growth" / "growth.csv")
    assert sorted(frame["tokens"].unique()) == [4 * 2 * 16, 8 * 2 * 16]
    model, _ = runs.open_model(run)
    matrices = {name for name, p in model.named_parameters() if p.ndim > 1}
    assert set(frame["layer"]) == matrices and set(frame["planted"].dropna()) >= {1, 4}
    with pytest.raises(InputError, match="four quarters"):
        growth(run, tmp_path / "growth", batches=3)


def test_what_is_no_model_or_gives_no_halves_is_refused(run, tmp_path):
    with pytest.raises(InputError, match="even number"):
        snapshots(run, batches=3)
    with pytest.raises(InputError, match="neither a run"):
        snapshots(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match="names no corpus"):
        snapshots(tmp_path)


@pytest.mark.extra
def test_a_hugging_face_folder(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=320, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    found = snapshots(tmp_path / "model", data="pytopics", tokenizer="bytes", batches=2, batch_size=2)
    assert found.steps == [0] and found.frame["orientation"].eq("transposed").sum() >= 4
    small = transformers.GPT2Config(vocab_size=100, n_positions=16, n_embd=16, n_layer=1, n_head=2)
    transformers.GPT2LMHeadModel(small).save_pretrained(tmp_path / "small")
    with pytest.raises(InputError, match="knows 100 ids"):
        snapshots(tmp_path / "small", data="pytopics", tokenizer="bytes", batches=2, batch_size=2)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    with pytest.raises(InputError, match="transformers cannot open it"):
        snapshots(tmp_path / "broken", data="pytopics", tokenizer="bytes", batches=2, batch_size=2)
