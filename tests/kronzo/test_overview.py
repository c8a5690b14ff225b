"""The summary says what is searched and what a step costs, in words and at 80 columns."""

import pytest
import torch
from registry import CASES
from torch import nn

import kronzo
from kronzo import InputError

NET = nn.Sequential(nn.Embedding(900, 96), nn.Linear(96, 400), nn.LayerNorm(400), nn.Conv1d(4, 8, 3))


@pytest.mark.parametrize("name", CASES)
def test_text_fits_80_columns_and_names_every_parameter(name):
    opt = CASES[name].build(NET.parameters())
    text = str(kronzo.summary(NET, opt))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert all(parameter in text for parameter, _ in NET.named_parameters())


def test_kronecker_rows():
    summary = kronzo.summary(NET, kronzo.KronZO(NET.parameters()))
    row = next(r for r in summary.rows if r.parameter == "1.weight")
    assert row.shape == (400, 96) and row.factors == "X 20x8 B 20x12"
    assert row.stored == 20 * 8 + 20 * 12 and row.compression == 400 * 96 / 400 and row.rank == 96
    assert summary.frozen == 0 and not summary.snapshot and summary.forwards == 2


def test_state_and_snapshot_bytes_are_those_held():
    opt = kronzo.MeZO(NET.parameters(), momentum=0.9, restore="snapshot")
    summary = kronzo.summary(NET, opt)
    numbers = sum(p.numel() for p in NET.parameters())
    assert summary.state_bytes == 4 * numbers + 8 * len(list(NET.parameters()))
    assert summary.weight_bytes == 4 * numbers <= summary.step_bytes
    assert "doubles" in str(summary)


def test_a_rank_that_is_not_full_is_said():
    opt = kronzo.KronZO(NET[1].parameters(), factors=lambda m, n: (1, m, n, 1))
    assert "rank 1 at most" in str(kronzo.summary(NET, opt))
    assert kronzo.summary(NET, opt).frozen == sum(p.numel() for p in NET.parameters()) - 400 * 97


def test_long_names_are_cut_at_the_front_and_html_is_escaped():
    net = nn.ModuleDict({"block<" + "x" * 90: nn.Linear(64, 64)})
    summary = kronzo.summary(net, kronzo.KronZO(net.parameters()))
    assert all(len(line) <= 80 for line in str(summary).splitlines()) and "xx.weight" in str(summary)
    assert "block&lt;x" in summary._repr_html_() and summary._repr_html_().count("<tr>") == 3


def test_a_model_the_optimizer_does_not_hold():
    with pytest.raises(InputError, match="summary"):
        kronzo.summary(nn.Linear(2, 2), kronzo.KronZO([nn.Parameter(torch.ones(3, 3))]))
