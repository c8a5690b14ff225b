from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from small_runs import STEPS, assert_same_run, small_config, weights_of

import kronzo
import spectra
from kronzo.errors import InputError
from kronzo.pretrain import checkpoint, loop, optimizers
from kronzo.pretrain.config import from_toml
from kronzo.pretrain.data import Corpus, open_corpus
from kronzo.pretrain.gpt2 import GPT2
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.loop import pretrain
from kronzo.pretrain.resolve import resolve, shape_of
from spectra.store import Store

# Every method, once with what makes resuming hard: dropout, accumulation, momentum, refreshes, windows, slices.
RECIPES = {
    "adamw": ["optimizer.method=adamw", "model.dropout=0.2", "budget.accumulate=2", "optimizer.warmup=0.3"],
    "sgd": ["optimizer.method=sgd", "optimizer.momentum=0.9"],
    "kronzo-directional": ["optimizer.method=kronzo", "optimizer.published=true", "optimizer.directions=2"],
    "kronzo-dropout": ["optimizer.method=kronzo", "optimizer.momentum=0.5", "model.dropout=0.2"],
    "kronzo-split": ["optimizer.method=kronzo", "optimizer.data=split", "optimizer.directions=4"],
    "lozo": ["optimizer.method=lozo", "optimizer.refresh_every=3"],
    "subzero": ["optimizer.method=subzero", "optimizer.refresh_every=4", "optimizer.rank=4"],
    "mezo": ["optimizer.method=mezo", "budget.accumulate=2"],
}
METHODS = [["optimizer.method=adamw"], ["optimizer.method=kronzo"]]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return open_corpus("synthetic")


def fresh_model(corpus: Corpus, *settings: str) -> GPT2:
    config = resolve(small_config(*settings), corpus)
    return GPT2(shape_of(config.model, 0), seed=config.seed)


# ---------------------------------------------------------------- the loop against loops written out


def test_adamw_equals_a_loop_written_out(tmp_path: Path, corpus: Corpus) -> None:
    settings = ["optimizer.lr=0.01", "optimizer.warmup=0.25", "optimizer.clip=0.5", "optimizer.weight_decay=0.2"]
    pretrain(small_config(*settings), tmp_path, progress=False)
    model = fresh_model(corpus)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.2}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)
    rates, losses = [], []
    for step in range(STEPS):
        cosine = 0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * (step - 3) / (STEPS - 1 - 3)))
        rates.append(0.01 * ((step + 1) / 3 if step < 3 else cosine))
        for group in optimizer.param_groups:
            group["lr"] = rates[-1]
        x, y = corpus.batch(seed=0, step=step, batch_size=4, context=16)
        optimizer.zero_grad()
        loss = model.loss(x, y)
        losses.append(loss.item())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    found = weights_of(tmp_path)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=1e-6, atol=1e-8)
    metrics = read_metrics(tmp_path)[1:]
    assert list(metrics["lr"]) == pytest.approx(rates, rel=1e-12)
    assert list(metrics["loss"]) == pytest.approx(losses, rel=1e-9)
    assert metrics["grad_norm"].max() > 0.5  # clipping had something to do


@pytest.mark.parametrize("name", ["kronzo", "mezo"])
def test_zeroth_order_equals_a_loop_written_out(tmp_path: Path, corpus: Corpus, name: str) -> None:
    settings = [f"optimizer.method={name}", "optimizer.schedule=constant", "optimizer.lr=0.002", "seed=5"]
    pretrain(small_config(*settings), tmp_path, progress=False)
    model = fresh_model(corpus, "seed=5")
    optimizer = kronzo.METHODS[name](model.named_parameters(), lr=0.002, seed=5)
    for step in range(STEPS):
        x, y = corpus.batch(seed=5, step=step, batch_size=4, context=16)
        optimizer.step(lambda x=x, y=y: model.loss(x, y))
    found = weights_of(tmp_path)
    assert all(torch.equal(found[key], parameter) for key, parameter in model.named_parameters())
    metrics = read_metrics(tmp_path)[1:]
    assert list(metrics["forwards"]) == [2 * step for step in range(1, STEPS + 1)]
    assert list(metrics["token_forwards"]) == [2 * 64 * step for step in range(1, STEPS + 1)]
    assert set(metrics["eps"]) == {1e-3} and metrics["coefficient_rms"].gt(0).all()


