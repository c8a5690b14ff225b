"""Rank against tokens: the controls read what was planted, and a known low-rank signal stops growing."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import spectra
from spectra import InputError, null, singular_values
from spectra.growth_plot import rank_growth_figure

SHAPE = (40, 30)


class Planted(nn.Module):
    """A model whose gradient on a batch is a signal of known rank plus steep noise of that batch."""

    def __init__(self, rank, strength):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(SHAPE))
        generator = torch.Generator().manual_seed(99)
        u = torch.linalg.qr(torch.randn(SHAPE[0], SHAPE[0], generator=generator)).Q[:, :rank]
        v = torch.linalg.qr(torch.randn(SHAPE[1], SHAPE[1], generator=generator)).Q[:, :rank]
        self.register_buffer("signal", strength * u @ v.T)

    def gradient(self, seed):
        noise = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
        left, right = (torch.linspace(0, -3, side).exp() for side in SHAPE)
        return self.signal + left[:, None] * noise * right


def loss(model, seed):
    return (model.weight * model.gradient(seed)).sum()


def test_a_signal_of_rank_three_stops_at_three_and_controls_read_their_rank():
    frame = spectra.rank_growth(Planted(3, 50.0), loss, range(64), tokens=10, planted=(1, 4, 40), margin=0.6)
    own = frame[frame["planted"].isna()].set_index("tokens")["weyl_rank"]
    assert own.index.tolist() == [40, 80, 160, 320, 640]
    assert own.between(3, 4).all()
    for rank in (1, 4):
        control = frame[frame["planted"] == rank]
        assert (control["edge_rank"] >= min(rank, 3)).all() and (control["weyl_rank"] <= rank + 2).all()
    assert set(frame["planted"].dropna()) == {1, 4}


def test_ranks_and_controls_are_what_their_definition_says():
    model = Planted(2, 5.0)
    frame = spectra.rank_growth(model, loss, range(4), planted=(2,))
    m = [model.gradient(seed).double() for seed in range(4)]
    mean, half_difference = sum(m) / 4, (m[0] + m[1] - m[2] - m[3]) / 4
    u, s, vt = np.linalg.svd(mean.numpy())
    plant = torch.from_numpy((u[:, :2] * s[:2]) @ vt[:2])
    floor, noise = (m[0] - m[1] + m[2] - m[3]) / 4, (m[0] - m[1] - m[2] + m[3]) / 4
    for row, signal, other in zip(
        frame.to_dict("records"), (mean, plant + floor), (half_difference, noise), strict=True
    ):
        values, noise_values = singular_values(signal).values, singular_values(other).values
        assert row["weyl_rank"] == null.weyl_rank(values, noise_values)
        assert row["edge_rank"] == null.edge_rank(values, noise_values)


def test_the_noise_of_a_control_is_as_large_as_that_of_the_gradient():
    model = Planted(0, 0.0)
    own, control = [], []
    for start in range(0, 400, 4):
        m = [model.gradient(start + i) for i in range(4)]
        own.append(float((m[0] + m[1] - m[2] - m[3]).norm()) ** 2)
        control.append(float((m[0] - m[1] - m[2] + m[3]).norm()) ** 2)
    assert np.mean(own) == pytest.approx(np.mean(control), rel=0.1)


def test_a_model_is_left_as_it_was_and_bad_input_refused():
    model = Planted(1, 1.0)
    spectra.rank_growth(model, loss, range(4), planted=())
    assert model.weight.grad is None
    with pytest.raises(InputError, match="3 batches"):
        spectra.rank_growth(model, loss, range(3))
    with pytest.raises(InputError, match="rank 1 or more"):
        spectra.rank_growth(model, loss, range(4), planted=(0,))


def test_the_figure_shows_the_gradient_and_its_controls():
    frame = spectra.rank_growth(Planted(3, 50.0), loss, range(16), planted=(1, 4))
    frame = pd.concat([frame, frame.assign(layer="h.mlp", kind="mlp")])
    figure = rank_growth_figure(frame)
    panes = figure.axes
    assert [axes.get_title() for axes in panes] == ["mlp (1)", "other (1)"]
    lines = [line.get_label() for line in panes[0].lines]
    assert lines[1:] == ["planted 1", "planted 4"]
    own = frame[(frame["kind"] == "mlp") & frame["planted"].isna()]
    np.testing.assert_array_equal(panes[0].lines[0].get_ydata(), own["weyl_rank"])
    with pytest.raises(InputError, match="'weyl_rank' and 'edge_rank'"):
        rank_growth_figure(frame, "stable_rank")
