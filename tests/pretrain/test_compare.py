from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from small_runs import run_command

import kronzo
from kronzo.errors import InputError
from kronzo.pretrain import comparison
from kronzo.pretrain.compare import compare
from kronzo.pretrain.comparison import as_text, interval, learned, read_comparison, summary
from kronzo.pretrain.grid import read_grid, rows_of_shard, shard_of
from kronzo.pretrain.tables import dumps

VOLATILE = ["seconds", "peak_bytes"]
BASE: dict[str, Any] = {
    "seeds": [0, 1],
    "comparison": {
        "model": {"name": "nano", "context": 8, "layers": 1, "heads": 1, "width": 8},
        "data": {"source": "synthetic", "tokenizer": "none"},
        "budget": {"batch_size": 2, "token_forwards": 500},
        "evaluation": {"points": 5, "tokens": 64},
    },
    "tuning": {"fractions": [0.25, 0.5], "keep": 0.5},
    "methods": {
        "kronzo": {
            "optimizer": {"method": "kronzo", "rule": ["average", "directional"], "directions": 2},
            "lr": [1e-3],
            "eps": [1e-3, 1e-2],
        },
        "adamw": {"optimizer": {"method": "adamw"}, "lr": [1e-3, 1e-2]},
        "adamw-tokens": {
            "optimizer": {"method": "adamw"},
            "lr_of": "adamw",
            "budget": "tokens",
            "tokens_of": "kronzo,rule=average",
        },
    },
}
ROWS = ["kronzo,rule=average", "kronzo,rule=directional", "adamw", "adamw-tokens"]


def grid_with(**methods: Any) -> dict[str, Any]:
    return BASE | {"methods": methods}


def row(method: str = "mezo", *, lr: tuple[float, ...] = (1e-3,), **rest: Any) -> dict[str, Any]:
    keys = ("eps", "lr_of", "budget", "tokens_of")
    table = {"lr": list(lr)} if lr else {}
    optimizer = {"method": method} | {key: value for key, value in rest.items() if key not in keys}
    return table | {key: rest[key] for key in keys if key in rest} | {"optimizer": optimizer}


def run_all(folder: Path, **keywords: Any) -> pd.DataFrame:
    return compare(BASE, folder, workers=1, progress=False, command="test", **keywords)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare") / "out"
    run_all(folder)
    return folder


@pytest.fixture(scope="module")
def frame(out: Path) -> pd.DataFrame:
    return read_comparison(out)


def assert_same(left: pd.DataFrame, right: pd.DataFrame) -> None:
    pd.testing.assert_frame_equal(left.drop(columns=VOLATILE), right.drop(columns=VOLATILE))
    for key in ("grid", "reference", "configs", "corpus"):
        assert left.attrs[key] == right.attrs[key]
    trials = [
        [{k: v for k, v in trial.items() if k != "seconds"} for trial in f.attrs["trials"]] for f in (left, right)
    ]
    assert trials[0] == trials[1]


# ---------------------------------------------------------------------- the grid


def test_lists_are_axes_unless_the_key_takes_a_list() -> None:
    grid = read_grid(
        grid_with(
            k=row("kronzo", directions=[1, 2], rule=["average", "directional"], factors=["max", 32]),
            f=row("kronzo", factors=["square", ["max", 32]]),
            w=row("adamw", betas=[0.9, 0.99]),
            s=row("mezo", scale=[{"wte.weight": 1.0}, {"wte.weight": 2.0}]),
        )
    )
    assert grid.rows == [
        "k,directions=1,rule=average",
        "k,directions=1,rule=directional",
        "k,directions=2,rule=average",
        "k,directions=2,rule=directional",
        "f,factors=square",
        "f,factors=max-32",
        "w",
        "s,scale=wte.weight=1.0",
        "s,scale=wte.weight=2.0",
    ]
    optimizer = grid.plan.methods["k,directions=2,rule=average"].optimizer
    assert (optimizer.directions, optimizer.rule, optimizer.factors) == (2, "average", ("max", 32))
    assert grid.settings["f,factors=max-32"] == {"factors": ["max", 32]}
    assert grid.method_of["f,factors=square"] == "f"