def test_split_data_gives_each_direction_its_own_slice(tmp_path: Path, corpus: Corpus) -> None:
    settings = ["optimizer.method=kronzo", "optimizer.data=split", "optimizer.directions=4", "seed=5"]
    pretrain(small_config(*settings, "optimizer.schedule=constant"), tmp_path, progress=False)
    model = fresh_model(corpus, "seed=5")
    optimizer = kronzo.KronZO(model.named_parameters(), directions=4, data="split", seed=5)
    for step in range(STEPS):
        x, y = corpus.batch(seed=5, step=step, batch_size=4, context=16)
        optimizer.step(lambda i, x=x, y=y: model.loss(x[i : i + 1], y[i : i + 1]))
    found = weights_of(tmp_path)
    assert all(torch.equal(found[key], parameter) for key, parameter in model.named_parameters())
    last = read_metrics(tmp_path).iloc[-1]
    assert (last["forwards"], last["token_forwards"], last["tokens"]) == (8 * STEPS, 2 * 64 * STEPS, 64 * STEPS)


@pytest.mark.parametrize("method", METHODS)
def test_accumulation_changes_memory_and_not_the_run(tmp_path: Path, method: list[str]) -> None:
    for parts in (1, 4):
        config = small_config(*method, f"budget.accumulate={parts}")
        pretrain(config, tmp_path / str(parts), progress=False)
    whole, parts_ = read_metrics(tmp_path / "1"), read_metrics(tmp_path / "4")
    assert list(parts_["loss"][1:]) == pytest.approx(list(whole["loss"][1:]), rel=1e-4)
    assert list(parts_["tokens"]) == list(whole["tokens"])


def test_every_method_sees_the_same_batches_and_the_same_start(tmp_path: Path) -> None:
    for i, method in enumerate(METHODS):
        pretrain(small_config(*method, "optimizer.lr=0"), tmp_path / str(i), progress=False)
    first, second = (read_metrics(tmp_path / str(i)) for i in range(2))
    assert list(first["loss"][1:]) == pytest.approx(list(second["loss"][1:]), abs=1e-3)
    assert first["val_loss"].iloc[0] == second["val_loss"].iloc[0]


def test_evaluation_is_the_mean_over_the_held_out_windows_at_equal_intervals(tmp_path: Path, corpus: Corpus) -> None:
    result = pretrain(small_config("evaluation.points=5", "model.dropout=0.5"), tmp_path, progress=False)
    model = fresh_model(corpus, "model.dropout=0.5").eval()
    checkpoint.load_weights(model, weights_of(tmp_path), "run")
    windows = list(corpus.validation(batch_size=3, context=16, max_tokens=512))
    total = sum(model.losses(x, y).sum().item() for x, y in windows)
    assert result.val_loss == pytest.approx(total / sum(len(x) for x, _ in windows), rel=1e-6)
    metrics = read_metrics(tmp_path)
    evaluated = metrics.dropna(subset="val_loss")
    assert list(evaluated["step"]) == [0, 3, 6, 9, 12]
    assert result.best_val_loss == evaluated["val_loss"].min()


