"""What closures may be: slices of a batch, compiled, on a device that should not wait."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kronzo

X = torch.randn(12, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def net(dtype=torch.float64):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(dtype)


@pytest.mark.parametrize("method", [kronzo.KronZO, kronzo.LOZO, kronzo.SubZero, kronzo.TeZO, kronzo.MeZO])
@pytest.mark.parametrize("rule", ["average", "normalized"])
def test_under_split_data_each_direction_sees_its_own_slice(method, rule):
    model, asked = net(), []
    keywords = {"rank": 2} if method in (kronzo.LOZO, kronzo.SubZero, kronzo.TeZO) else {}
    opt = method(model.parameters(), lr=0.0, directions=3, rule=rule, data="split", restore="snapshot", **keywords)

    def closure(i):
        asked.append(i)
        return model(X[4 * i : 4 * i + 4]).square().mean()

    opt.step(closure)
    assert asked == [0, 0, 1, 1, 2, 2]
    theta = [p.detach().clone() for p in model.parameters()]
    for i, c in enumerate(opt.last.coefficients):
        zs = [opt.direction(p, i) for p in model.parameters()]
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                for p, start, z in zip(model.parameters(), theta, zs, strict=True):
                    p.copy_(start + sign * 1e-3 * z)
                ends.append(closure(i).item())
        assert c == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=1e-6)


def test_micro_batches_under_split_data_are_slices_of_slices():
    one, many = net(), net()
    a, b = (kronzo.KronZO(m.parameters(), lr=0.01, directions=2, data="split") for m in (one, many))
    for _ in range(3):
        a.step(lambda i: one(X[6 * i : 6 * i + 6]).square().mean())
        for part in (0, 3):
            b.estimate(lambda i, part=part: many(X[6 * i + part : 6 * i + part + 3]).square().mean())
        b.step()
        assert b.last.coefficients == pytest.approx(a.last.coefficients, rel=1e-9)


class Reads(TorchDispatchMode):
    """Counts how often a number of a tensor is asked for, which makes a GPU wait."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("method", [kronzo.KronZO, kronzo.LOZO, kronzo.MeZO, kronzo.FZOO])
def test_no_loss_is_read_before_all_forwards_of_an_average_are_done(method):
    model, reads = net(torch.float32), []
    opt = method(model.parameters(), lr=0.01, directions=4)
    x = X.float()

    def closure():
        reads.append(seen.count)
        return model(x).square().mean()

    with Reads() as seen:
        opt.step(closure)
    assert len(reads) == opt.forwards_per_step and reads[0] == reads[-1]


@pytest.mark.slow
@pytest.mark.parametrize("what", ["model", "closure"])
def test_compiled_forwards_give_the_losses_of_eager_ones(what):
    eager, twin = net(torch.float32), net(torch.float32)
    x = X.float()

    def loss(model):
        return model(x).square().mean()

    compiled = torch.compile(twin if what == "model" else loss, backend="aot_eager")
    a, b = kronzo.KronZO(eager.parameters(), lr=0.01), kronzo.KronZO(twin.parameters(), lr=0.01)
    for _ in range(6):
        wanted = a.step(lambda: loss(eager))
        got = b.step(lambda: loss(compiled) if what == "model" else compiled(twin))
        assert got.item() == pytest.approx(wanted.item(), rel=1e-5)
    for p, q in zip(eager.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("rule", ["average", "normalized"])
def test_a_rejected_step_leaves_weights_and_momentum(rule):
    weight = torch.nn.Parameter(torch.randn(8, 6, dtype=torch.float64))
    optimizer = kronzo.KronZO([weight], lr=1e-2, directions=2, rule=rule, momentum=0.9, restore="snapshot")
    for _ in range(2):
        optimizer.step(lambda: weight.square().sum())
    kept = weight.detach().clone()
    state = {name: value.clone() for name, value in optimizer.state[weight].items()}
    optimizer.step(lambda: float("nan"))
    assert not optimizer.last.accepted and torch.equal(weight, kept)
    for name, value in state.items():
        assert torch.equal(value, optimizer.state[weight][name])
