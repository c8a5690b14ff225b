from __future__ import annotations

import fcntl
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console
from small_runs import BASE, run_command, small_config

from kronzo.errors import InputError
from kronzo.pretrain import launch, loop, runs
from kronzo.pretrain.config import from_dict, from_toml, to_toml
from kronzo.pretrain.gpt2 import GPT2Config
from kronzo.pretrain.log import MetricsWriter, read_metrics
from kronzo.pretrain.loop import pretrain
from kronzo.pretrain.plan import read_plan
from kronzo.pretrain.progress import Reporter, Stages
from kronzo.pretrain.tokenizer import ByteTokenizer


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(to_toml(from_dict(BASE)))
    return path


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Run `kronzo ARGUMENTS` in this process; return its exit code and what it printed."""
    code, out, err = run_command(monkeypatch, capsys, *arguments)
    return code, out + err


def test_pretrain_runs_goes_on_and_repeats(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ("pretrain", config_file, "--method", "kronzo", "--set", "optimizer.lr=0.002", "--quiet")
    code, first = command(monkeypatch, capsys, *line)
    assert code == 0 and "12 steps, 768 tokens, 1536 token_forwards, validation loss" in first
    assert command(monkeypatch, capsys, *line) == (0, first)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("kronzo-")
    assert command(monkeypatch, capsys, "pretrain", run.relative_to(tmp_path)) == (0, first)
    code, repeated = command(monkeypatch, capsys, "pretrain", run / "config.toml", "--out", tmp_path / "again")
    assert code == 0 and first.split("validation loss")[1].split(",")[0] in repeated


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "optimizer.lrr=1"], "did you mean optimizer.lr?"),
        (["--method", "kronz"], "did you mean 'kronzo'"),
        (["--model", "nanno"], "did you mean 'nano'"),
        (["--data", "absent.txt"], "absent.txt"),
        (["--init", "absent"], "absent: no weights can be read"),
        (["--out", "small.toml/run"], "cannot be written"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_two(
    tmp_path: Path,
    config_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, said = command(monkeypatch, capsys, "pretrain", config_file, "--quiet", *arguments)
    assert code == 2 and words in said and said.startswith("kronzo: ") and "Traceback" not in said


@pytest.mark.parametrize(
    "setting", ["optimizer.method=kronz", "model.name=nanno", "model.heads=7", "spectra.enabled=true"]
)
def test_what_no_corpus_is_needed_for_is_refused_before_one_is_built(
    tmp_path: Path, config_file: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("the corpus was opened")

    monkeypatch.setattr(loop, "corpus_of", build)
    with pytest.raises(InputError):
        config = launch.compose(config_file, method="kronzo", settings=[setting])
        launch.run(config, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_ctrl_c_ends_with_a_sentence(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "run", interrupted)
    code, said = command(monkeypatch, capsys, "pretrain", config_file, "--quiet")
    assert (code, said) == (130, "kronzo: stopped; the same command goes on where it stood.\n")


def test_a_warning_is_a_line_without_a_place_in_a_library(
    config_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(*_: object, **__: object) -> str:
        return warnings.formatwarning("mind the gap", UserWarning, "torch/optim.py", 3)

    monkeypatch.setattr(launch, "run", warn)
    before = warnings.formatwarning
    _, said = command(monkeypatch, capsys, "pretrain", config_file, "--quiet")
    assert said == "kronzo: warning: mind the gap\n\n" and warnings.formatwarning is before


def test_options_beat_the_file_and_settings_beat_options(config_file: Path) -> None:
    config = launch.compose(
        config_file, model="micro", method="lozo", data="pytopics", tokenizer="gpt2", settings=["data.source=synthetic"]
    )
    assert (config.model.name, config.model.width) == ("micro", 16)
    assert (config.optimizer.method, config.data.tokenizer, config.data.source) == ("lozo", "gpt2", "synthetic")
    assert launch.default_out(config, None) == launch.default_out(config, config_file)
    assert launch.default_out(config, None) != launch.default_out(small_config(), None)


def test_init_brings_the_model_and_the_tokenizer_of_its_run(tmp_path: Path) -> None:
    pretrain(small_config(), tmp_path / "first", progress=False)
    for init in (tmp_path / "first", tmp_path / "first" / "checkpoints" / "12"):
        config = launch.compose(init=str(init), data="synthetic")
        assert (config.model.width, config.model.vocab_size, config.init) == (16, 64, str(init))
    assert launch.compose(init="elsewhere.safetensors").model.name == "nano"


def test_paths_in_a_config_mean_the_same_from_every_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("\n\n".join(f"Document {i} about the number {i * i}." for i in range(200)))
    pretrain(small_config("data.source=./text.txt", "budget.steps=2"), "runs/one", progress=False)
    pretrain(small_config("data.source=text.txt", "budget.steps=2", "init=runs/one"), "two", progress=False)
    stored = from_toml(Path("two"))
    assert (stored.data.source, stored.init) == (str(tmp_path / "text.txt"), str(tmp_path / "runs" / "one"))
    assert stored.data.tokenizer == "bytes"


def test_sample_is_seeded_starts_with_the_prompt_and_stays_in_the_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretrain(small_config(), tmp_path / "run", progress=False)
    code, said = command(monkeypatch, capsys, "sample", tmp_path / "run", "1 2 3", "--tokens", "30", "--seed", "1")
    assert code == 0 and said.startswith("1 2 3")
    texts = [runs.sample(tmp_path / "run", "1 2 3", tokens=30, seed=seed) for seed in range(8)]
    assert texts[1] == said.strip() and len(set(texts)) > 4
    ids = [[int(word) for word in text.split()] for text in texts]
    assert all(row[:3] == [1, 2, 3] and len(row) <= 33 and max(row) < 64 for row in ids) and max(map(len, ids)) > 3
    model, tokenizer = runs.open_model(tmp_path / "run")
    with torch.no_grad():
        logits = model(torch.tensor([[tokenizer.end_of_text, 1, 2, 3]]))[0, -1]
    greedy = runs.sample(tmp_path / "run", "1 2 3", tokens=1, temperature=0)
    assert greedy == tokenizer.decode([1, 2, 3, int(logits.argmax())])


def test_sample_divides_the_logits_by_the_temperature_and_never_draws_padding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = torch.full((320,), -9.0)
    logits[[65, 66, 67]] = torch.tensor([2.0, 1.0, 0.0])
    logits[257:] = 30.0
    model = torch.nn.Module()
    model.config = GPT2Config(context=8)
    model.forward = lambda x: logits.expand(*x.shape, -1)
    monkeypatch.setattr(runs, "open_model", lambda run: (model, ByteTokenizer()))
    assert runs.sample(tmp_path, "x", tokens=5, temperature=0) == "xAAAAA"
    for temperature in (0.5, 1.0, 2.0):
        text = runs.sample(tmp_path, tokens=2000, temperature=temperature)
        assert text.count("A") / text.count("B") == pytest.approx(math.exp(1 / temperature), rel=0.15)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x", "--tokens", "0"], "tokens >= 1"),
        (["x", "--temperature", "-1"], "-1.0"),
        (["Once \udcc3", "--tokens", "1"], "character 5 of the prompt is not UTF-8"),
    ],
)
def test_sample_refuses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    code, said = command(monkeypatch, capsys, "sample", tmp_path, *arguments)
    assert code == 2 and words in said
    code, said = command(monkeypatch, capsys, "sample", tmp_path, "x")
    assert code == 2 and "no config.toml there" in said


def test_runs_lists_state_budget_and_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = pretrain(small_config(), tmp_path / "a", progress=False)
    pretrain(small_config("optimizer.method=sgd"), tmp_path / "deep" / "b", progress=False, stop=lambda step: step == 5)
    code, said = command(monkeypatch, capsys, "runs", tmp_path, "--json")
    rows = json.loads(said)
    assert code == 0 and [row["run"] for row in rows] == ["a", "deep/b"]
    assert [(row["steps"], row["of"], row["state"]) for row in rows] == [(12, 12, "finished"), (5, 12, "stopped")]
    assert rows[0]["val_loss"] == pytest.approx(finished.val_loss) and rows[1]["method"] == "sgd"
    with (tmp_path / "deep" / "b" / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert list(runs.list_runs(tmp_path)["state"]) == ["finished", "running"]
    code, said = command(monkeypatch, capsys, "runs", tmp_path)
    assert code == 0 and max(map(len, said.splitlines())) <= 80
    assert [line.split()[0] for line in said.splitlines()] == ["run", "a", "deep/b"]
    long = runs.list_runs(tmp_path).replace({"run": {"deep/b": f"deep/{'b' * 60}"}})
    header, first, name, second = runs.as_text(long).splitlines()
    assert name == f"deep/{'b' * 60}" and len(header) == len(first) == len(second) <= 80
    (tmp_path / "deep" / "b" / "config.toml").write_text("garbage[")
    assert list(runs.list_runs(tmp_path)["state"]) == ["finished", "damaged"]
    with pytest.raises(InputError, match="no such folder"):
        runs.list_runs(tmp_path / "absent")
    assert "no runs here" in runs.as_text(runs.list_runs(tmp_path / "a" / "checkpoints"))


def test_metrics_are_cut_to_the_checkpoint_and_half_a_line_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsWriter(path) as metrics:
        metrics.write({"step": 1, "loss": torch.tensor(2.5), "accepted": True})
        size = metrics.sync()
        metrics.write({"step": 2, "loss": float("nan"), "accepted": False})
    assert size < path.stat().st_size
    assert path.read_text().splitlines()[1] == '{"step": 2, "loss": null, "accepted": false}'
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    table = read_metrics(tmp_path)
    assert list(table["step"]) == [1, 2] and table["loss"].isna().tolist() == [False, True]
    with MetricsWriter(path, size) as metrics:
        metrics.write({"step": 2, "loss": 1.0})
    assert list(read_metrics(path)["step"]) == [1, 2] and read_metrics(path)["loss"].tolist() == [2.5, 1.0]


def test_progress_is_a_bar_on_a_terminal_and_lines_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 3))
    monkeypatch.setattr("kronzo.pretrain.progress.time.monotonic", lambda: float(next(seconds)))
    plain = Console(file=None, record=True, force_terminal=False, width=80, quiet=False)
    with plain.capture() as lines, Reporter("adamw run", 10, console=plain) as report:
        for step in range(1, 11):
            report.update(step, "val 3.210")
    shown = lines.get().splitlines()
    assert shown == [
        "adamw run: 4/10, val 3.210, 18 s left",
        "adamw run: 8/10, val 3.210, 6 s left",
        "adamw run: 10/10, val 3.210, done",
    ]
    terminal = Console(force_terminal=True, width=80)
    with terminal.capture() as bar, Reporter("adamw run", 10, console=terminal) as report:
        report.update(5, "val 3.210")
    assert "5/10" in bar.get() and "val 3.210" in bar.get()
    with plain.capture() as nothing, Reporter("quiet", 10, show=False, console=plain) as report:
        report.update(10)
    assert nothing.get() == ""


def test_stages_show_one_bar_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 3))
    monkeypatch.setattr("kronzo.pretrain.progress.time.monotonic", lambda: float(next(seconds)))
    console = Console(force_terminal=False, width=80)
    with console.capture() as lines, Stages(console=console) as stages:
        for label, total in (("reading", 2), ("encoding", 3)):
            for done in range(total + 1):
                stages.update(label, done, total)
    assert lines.get().splitlines() == ["reading: 2/2, done", "encoding: 3/3, done"]


def test_a_row_of_a_preset_is_the_run_that_reproduce_makes_of_it() -> None:
    plan = read_plan("paper")
    method = plan.methods["kronzo-directional"]
    found = launch.compose(Path("paper:kronzo-directional"))
    assert found == plan.run_of("kronzo-directional", method.lr[0]) and found.optimizer.directions == 33
    assert launch.compose(Path("paper:fo")) == plan.fo
    smoke = read_plan("smoke")
    borrowed = next(name for name, row in smoke.methods.items() if row.lr_of)
    rate = smoke.methods[smoke.methods[borrowed].lr_of].lr[0]
    assert launch.compose(Path(f"smoke:{borrowed}")) == smoke.run_of(borrowed, rate)
    large = launch.compose(Path("paper:kronzo-average"), model="gpt2-xl", data="owt", settings=["budget.steps=3"])
    assert (large.model.name, large.data.source, large.budget.steps) == ("gpt2-xl", "owt", 3)
    assert large.optimizer.directions == 50 and large.budget.token_forwards is None


@pytest.mark.parametrize(
    ("given", "words"),
    [("papr:fo", "did you mean 'paper'"), ("paper:kronz-average", "did you mean paper:kronzo-average")],
)
def test_an_unknown_preset_or_row_names_the_nearest(given: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        launch.compose(Path(given))
