"""Moving the weights: there and back for any layout, several sections, what is warned about memory."""

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import kronzo
from kronzo import layout
from kronzo import search as search_module

LAYOUTS = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(0, -1).contiguous().transpose(0, -1) if t.ndim > 1 else t,
    "strided": lambda t: torch.stack([t, t], -1)[..., 0],
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t,
}
METHODS = {
    "kronzo": (kronzo.KronZO, {}, oracles.kronecker),
    "lozo": (kronzo.LOZO, {"rank": 1}, oracles.low_rank(1)),
    "mezo": (kronzo.MeZO, {}, oracles.dense),
}


def shapes():
    return st.lists(st.integers(1, 7), min_size=0, max_size=4).map(tuple)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("restore", ["arithmetic", "snapshot"])
@given(shapes(), st.sampled_from(list(LAYOUTS)), st.integers(0, 3))
def test_probes_stand_at_theta_plus_eps_z_and_return(name, restore, shape, layout, seed):
    method, keywords, z = METHODS[name]
    p = nn.Parameter(LAYOUTS[layout](torch.randn(shape, dtype=torch.float64)))
    strides, before, seen = p.stride(), p.detach().clone(), []
    opt = method(
        [p, nn.Parameter(torch.zeros(9, 9, dtype=torch.float64))], lr=0.0, seed=seed, restore=restore, **keywords
    )

    def closure():
        seen.append(p.detach().clone())
        return 0.0

    opt.step(closure)
    direction = z(seed, 0, 0, 0, 0, shape)
    torch.testing.assert_close(seen[0], before + 1e-3 * direction, rtol=0, atol=1e-9)
    torch.testing.assert_close(seen[1], before - 1e-3 * direction, rtol=0, atol=1e-9)
    torch.testing.assert_close(p.detach(), before, rtol=0, atol=0 if restore == "snapshot" else 1e-15 * 50)
    assert p.stride() == strides


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("layout", list(LAYOUTS))
@pytest.mark.parametrize("name", METHODS)
def test_pieces_smaller_than_the_weight_change_nothing(monkeypatch, name, layout, dtype):
    method, keywords, _ = METHODS[name]

    def run():
        torch.manual_seed(0)
        p = nn.Parameter(LAYOUTS[layout](torch.randn(30, 5, 2, 2)).to(dtype))
        big = nn.Parameter(torch.randn(300, 300).to(dtype))
        opt = method([p, big], lr=0.1, **keywords)
        opt.step(lambda: p.double().square().mean() + big.double().square().mean())
        return p.detach().clone(), big.detach().clone()

    whole = run()
    monkeypatch.setattr(search_module, "CHUNK", 1000)
    for a, b in zip(whole, run(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6 if dtype == torch.float32 else 0, atol=1e-7)


@pytest.mark.parametrize("cached", [0, 2**30])
def test_directions_drawn_again_are_the_same(monkeypatch, cached):
    monkeypatch.setattr(layout, "SMALL_BYTES", cached)
    torch.manual_seed(0)
    w = nn.Parameter(torch.randn(12, 18))
    opt = kronzo.KronZO([w], lr=0.1, directions=9)
    opt.step(lambda: w.square().sum())
    zs = [oracles.kronecker(0, 0, 0, 0, i, (12, 18)) for i in range(9)]
    torch.manual_seed(0)
    wanted = torch.randn(12, 18) - 0.1 / 9 * sum(c * z for c, z in zip(opt.last.coefficients, zs, strict=True))
    torch.testing.assert_close(w.detach(), wanted.float(), rtol=1e-5, atol=1e-5)


def test_empty_tensors_and_scalars_are_no_obstacle():
    params = [nn.Parameter(torch.randn(s)) for s in ((0, 5), (3, 0), (0,), (), (1,), (1, 1), (17, 1), (1, 13))]
    for method in (kronzo.KronZO, kronzo.MeZO, kronzo.FZOO):
        opt = method(params, lr=0.01)
        for _ in range(6):
            opt.step(lambda: sum(p.square().sum() for p in params))
        assert opt.last.accepted
    for method in (kronzo.LOZO, kronzo.SubZero, kronzo.TeZO):
        opt = method([*params, nn.Parameter(torch.randn(6, 5))], lr=0.01, rank=2)
        for _ in range(6):
            opt.step(lambda: sum(p.square().sum() for p in params))


def test_a_group_may_be_empty():
    w = nn.Parameter(torch.ones(4, 6))
    opt = kronzo.KronZO([{"params": []}, {"params": [w]}], lr=0.1)
    opt.step(lambda: w.sum())
    opt.load_state_dict(opt.state_dict())
    opt.step(lambda: w.sum())
    assert len(opt.param_groups) == 2 and w.mean() < 1


def test_a_candidate_out_of_reach_is_not_taken_and_the_weights_come_back():
    w = nn.Parameter(torch.ones(6, 6))
    opt = kronzo.KronZO([w], lr=1e6, rule="directional", directions=2)
    opt.step(lambda: 1e3 * w.sum())
    assert not opt.last.accepted
    torch.testing.assert_close(w.detach(), torch.ones(6, 6), rtol=0, atol=1e-5)


def test_a_step_beyond_the_number_format_is_not_taken():
    w = nn.Parameter(torch.ones(6, 6))
    opt = kronzo.KronZO([w], lr=1e36)
    opt.step(lambda: 1e3 * w.sum())
    assert not opt.last.accepted and w.isfinite().all() and "format" in opt.last.reason


def test_two_groups_are_two_sections_of_one_step():
    a, b = nn.Parameter(torch.zeros(6, 6)), nn.Parameter(torch.zeros(6, 6))
    opt = kronzo.KronZO([{"params": [a]}, {"params": [b], "scale": 0.0}], lr=0.1)
    opt.step(lambda: a.sum() + b.sum())
    assert a.abs().max() > 0 and b.abs().max() == 0


def test_the_model_may_move_to_another_precision_between_steps():
    net = nn.Linear(6, 6)
    opt = kronzo.KronZO(net.parameters(), lr=0.01, momentum=0.5)
    opt.step(lambda: net.weight.square().sum())
    net.double()
    opt.step(lambda: net.weight.square().sum())
    assert net.weight.dtype == torch.float64 and opt.direction(net.weight, 0).dtype == torch.float64


def test_lozo_as_published_moves_along_what_it_never_measured_on_refresh_steps():
    w = nn.Parameter(torch.zeros(20, 12, dtype=torch.float64))
    opt = kronzo.LOZO([w], lr=1.0, refresh_every=3, replay="published")
    for step in range(9):
        w.data.zero_()
        opt.step(lambda: w.sum() + 3 * w[0].sum())
        z = opt.direction(w, 0)
        cosine = (w * z).sum().abs() / (w.norm() * z.norm())
        assert cosine < 0.6 if step % 3 == 0 else cosine > 0.9999


def test_the_users_numpy_and_python_streams_move_as_by_one_call():
    import random

    w = nn.Parameter(torch.ones(4, 4))
    opt = kronzo.KronZO([w], directions=3)

    def closure():
        values.append((random.random(), float(np.random.standard_normal()), torch.rand(()).item()))
        return w.sum()

    values = []
    states = []
    for run in (lambda: opt.step(closure), closure):
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)
        np.random.standard_normal()
        run()
        states.append((random.random(), float(np.random.standard_normal()), torch.rand(()).item()))
    assert states[0] == states[1]
    assert len(set(values)) == 1


