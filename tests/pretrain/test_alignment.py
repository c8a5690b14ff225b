"""The cosine between estimate and gradient: measured against the written-out average, predicted against many draws."""

import math

import pytest
import torch
from torch import nn

import kronzo
from kronzo.errors import InputError
from kronzo.pretrain.alignment import WHOLE, alignment, captured_share, predicted_cosine
from kronzo.spaces import Dense

SPACES = {"kronzo": {}, "lozo": {"rank": 2}, "subzero": {"rank": 4}, "mezo": {}}
SEEDS = range(400)


class Slopes(nn.Module):
    """Weights with a linear loss, so that every coefficient is exact; the gradient of weight k is slopes[k]."""

    def __init__(self, *slopes):
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(s.shape, dtype=torch.float64) for s in slopes])
        self.slopes = slopes

    def loss(self):
        return sum((w * s).sum() for w, s in zip(self.weights, self.slopes, strict=True))


def slope(m, n, seed, norm=1.0):
    drawn = torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return norm * drawn / drawn.norm()


def build(method, **keywords):
    return lambda named, seed: kronzo.METHODS[method](named, seed=seed, **keywords)


def mean_square(frame, layer):
    """Mean squared cosine of a layer, its standard error, and the predicted one."""
    rows = frame[frame["layer"] == layer]
    squares = rows["cosine"] ** 2
    return squares.mean(), squares.std() / math.sqrt(len(rows)), rows["predicted"].iloc[0] ** 2


def test_the_formula_meets_known_values():
    dense = Dense((6, 4))
    assert predicted_cosine(dense, 5) ** 2 == pytest.approx(5 / (24 + 5 - 1))
    assert predicted_cosine(dense, 1, share=0.3) ** 2 == pytest.approx(1 / 24)
    kronecker = kronzo.KronZO([nn.Parameter(torch.zeros(36, 24))]).family(torch.Size([36, 24]))
    assert captured_share(kronecker) == pytest.approx(1 / 36)
    assert predicted_cosine(kronecker, 33) == pytest.approx(0.128, abs=5e-4)


@pytest.mark.parametrize("method", SPACES)
def test_one_weight_is_predicted(method):
    model = Slopes(slope(12, 8, 0))
    frame = alignment(model, model.loss, build(method, directions=6, **SPACES[method]), SEEDS)
    for layer in ("weights.0", WHOLE):
        mean, error, predicted = mean_square(frame, layer)
        assert abs(mean - predicted) < 4 * error + 0.06 * predicted


@pytest.mark.parametrize("method", SPACES)
def test_weights_beside_each_other_are_predicted(method):
    model = Slopes(slope(12, 8, 1, norm=2.0), slope(8, 6, 2, norm=1.0))
    frame = alignment(model, model.loss, build(method, directions=6, **SPACES[method]), SEEDS)
    for layer in ("weights.0", "weights.1", WHOLE):
        mean, error, predicted = mean_square(frame, layer)
        assert abs(mean - predicted) < 4 * error + 0.1 * predicted


def test_the_estimate_is_the_average_that_the_optimizer_moves_by():
    model, kept = Slopes(slope(12, 8, 3)), []
    before = model.weights[0].detach().clone()
    frame = alignment(model, model.loss, lambda named, seed: keep(kept, named, seed), [4])
    (optimizer,) = kept
    written_out = [optimizer.direction(model.weights[0], i) for i in range(3)]
    estimate = sum((z * model.slopes[0]).sum() * z for z in written_out) / 3
    cosine = (estimate * model.slopes[0]).sum() / estimate.norm() / model.slopes[0].norm()
    assert frame["cosine"].iloc[0] == pytest.approx(float(cosine), rel=1e-9)
    assert torch.equal(model.weights[0], before)


def keep(kept, named, seed):
    kept.append(kronzo.KronZO(named, directions=3, seed=seed))
    return kept[0]


@pytest.mark.parametrize("keywords", [{"rule": "directional"}, {"momentum": 0.5}, {"weight_decay": 0.1}])
def test_what_does_not_average_is_refused(keywords):
    model = Slopes(slope(4, 4, 0))
    with pytest.raises(InputError, match="average"):
        alignment(model, model.loss, build("kronzo", **keywords), [0])


def test_a_flat_loss_is_refused():
    model = Slopes(torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(InputError, match="slope"):
        alignment(model, model.loss, build("kronzo"), [0])