def test_a_row_tries_every_lr_with_every_eps() -> None:
    grid = read_grid(grid_with(a=row(lr=(1e-3, 1e-2), eps=[1e-4, 1e-3]), b=row(lr=(1.0, 2.0, 3.0, 4.0))))
    assert grid.num_trials("a") == grid.num_trials("b") == 4
    choice = grid.plan.methods["a"].choices[2]
    run = grid.run_of("a", choice, 7)
    assert (run.seed, run.optimizer.lr, run.optimizer.eps) == (7, 1e-2, 1e-4)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"sedes": [1]}, "sedes: unknown key, did you mean seeds"),
        ({"seeds": []}, "different whole numbers"),
        ({"seeds": [1, 1]}, "different whole numbers"),
        ({"seeds": [1000]}, "tuning_seed = 1000 is one of seeds"),
        ({"methods": {}}, "the grid has none"),
        ({"methods": {"a": {"lr": [1.0]}}}, "methods.a.optimizer: a table is needed"),
        ({"methods": {"a": row("mozo")}}, "did you mean 'mezo'"),
        ({"methods": {"a": row(directoins=[1, 2])}}, "did you mean methods.a,directoins=1.optimizer.directions"),
        ({"methods": {"a": row(directions=[])}}, "at least one value"),
        ({"methods": {"a": row(directions=[1, 1])}}, "a,directions=1 is given twice"),
        ({"methods": {"a": row(), "b": row(lr=(1.0, 2.0))}}, "every row gets the same number"),
        ({"methods": {"a": row(eps=[])}}, "positive numbers to try"),
        ({"methods": {"a": row("adamw", eps=[1e-3])}}, "adamw takes no eps"),
        ({"methods": {"a/b": row()}}, "the name is also a folder's"),
        (
            {"methods": {"a": row() | {"optimizer": {"method": "mezo", "lr": 1.0}}}},
            "give the list to try as methods.a.lr",
        ),
        ({"methods": {"a": row(), "b": row(lr=(), lr_of="a"), "c": row(lr=(), lr_of="b")}}, "a list lr of its own"),
    ],
)
def test_a_bad_grid_is_refused_by_name(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        read_grid(BASE | change)
    assert sentence in str(caught.value)


@settings(max_examples=20)
@given(st.integers(1, 9), st.integers(1, 6), st.sets(st.integers(0, 8)))
def test_shards_are_disjoint_complete_and_keep_followers_with_their_leader(rows: int, n: int, led: set[int]) -> None:
    methods = {f"m{i}": row() for i in range(rows)}
    followers = {f"f{i}": row(lr=(), lr_of=f"m{i}") for i in led if i < rows}
    grid = read_grid(grid_with(**methods, **followers))
    shards = [rows_of_shard(grid, (i, n)) for i in range(1, n + 1)]
    assert sorted(itertools.chain(*shards)) == sorted(grid.rows)
    assert shards == [rows_of_shard(read_grid(grid_with(**methods, **followers)), (i, n)) for i in range(1, n + 1)]
    for shard in shards:
        assert all(name.replace("f", "m") in shard for name in shard if name.startswith("f"))
    sizes = [sum(name.startswith("m") for name in shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


def test_a_shard_is_i_of_n() -> None:
    assert shard_of("2/4") == (2, 4)
    for text in ("0/4", "5/4", "1", "a/b", "1/0", "-1/2"):
        with pytest.raises(InputError, match="i/n with 1 <= i <= n"):
            shard_of(text)


# ---------------------------------------------------------------------- runs


def test_every_row_has_every_seed_and_equal_budget(frame: pd.DataFrame) -> None:
    last = frame.groupby(["row", "seed"], sort=False).last()
    assert list(dict.fromkeys(frame["row"])) == ROWS and len(last) == 2 * len(ROWS)
    assert (last["state"] == "finished").all()
    batch, budget = frame.attrs["batch_tokens"], 500
    for name, passes in (("kronzo,rule=average", 4), ("kronzo,rule=directional", 7), ("adamw", 3)):
        spent = last.loc[name, "token_forwards"]
        assert (budget - passes * batch < spent).all() and (spent <= budget).all(), name
    tokens = last["tokens"].unstack()
    assert (tokens.loc["adamw-tokens"] == tokens.loc["kronzo,rule=average"]).all()


def test_methods_share_weights_and_batches_and_seeds_do_not(frame: pd.DataFrame) -> None:
    start = frame[frame["step"] == 0].groupby("seed")["val_loss"].nunique()
    assert (start == 1).all() and frame.loc[frame["step"] == 0, "val_loss"].nunique() == 2
    configs = frame.attrs["configs"]
    assert {name.rpartition("-")[2]: config["seed"] for name, config in configs.items()} == {"0": 0, "1": 1}
    assert {json.dumps([c["model"], c["data"], c["budget"]["batch_size"]]) for c in configs.values()} == {
        json.dumps([configs["adamw/seed-0"][key] for key in ("model", "data")] + [2])
    }


def test_every_row_is_tuned_alike_on_a_seed_of_its_own(out: Path, frame: pd.DataFrame) -> None:
    trials = pd.DataFrame(frame.attrs["trials"])
    counts = trials.groupby("method").size()
    assert set(counts) == {2} and set(counts.index) == {"kronzo,rule=average", "kronzo,rule=directional", "adamw"}
    for path in out.glob("tuning/*/*/manifest.json"):
        assert json.loads(path.read_text())["seed"] == 1000
    best = trials[trials["kept"]].set_index("method")
    chosen = summary(frame).set_index("row")
    assert (chosen["trials"] == 2).all()
    for name in best.index:
        losses = trials.loc[trials["method"] == name, "val_loss"]
        assert best.loc[name, "val_loss"] == losses.min()
        assert best.loc[name, "lr"] == chosen.loc[name, "lr"]
    assert chosen.loc["kronzo,rule=average", "eps"] == best.loc["kronzo,rule=average", "eps"]
    assert chosen.loc["adamw-tokens", "lr"] == chosen.loc["adamw", "lr"]


def test_the_parquet_says_what_its_numbers_depend_on(out: Path, frame: pd.DataFrame) -> None:
    import pyarrow.parquet as pq

    stored = json.loads(pq.read_schema(out / comparison.TABLE).metadata[b"PANDAS_ATTRS"])
    assert stored["grid"]["seeds"] == [0, 1] and stored["grid"]["tuning_seed"] == 1000
    assert stored["corpus"]["sha256"] and stored["command"] == "test"
    assert stored["environments"][0]["versions"]["torch"] == frame.attrs["environments"][0]["versions"]["torch"]
    assert stored["reference"]["bigram"] < stored["reference"]["unigram"]
    assert len(stored["configs"]) == 2 * len(ROWS)
    assert frame["acceptance_rate"].dropna().between(0, 1).all()
    assert frame.loc[frame["method"] == "adamw", "rule"].isna().all()


def test_what_is_done_is_not_done_again(out: Path, frame: pd.DataFrame) -> None:
    before = {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")}
    assert_same(run_all(out), frame)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("metrics.jsonl")} == before


def test_shards_that_share_a_folder_make_the_whole(frame: pd.DataFrame, tmp_path: Path) -> None:
    first = run_all(tmp_path, shard=(2, 2))
    assert set(first["row"]) == {"kronzo,rule=directional"}
    assert summary(first).set_index("row").loc["adamw", ["finished", "seeds"]].tolist() == [0, 2]
    assert "Not finished yet: kronzo,rule=average; adamw; adamw-tokens." in as_text(first).replace("\n", " ")
    assert_same(run_all(tmp_path, shard=(1, 2)), frame)


def test_another_grid_or_a_foreign_folder_is_refused(out: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds another grid \(seeds is \[0, 1\] there and \[3\] here"):
        compare(BASE | {"seeds": [3]}, out, progress=False)
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'letter\.txt'"):
        compare(BASE, tmp_path, progress=False)


def test_a_row_in_use_is_refused(out: Path) -> None:
    from kronzo.pretrain import folder

    with (
        folder.locked(out / "runs" / "adamw", ["tuning.json", "seed-0", "seed-1"]),
        pytest.raises(InputError, match="another process is writing it"),
    ):
        run_all(out)


# ---------------------------------------------------------------------- one's own method


class Stopping(kronzo.MeZO):
    """MeZO that is interrupted at a given call of step, as by Ctrl-C."""

    calls = 0
    stop_at = 0

    def __init__(self, params: Any, lr: float = 1e-3, *, eps: float = 1e-3, seed: int = 0) -> None:
        super().__init__(params, lr, eps=eps, seed=seed)

    def step(self, closure: Callable[..., Any] | None = None) -> Any:  # type: ignore[override]
        type(self).calls += 1
        if self.calls == self.stop_at:
            raise KeyboardInterrupt
        return super().step(closure)


def test_a_method_of_ones_own_stopped_twice_gives_the_same_table(tmp_path: Path) -> None:
    grid = grid_with(mine=row("stopping", lr=(1e-3, 1e-2)), mezo=row("mezo", lr=(1e-3, 1e-2)))

    def run(folder: Path) -> pd.DataFrame:
        return compare(grid, folder, methods={"stopping": Stopping}, progress=False, command="test")

    whole = run(tmp_path / "whole")
    total, Stopping.calls = Stopping.calls, 0
    for stop_at in (2, total // 2):
        Stopping.calls, Stopping.stop_at = 0, stop_at
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "stopped")
    Stopping.stop_at = 0
    assert_same(run(tmp_path / "stopped"), whole)
    assert "stopping" not in kronzo.METHODS
    losses = whole.groupby(["row", "seed"])["val_loss"].last().unstack()
    assert np.array_equal(losses.loc["mine"], losses.loc["mezo"]), "it is MeZO, with the same seeds"


@pytest.mark.slow
def test_shards_killed_at_work_and_run_again_give_the_same_table(tmp_path: Path) -> None:
    file = tmp_path / "grid.toml"
    rows = grid_with(adamw=row("adamw", lr=(1e-3, 1e-2)), mezo=row(lr=(1e-3, 1e-2)))
    budget = {"comparison": BASE["comparison"] | {"budget": {"batch_size": 2, "token_forwards": 6_000}}}
    file.write_text(_toml(rows | budget), encoding="utf-8")

    def words(folder: Path, shard: str, workers: int = 1) -> list[str]:
        line = ["compare", str(file), "--out", str(folder), "--shard", shard, "--workers", str(workers), "--quiet"]
        return [sys.executable, "-m", "kronzo", *line]

    def killed_after(path: Path, folder: Path, shard: str) -> None:
        running = subprocess.Popen(words(folder, shard, 2), stdout=subprocess.DEVNULL, start_new_session=True)
        end = time.monotonic() + 120
        while not (path.exists() and path.stat().st_size):
            assert running.poll() is None and time.monotonic() < end
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(words(whole, "1/1"), check=True, capture_output=True)
    killed_after(killed / "tuning" / "adamw" / "lr0.001" / "metrics.jsonl", killed, "1/2")
    killed_after(killed / "runs" / "adamw" / "seed-1" / "metrics.jsonl", killed, "1/2")
    both = [subprocess.Popen(words(killed, shard), stdout=subprocess.DEVNULL) for shard in ("1/2", "2/2")]
    assert [process.wait() for process in both] == [0, 0]
    left, right = (read_comparison(folder) for folder in (whole, killed))
    assert_same(left, right)


@pytest.mark.parametrize(
    ("methods", "workers", "sentence"),
    [
        ({"mezo": Stopping}, None, "that name is taken"),
        ({"mine": torch.optim.SGD}, None, "a subclass of kronzo.ZeroOrder is needed"),
        ({"mine": Stopping}, None, "no row of the grid has it"),
        ({"mine": kronzo.ZeroOrder, "b": Stopping}, None, "no row of the grid has it"),
        ({"stopping": Stopping}, 2, "leave workers out"),
    ],
)
def test_a_method_of_ones_own_that_cannot_be_is_refused(
    methods: dict[str, Any], workers: int | None, sentence: str, tmp_path: Path
) -> None:
    grid = grid_with(a=row("stopping" if "stopping" in methods else "mezo"))
    with pytest.raises(InputError, match=sentence):
        compare(grid, tmp_path / "out", methods=methods, workers=workers, progress=False)
    assert set(kronzo.METHODS) == {"kronzo", "lozo", "subzero", "tezo", "mezo", "fzoo"}


# ---------------------------------------------------------------------- the summary


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6))
def test_the_interval_is_scipys(values: list[float]) -> None:
    mean, half = interval(values)
    if np.std(values) > 1e-6:
        known = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
        assert (mean - half, mean + half) == pytest.approx((known.low, known.high), rel=1e-9, abs=1e-9)


def test_one_value_has_no_interval_and_none_no_mean() -> None:
    assert interval([2.0])[0] == 2.0 and math.isnan(interval([2.0])[1])
    assert all(map(math.isnan, interval([])))


def test_a_loss_near_or_above_the_unigram_line_is_frequencies_only() -> None:
    words = [learned(loss, 3.0, 2.0) for loss in (3.5, 3.0, 2.981, 2.979, 1.99, 1.97, math.nan)]
    assert words == [comparison.FREQUENCIES] * 3 + [comparison.CONTEXT] * 2 + [comparison.BEYOND, ""]


def test_the_summary_is_over_finished_seeds(frame: pd.DataFrame) -> None:
    table = summary(frame).set_index("row")
    final = frame[(frame["row"] == "adamw") & (frame["step"] == frame.loc[frame["row"] == "adamw", "step"].max())]
    assert len(final) == 2
    assert table.loc["adamw", "val_loss"] == pytest.approx(final["val_loss"].mean(), rel=1e-12)
    assert table.loc["adamw", "minus_unigram"] == pytest.approx(
        final["val_loss"].mean() - frame.attrs["reference"]["unigram"], rel=1e-12
    )
    broken = frame.copy()
    broken.loc[(broken["row"] == "adamw") & (broken["seed"] == 1), "state"] = "diverged"
    table = summary(broken).set_index("row")
    assert math.isnan(table.loc["adamw", "val_loss"]) and table.loc["adamw", "diverged"] == 1
    assert "Diverged on a seed or more: no mean is given: adamw." in as_text(broken)


def test_the_text_fits_and_says_what_is_claimed(frame: pd.DataFrame) -> None:
    text = as_text(frame)
    assert max(map(len, text.splitlines())) <= 80
    lines = frame.attrs["reference"]
    assert f"unigram {lines['unigram']:.3f}, bigram {lines['bigram']:.3f}" in text
    assert "mean and 95 % interval" in text and "three at least are needed" in text
    assert "token frequencies at most" in text
    single = frame[frame["seed"] == 0].copy()
    single.attrs["grid"] = frame.attrs["grid"] | {"seeds": [0]}
    single.attrs["rows"] = {name: about | {"seeds": [0]} for name, about in frame.attrs["rows"].items()}
    assert "One seed: there is no interval" in as_text(single)
    assert summary(single)["half_width"].isna().all() and summary(single)["val_loss"].notna().all()


# ---------------------------------------------------------------------- the command


def test_the_command_prints_a_table_or_json(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "small.toml"
    file.write_text(_toml(BASE), encoding="utf-8")
    words = ("compare", file, "--out", out, "--workers", 1, "--quiet")
    code, text, _ = run_command(monkeypatch, capsys, *words)
    assert code == 0 and "adamw-tokens" in text and "comparison.parquet" in text
    code, text, _ = run_command(monkeypatch, capsys, *words, "--json")
    found = json.loads(text)
    assert [line["row"] for line in found["rows"]] == ROWS and len(found["trials"]) == 6
    code, _, error = run_command(monkeypatch, capsys, *words, "--shard", "3/2")
    assert code == 2 and "i/n with 1 <= i <= n" in error
    code, _, error = run_command(monkeypatch, capsys, *words, "--set", "seeds=[5]")
    assert code == 2 and "holds another grid" in error
    code, _, error = run_command(monkeypatch, capsys, "compare", tmp_path / "none.toml")
    assert code == 2 and "cannot be read" in error


def _toml(tables: dict[str, Any], prefix: str = "") -> str:
    """TOML of tables of any depth, a header for each."""
    plain = {key: value for key, value in tables.items() if not isinstance(value, dict)}
    text = (f"[{prefix[:-1]}]\n" if prefix else "") + dumps(plain)
    for key, value in tables.items():
        if isinstance(value, dict):
            text += _toml(value, f"{prefix}{json.dumps(key)}.")
    return text


def test_the_example_is_a_grid() -> None:
    from importlib.resources import files

    grid = read_grid(Path(str(files("kronzo.pretrain") / "presets" / "grid_example.toml")))
    assert len(grid.seeds) >= 3 and len(grid.rows) == 7