# ---------------------------------------------------------------- stopping and going on


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, recipe: str) -> None:
    config = small_config(*RECIPES[recipe])
    pretrain(config, tmp_path / "whole", progress=False)
    for last in (5, 7):
        partial = pretrain(config, tmp_path / "parts", progress=False, stop=lambda step, last=last: step == last)
        assert (partial.steps, partial.finished) == (last, False)
    result = pretrain(config, tmp_path / "parts", progress=False)
    assert (result.steps, result.finished) == (STEPS, True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


SCRIPT = """
import os, sys, threading, time
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from small_runs import small_config
from kronzo.pretrain.loop import pretrain
out, when, settings = Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]
def kill():
    while not (out / "config.toml").exists():
        time.sleep(0.002)
    time.sleep(when)
    os.kill(os.getpid(), 9)
if when >= 0:
    threading.Thread(target=kill, daemon=True).start()
pretrain(small_config(*settings), out, progress=False)
"""


def run_and_kill(out: Path, after_seconds: float, *settings: str) -> int:
    command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(out), str(after_seconds), *settings]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}  # sums depend on it, so all parts of a run have as many
    return subprocess.run(command, check=False, env=os.environ | threads).returncode


def test_a_killed_run_ends_with_the_same_weights_and_log(tmp_path: Path) -> None:
    settings = ["optimizer.method=kronzo", "checkpoint.points=6", "budget.steps=300", "evaluation.points=61"]
    assert run_and_kill(tmp_path / "run", 0.4, *settings) == -signal.SIGKILL
    pretrain(small_config(*settings), tmp_path / "run", progress=False)
    pretrain(small_config(*settings), tmp_path / "whole", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "run", 300)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["adamw", "kronzo"])
def test_killed_at_twenty_random_moments(tmp_path: Path, method: str) -> None:
    settings = [f"optimizer.method={method}", "checkpoint.points=300", "budget.steps=600", "evaluation.points=61"]
    if method == "adamw":
        settings += ["spectra.enabled=true", "spectra.every=50"]
    moments = random.Random(0)
    killed = sum(run_and_kill(tmp_path / "run", moments.uniform(0, 0.6), *settings) != 0 for _ in range(20))
    assert killed >= 5
    pretrain(small_config(*settings), tmp_path / "run", progress=False)
    pretrain(small_config(*settings), tmp_path / "whole", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "run", 600)
    if method == "adamw":
        assert_same_spectra(tmp_path / "whole", tmp_path / "run")


def assert_same_spectra(left: Path, right: Path) -> None:
    runs = [spectra.open(path / "spectra") for path in (left, right)]
    rows = [list(zip(run.frame["step"], run.frame["layer"])) for run in runs]
    assert rows[0] == rows[1] and rows[0]
    for step, layer in rows[0]:
        assert np.array_equal(runs[0].values(step, layer), runs[1].values(step, layer))


@pytest.mark.filterwarnings("ignore:spectra takes")
def test_spectra_are_captured_at_the_stages_and_survive_a_stop(tmp_path: Path) -> None:
    settings = ["spectra.enabled=true", "spectra.every=5", "spectra.layers=*attn*"]
    config = small_config(*settings)
    pretrain(config, tmp_path / "whole", progress=False)
    pretrain(config, tmp_path / "parts", progress=False, stop=lambda step: step == 7)
    pretrain(config, tmp_path / "parts", progress=False)
    assert_same_spectra(tmp_path / "whole", tmp_path / "parts")
    frame = spectra.open(tmp_path / "whole" / "spectra").frame
    assert sorted(set(frame["step"])) == [0, 3, 5, 6, 9, 10, 11]
    assert all("attn" in layer for layer in frame["layer"])
    assert set(frame["tokens"]) == {4 * 16}, "tokens in the gradient of one step"
    pretrain(small_config(), tmp_path / "without", progress=False)
    assert all(
        torch.equal(a, b)
        for a, b in zip(weights_of(tmp_path / "whole").values(), weights_of(tmp_path / "without").values())
    )