class LargestNew(TorchDispatchMode):
    """Remembers the largest memory that an operation allocated."""

    def __init__(self):
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = {
            t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs or {})) if isinstance(t, torch.Tensor)
        }
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in given:
                self.num_bytes = max(self.num_bytes, t.untyped_storage().nbytes())
        return out


@pytest.mark.parametrize("rule", ["average", "directional"])
@pytest.mark.parametrize("method", [kronzo.KronZO, kronzo.LOZO, kronzo.SubZero, kronzo.TeZO, kronzo.MeZO])
def test_a_step_allocates_nothing_of_the_size_of_a_weight(method, rule):
    w = nn.Parameter(torch.randn(2048, 320))
    for directions in (1, 9):
        opt = method([w], rule=rule, directions=directions)
        opt.step(lambda: w[0, 0].item())
        with LargestNew() as seen:
            opt.step(lambda: w[0, 0].item())
        assert seen.num_bytes <= w.numel() * 4 / 12


def test_snapshots_are_the_only_copy_of_a_weight():
    w = nn.Parameter(torch.randn(512, 640))
    opt = kronzo.KronZO([w], restore="snapshot")
    with LargestNew() as seen:
        opt.step(lambda: w[0, 0].item())
    assert seen.num_bytes == w.numel() * 4
