"""One set of numbers in every format, readable at 80 columns, with nulls and remarks beside them."""

import io
import json

import numpy as np
import pandas as pd
import pytest
import torch
from spectra_models import CONTEXT, TinyLM, batch, train

import spectra
from spectra import InputError, metrics, report, terminal


@pytest.fixture(scope="module")
def run():
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with spectra.GradientRecorder(model, optimizer, every=2, split_half=2) as rec:
        for step in range(7):
            optimizer.zero_grad()
            for half in range(2):
                (model.loss(batch(2 * step + half)) / 2).backward()
                rec.micro_batch(tokens=4 * CONTEXT)
            optimizer.step()
    return rec.run


def test_the_table_holds_first_and_last_stage_of_the_stored_values(run):
    frame = report.table(run)
    assert frame.attrs["stages"] == [0, 6]
    assert frame["kind"].tolist() == ["embedding", "embedding", "attention", "mlp", "mlp"]
    row = frame.set_index("layer").loc["block.mlp_in.weight"]
    assert row["shape"] == "64x16"
    for step, label in [(0, "first"), (6, "last")]:
        values = run.values(step, "block.mlp_in.weight")
        assert row[f"stable_rank {label}"] == pytest.approx(metrics.stable_rank(values), rel=1e-5)
        assert row[f"energy_rank_90 {label}"] == metrics.energy_rank(values, 0.9)
        assert row[f"spectral_norm {label}"] == pytest.approx(values[0], rel=1e-6)
    noise = run.noise_values(6, "block.mlp_in.weight")
    assert row["stable_rank noise"] == pytest.approx(metrics.stable_rank(noise), rel=1e-5)
    assert 5 < row["stable_rank chance"] < 16


def test_every_format_carries_the_same_numbers(run):
    frame = report.table(run)
    csv = pd.read_csv(io.StringIO(report.render(run, "csv")), keep_default_na=False)
    np.testing.assert_allclose(csv["stable_rank last"].astype(float), frame["stable_rank last"])
    loaded = json.loads(report.render(run, "json"))
    assert loaded["stages"] == [0, 6]
    assert [row["stable_rank last"] for row in loaded["layers"]] == frame["stable_rank last"].tolist()
    markdown = report.render(run, "markdown").splitlines()
    assert len(markdown) == 2 + len(frame) and len({line.count("|") for line in markdown}) == 1
    assert f"{frame['stable_rank last'].iloc[0]:.4g}" in markdown[2]
    text = report.render(run)
    for value in frame["participation_ratio last"]:
        assert terminal.number(value) in text


def test_the_text_fits_80_columns_and_names_every_layer(run):
    text = report.text(run)
    assert max(map(len, text.splitlines())) <= 80
    for layer in ("wte", "wpe", "block.c_attn", "block.mlp_in", "block.mlp_out"):
        assert f"\n{layer} " in text
    assert "noise, chance" in text and "gradients of 96 tokens" in text.replace("\n", " ")
    wide = report.text(run, metric=list(spectra.labels.LABELS))
    assert max(map(len, wide.splitlines())) <= 80 and "signal" in text


def test_layers_steps_metrics_and_order_can_be_chosen(run):
    assert report.table(run, layer="block.mlp*")["layer"].tolist() == ["block.mlp_in.weight", "block.mlp_out.weight"]
    assert report.table(run, layer="*c_attn.weight[k]")["shape"].tolist() == ["16x16"]
    assert report.table(run, layer="wte")["layer"].tolist() == ["wte.weight"]
    one = report.table(run, step=2, metric="weyl_rank")
    assert "weyl_rank" in one and "weyl_rank first" not in one
    ordered = report.table(run, sort="stable_rank")["stable_rank last"]
    assert ordered.is_monotonic_decreasing


def test_kinds_are_mean_and_range_over_whole_layers(run):
    frame = report.kinds(run, metric="stable_rank").set_index(["kind", "metric", "step"])
    single = run.gradients().query("kind == 'mlp' and step == 4")["stable_rank"]
    row = frame.loc[("mlp", "stable_rank", 4)]
    assert row[["mean", "min", "max"]].tolist() == pytest.approx([single.mean(), single.min(), single.max()])
    assert row["layers"] == 2 and frame.loc[("attention", "stable_rank", 0), "layers"] == 1


def test_remarks_in_words():
    model = TinyLM(tied=False)
    model.late = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p is not model.wpe.weight], lr=0.1)

    def poison():
        model.wpe.weight.grad.nan_to_num_()
        model.wpe.weight.grad[0, 0] = float("nan") if rec.next_step == 1 else 0.0

    with spectra.GradientRecorder(model, optimizer, every=1) as rec:
        train(model, optimizer, range(1), after_backward=lambda: rec.micro_batch(tokens=9) or poison())
        train(model, optimizer, range(1, 2), after_backward=poison)
        train(model, optimizer, range(2, 3), after_backward=lambda: rec.micro_batch(tokens=9) or poison())
    remarks = report.table(rec.run).set_index("layer")["remark"]
    assert "non-finite at step 1" in remarks["wpe.weight"]
    assert "rank limited by 9 tokens" in remarks["block.mlp_in.weight"]
    assert "rows without a token" in remarks["wte.weight"]
    assert "late.weight" not in remarks
    assert "remarks" in report.text(rec.run) and "non-finite" in report.text(rec.run)


def test_what_cannot_be_shown_is_refused(run):
    with pytest.raises(InputError, match="did you mean 'markdown'"):
        report.render(run, "markdwon")
    with pytest.raises(InputError, match="did you mean 'stable_rank'"):
        report.table(run, metric="stablerank")
    with pytest.raises(InputError, match=r"did you mean 'wte\.weight'"):
        report.table(run, layer="wte.weigth")
    with pytest.raises(InputError, match="captured steps: 0, 2, 4, 6"):
        report.table(run, step=3)
    with pytest.raises(InputError, match="not shown"):
        report.table(run, sort="edge_rank")
    with pytest.raises(InputError, match="no spectra yet"):
        report.table(spectra.Run([], {}))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (12.0, "12"),
        (3.14159, "3.14"),
        (31.4159, "31.4"),
        (314.159, "314"),
        (9.996, "10.0"),
        (99.97, "100"),
        (0.001234, "1e-3"),
        (np.nan, "-"),
    ],
)
def test_numbers_take_about_four_characters(value, text):
    assert terminal.number(value) == text


@pytest.mark.parametrize(
    ("values", "power"), [([0.35, 0.02], -3), ([0.0001], -6), ([1.5, 900.0], 0), ([12_345.0], 3), ([0.0, np.nan], 0)]
)
def test_norms_are_shown_in_a_unit_that_keeps_their_digits(values, power):
    assert terminal._unit(values) == power


def test_spark_lines():
    assert terminal.spark([1, 2, 3, 4]) == "▁▃▆█"
    assert terminal.spark([2, 2]) == "▁▁" and terminal.spark([]) == "" and len(terminal.spark(range(50))) == 7


def test_names_are_shortened_in_the_middle():
    assert terminal.shorten(["a.b.weight", "h.0.attn.c_attn.weight[q]"], 20) == ["a.b", "h.0.attn.c_attn[q]"]
    assert terminal.shorten(["model.layers.11.self_attn.q_proj.weight"], 16) == ["model…ttn.q_proj"]