def test_ctrl_c_finishes_the_step_saves_and_goes_on(tmp_path: Path) -> None:
    config = small_config("optimizer.method=kronzo")

    def interrupt(step: int) -> bool:
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return False

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config, tmp_path / "run", progress=False, stop=interrupt)
    assert signal.getsignal(signal.SIGINT) is handler
    assert (tmp_path / "run" / "checkpoints" / "4").is_dir()
    pretrain(config, tmp_path / "run", progress=False)
    pretrain(config, tmp_path / "whole", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_finished_run_is_recognised_and_returns_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pretrain(small_config(), tmp_path, progress=False)
    monkeypatch.setattr(loop, "_Trainer", None)
    assert pretrain(small_config(), tmp_path, progress=False) == first


def test_the_resolved_config_repeats_the_run(tmp_path: Path) -> None:
    pretrain(small_config("optimizer.method=lozo", "seed=3"), tmp_path / "first", progress=False)
    again = from_toml(tmp_path / "first" / "config.toml")
    pretrain(again, tmp_path / "second", progress=False)
    assert_same_run(tmp_path / "first", tmp_path / "second")
    assert (tmp_path / "first" / "config.toml").read_text() == (tmp_path / "second" / "config.toml").read_text()


def test_fresh_starts_over(tmp_path: Path) -> None:
    pretrain(small_config("seed=1"), tmp_path, progress=False)
    result = pretrain(small_config("seed=2"), tmp_path, progress=False, fresh=True)
    assert from_toml(tmp_path).seed == 2 and result.finished


def test_threads_other_than_the_main_one_can_train(tmp_path: Path) -> None:
    results = []
    worker = threading.Thread(target=lambda: results.append(pretrain(small_config(), tmp_path, progress=False)))
    worker.start()
    worker.join()
    assert results[0].finished


# ---------------------------------------------------------------- folders, damage, refusals


def test_the_folder_says_what_the_numbers_depend_on(tmp_path: Path, corpus: Corpus) -> None:
    pretrain(small_config("seed=4"), tmp_path, progress=False)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["corpus"] == json.loads(json.dumps(corpus.manifest)) and manifest["seed"] == 4
    assert manifest["versions"]["torch"] == torch.__version__ and manifest["steps"] == STEPS
    assert manifest["machine"]["threads"] == torch.get_num_threads()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".lock", "checkpoints", "config.toml", "manifest.json", "metrics.jsonl", "result.json", "tokenizer",
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_a_damaged_result_is_made_anew(tmp_path: Path, content: str) -> None:
    config = small_config()
    result = pretrain(config, tmp_path, progress=False)
    (tmp_path / "result.json").write_text(content)
    assert pretrain(config, tmp_path, progress=False) == result
    assert json.loads((tmp_path / "result.json").read_text())["val_loss"] == result.val_loss


def test_a_damaged_newest_checkpoint_costs_steps_and_not_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = small_config("optimizer.method=kronzo")
    for last in (4, 9):
        pretrain(config, tmp_path / "run", progress=False, stop=lambda step, last=last: step == last)
    path = tmp_path / "run" / "checkpoints" / "9" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    pretrain(config, tmp_path / "run", progress=False)
    said = capsys.readouterr().err.replace("\n", "")
    assert "damaged" in said and "The one before is taken." in said
    pretrain(config, tmp_path / "whole", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_full_disk_is_one_sentence_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config("optimizer.method=kronzo", "checkpoint.points=3")
    save, calls = torch.save, []

    def full_at_the_second(*args: object, **keywords: object) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(*args, **keywords)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", full_at_the_second)
        with pytest.raises(InputError, match="No space left on device; make room and run the same command"):
            pretrain(config, tmp_path / "run", progress=False)
    pretrain(config, tmp_path / "run", progress=False)
    pretrain(config, tmp_path / "whole", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_one_process_a_folder(tmp_path: Path) -> None:
    def train_again(step: int) -> bool:
        with pytest.raises(InputError, match="another process is writing it"):
            pretrain(small_config(), tmp_path, progress=False)
        return step == 3

    assert pretrain(small_config(), tmp_path, progress=False, stop=train_again).steps == 3
    assert pretrain(small_config(), tmp_path, progress=False).finished


def test_foreign_other_and_unwritable_folders_are_refused_and_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"holds 'thesis.tex' and is no run"):
        pretrain(small_config(), foreign, progress=False)
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    with pytest.raises(InputError, match="cannot be written"):
        pretrain(small_config(), foreign / "thesis.tex" / "run", progress=False)
    pretrain(small_config(), tmp_path / "run", progress=False, stop=lambda step: step == 3)
    with pytest.raises(InputError, match=r"holds another run \(optimizer.lr is 0.001 there and 0.5 here\)"):
        pretrain(small_config("optimizer.lr=0.5"), tmp_path / "run", progress=False)


def test_a_refused_config_leaves_the_folder_free_for_the_corrected_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="less than one step"):
        pretrain(small_config("budget.tokens=10"), tmp_path, progress=False)
    assert pretrain(small_config(), tmp_path, progress=False).finished


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["model.vocab_size=10"], "model.vocab_size = 10 is below the 64"),
        (["optimizer.method=kronzo", "spectra.enabled=true"], "kronzo has no gradients"),
        (["model.context=2000000"], "tokens"),
        (["init=nowhere"], "nowhere: no weights can be read"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, settings: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        pretrain(small_config(*settings), tmp_path, progress=False)


def test_init_starts_from_the_weights_of_a_run_of_the_same_shape(tmp_path: Path) -> None:
    first = pretrain(small_config(), tmp_path / "first", progress=False)
    second = pretrain(small_config("seed=9", f"init={tmp_path / 'first'}"), tmp_path / "second", progress=False)
    assert read_metrics(second.folder)["val_loss"].iloc[0] == first.val_loss
    with pytest.raises(InputError, match=r"is of another model: .* give \[model\] the values"):
        pretrain(small_config("model.width=32", f"init={tmp_path / 'first'}"), tmp_path / "third", progress=False)


def test_a_diverged_run_ends_and_says_so(tmp_path: Path) -> None:
    config = small_config("optimizer.method=sgd", "optimizer.lr=1e30", "optimizer.clip=0")
    result = pretrain(config, tmp_path, progress=False)
    assert result.diverged and result.finished and result.steps < STEPS and np.isnan(result.val_loss)
    again = pretrain(config, tmp_path, progress=False)
    assert again.diverged and np.isnan(again.val_loss)
    assert all(json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())


def test_the_callers_random_streams_stay(tmp_path: Path) -> None:
    torch.manual_seed(11)
    before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
    pretrain(small_config("model.dropout=0.3"), tmp_path, progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    assert np.array_equal(np.random.get_state()[1], numpy_before)


def test_the_learning_rate_of_the_schedule_reaches_zeroth_order_too(tmp_path: Path) -> None:
    config = small_config("optimizer.method=kronzo", "optimizer.warmup=0.5", "optimizer.lr=0.01")
    pretrain(config, tmp_path, progress=False)
    factor = optimizers.lr_factor(config.optimizer, STEPS)
    assert list(read_metrics(tmp_path)["lr"][1:]) == pytest.approx([0.01 * factor(s) for s in range(STEPS)])


@pytest.mark.filterwarnings("ignore:spectra")
def test_a_disk_that_fills_inside_a_capture_costs_no_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ["spectra.enabled=true", "spectra.every=2", "checkpoint.points=6"]
    pretrain(small_config(*settings), tmp_path / "whole", progress=False)
    append = Store.append

    def full(store: Store, step: int, *rest: object) -> object:
        if step == 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return append(store, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", full)
        with pytest.raises(InputError, match="make room and run the same command"):
            pretrain(small_config(*settings), tmp_path / "run", progress=False)
    pretrain(small_config(*settings), tmp_path / "run", progress=False)
    assert_same_run(tmp_path / "whole", tmp_path / "run")
    assert_same_spectra(tmp_path / "whole", tmp_path / "run")


def test_a_run_that_collapses_has_diverged_and_is_not_repeated(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = small_config("optimizer.method=kronzo", "optimizer.rule=directional", "optimizer.eps=10.0")
    result = pretrain(config, tmp_path / "run", progress=False)
    assert result.diverged and result.finished and np.isnan(result.val_loss) and result.steps < STEPS
    assert "collapse in step 0" in capsys.readouterr().err
    again = pretrain(config, tmp_path / "run", progress=False)
    assert again.diverged and capsys.readouterr().err == ""
