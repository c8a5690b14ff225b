"""The mean of many estimates is the gradient: ours, torchzero's and autograd's on one quadratic."""

import pytest
import torch

import kronzo

pytestmark = pytest.mark.extra


def test_the_mean_estimate_is_the_gradient_of_a_quadratic():
    tz = pytest.importorskip("torchzero")
    rng = torch.Generator().manual_seed(0)
    curvature = torch.rand(6, 5, generator=rng, dtype=torch.float64) + 0.5
    w = torch.nn.Parameter(torch.randn(6, 5, generator=rng, dtype=torch.float64))
    start = w.detach().clone()

    def loss(backward=False):
        return (curvature * w.square()).sum() / 2

    loss().backward()
    exact, w.grad = w.grad.clone(), None

    def estimates(opt, samples):
        out = []
        for _ in range(samples):
            w.data.copy_(start)
            with torch.no_grad():
                opt.step(loss)
            out.append(start - w.detach())
        return torch.stack(out)

    theirs = tz.Optimizer([w], tz.m.SPSA(h=1e-3, distribution="normal"), tz.m.LR(1.0))
    for opt in (theirs, kronzo.KronZO([w], lr=1.0, refresh_every=1), kronzo.MeZO([w], lr=1.0)):
        got = estimates(opt, 3000)
        error = (got.mean(0) - exact) / (got.std(0) / 3000**0.5)
        assert error.abs().max() < 4.5, opt
