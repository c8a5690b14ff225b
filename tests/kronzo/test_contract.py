"""What every method owes its user: one contract, run over the registry."""

import copy
import io
import math
import pickle
import warnings

import pytest
import torch
from registry import CASES
from torch import nn

import kronzo
from kronzo import InputError

NAMES = list(CASES)
DATA = torch.randn(16, 10, generator=torch.Generator().manual_seed(7))


class Net(nn.Module):
    def __init__(self, dropout=0.0, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(10, 12), nn.Linear(12, 10)
        self.dropout = nn.Dropout(dropout)
        if tied:
            self.second.weight = nn.Parameter(self.first.weight.t().contiguous())
            self.third = nn.Linear(10, 12, bias=False)
            self.third.weight = self.first.weight

    def forward(self, x):
        x = self.second(self.dropout(torch.tanh(self.first(x))))
        return self.third(x) if hasattr(self, "third") else x


def loss_of(net, x=DATA):
    dtype = next(net.parameters()).dtype
    return lambda: net(x.to(dtype)).double().square().mean()


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def distance(a, b):
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


@pytest.fixture(params=NAMES)
def case(request):
    return CASES[request.param]


def test_loss_is_a_detached_float32_scalar_and_falls(case):
    net = Net()
    opt = case.build(net.parameters(), lr=0.02)
    first = loss_of(net)().item()
    for _ in range(60):
        loss = opt.step(loss_of(net))
        assert loss.shape == () and loss.dtype == torch.float32 and not loss.requires_grad
    assert loss_of(net)().item() < first


def test_resume_is_bit_equal_off_the_refresh_grid_through_weights_only(case):
    whole, parts = Net(), Net()
    opt = case.build(whole.parameters(), lr=0.02, seed=11)
    for _ in range(10):
        opt.step(loss_of(whole))
    first = case.build(parts.parameters(), lr=0.02, seed=11)
    for _ in range(5):
        first.step(loss_of(parts))
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = case.build(parts.parameters(), lr=0.5, seed=99)
    second.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(5):
        second.step(loss_of(parts))
    assert same(weights(whole), weights(parts))
    assert second.last == opt.last


def test_deepcopy_and_pickle_go_on_alike_with_a_scheduler_attached(case):
    net = Net()
    opt = case.build(net.parameters(), lr=0.02)
    torch.optim.lr_scheduler.StepLR(opt, 100)
    for _ in range(4):
        opt.step(loss_of(net))
    twin, twin_opt = copy.deepcopy((net, opt))
    third, third_opt = pickle.loads(pickle.dumps((net, opt)))
    for _ in range(3):
        opt.step(loss_of(net))
        twin_opt.step(loss_of(twin))
        third_opt.step(loss_of(third))
    assert same(weights(net), weights(twin)) and same(weights(net), weights(third))
    assert twin_opt.last == opt.last == third_opt.last
    assert twin_opt.param_groups[0]["params"][0] is next(twin.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_lr_0_keeps_the_bits_with_snapshots(case, dtype):
    net = Net().to(dtype)
    before = weights(net)
    opt = case.build(net.parameters(), lr=0.0, restore="snapshot")
    for _ in range(7):
        opt.step(loss_of(net))
    assert same(before, weights(net))


def test_lr_0_in_float32_arithmetic_drifts_by_rounding_only(case):
    """Every sweep rounds once: after s sweeps no weight is further than s ulp of the largest number on the way."""
    net = Net()
    before = weights(net)
    opt = case.build(net.parameters(), lr=0.0, restore="arithmetic")
    sweeps = 0
    for _ in range(50):
        opt.step(loss_of(net))
        sweeps += opt.last.sweeps
    largest = max(p.abs().max().item() for p in before) + 0.05
    assert 0 < distance(before, weights(net)) < sweeps * torch.finfo(torch.float32).eps * largest / 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_weights_take_the_float32_update_cast_once(case, dtype):
    net = Net().to(dtype)
    opt = case.build(net.parameters(), lr=0.05)
    for _ in range(4):
        before = weights(net)
        opt.step(loss_of(net))
        if opt.settings.momentum or (opt.settings.rule.whole_step and not opt.last.accepted):
            continue
        c = opt.last.coefficients
        scale = 1.0 if opt.settings.rule.name != "normalized" else math.sqrt(sum(v * v for v in c) / len(c))
        if opt.settings.rule.whole_step:
            continue
        for p, b in zip(net.parameters(), before, strict=True):
            wanted = b.float() + sum(-0.05 * ci / (len(c) * scale) * opt.direction(p, i) for i, ci in enumerate(c))
            ulp = torch.finfo(dtype).eps * wanted.abs().clamp(min=1e-3)
            assert ((p.float() - wanted).abs() <= ulp).all()


def test_state_of_low_precision_weights_stays_float32_through_a_round_trip(case):
    net = Net().to(torch.bfloat16)
    opt = case.build(net.parameters(), lr=0.02)
    opt.step(loss_of(net))
    saved = copy.deepcopy(opt.state_dict())
    other = case.build(net.parameters(), lr=0.02)
    other.load_state_dict(saved)
    for p in net.parameters():
        assert set(other.state[p]) == set(opt.state[p])
        for key, value in opt.state[p].items():
            assert torch.equal(value, other.state[p][key]) and value.dtype in (torch.float32, torch.int64)


def test_tied_weights_once_frozen_ones_never(case):
    net = Net(tied=True)
    net.second.bias.requires_grad_(False)
    frozen = net.second.bias.detach().clone()
    opt = case.build(net.parameters(), lr=0.02)
    for _ in range(5):
        opt.step(loss_of(net))
    assert torch.equal(frozen, net.second.bias)
    assert net.third.weight is net.first.weight
    assert sum(len(g["params"]) for g in opt.param_groups) == len(list(net.parameters()))


def test_freezing_does_not_change_the_directions_of_the_others(case):
    free, part = Net(), Net()
    part.first.weight.requires_grad_(False)
    a, b = case.build(free.parameters(), lr=0.0), case.build(part.parameters(), lr=0.0)
    a.step(loss_of(free))
    b.step(loss_of(part))
    assert torch.equal(a.direction(free.second.weight, 0), b.direction(part.second.weight, 0))


def test_unfreezing_later_joins_the_search(case):
    net = Net()
    net.first.weight.requires_grad_(False)
    opt = case.build(net.parameters(), lr=0.02, restore="snapshot")
    for _ in range(4):
        opt.step(loss_of(net))
    before = net.first.weight.detach().clone()
    net.first.weight.requires_grad_(True)
    for _ in range(6):
        opt.step(loss_of(net))
    assert not torch.equal(before, net.first.weight)


def test_group_lr_eps_scale(case):
    """The probe moves a weight by eps_g scale_g Z, the update by -lr_g (eps_0 / eps_g) c scale_g Z."""
    net = Net().double()
    groups = [
        {"params": net.first.parameters(), "lr": 0.01, "eps": 1e-3, "scale": 1.0},
        {"params": net.second.parameters(), "lr": 0.02, "eps": 5e-4, "scale": 3.0},
    ]
    opt = case.build(groups, restore="snapshot")
    if opt.settings.momentum:
        pytest.skip("momentum adds earlier steps; the formula of one step is the others'")
    before, seen = weights(net), []

    def closure():
        seen.append(weights(net))
        return loss_of(net, DATA.double())()

    opt.step(closure)
    probe = seen[1 if opt.settings.rule.whole_step or opt.settings.rule.one_sided else 0]
    c = opt.last.coefficients
    if opt.settings.rule.name == "normalized":
        rms = math.sqrt(sum(v * v for v in c) / len(c))
        c = [v / rms for v in c]
    for j, p in enumerate(net.parameters()):
        group = opt.param_groups[j // 2]
        factor = group["eps"] * group["scale"]
        torch.testing.assert_close(probe[j], before[j] + factor * opt.direction(p, 0), rtol=0, atol=1e-12)
        move = -group["lr"] * (1e-3 / group["eps"]) * group["scale"]
        steps = [move * ci * opt.direction(p, i) for i, ci in enumerate(c)]
        wanted = [sum(steps) / len(c)] if not opt.settings.rule.whole_step else [0 * steps[0], *steps]
        assert any(torch.allclose(p.detach() - before[j], w, rtol=1e-6, atol=1e-10) for w in wanted)


def test_add_param_group_later_equals_from_the_start(case):
    net = Net()
    opt = case.build(net.first.parameters(), lr=0.0)
    for _ in range(4):
        opt.step(loss_of(net))
    opt.add_param_group({"params": net.second.parameters(), "lr": 0.01})
    whole = Net()
    other = case.build(whole.parameters(), lr=0.0)
    for _ in range(4):
        other.step(loss_of(whole))
    for _ in range(3):
        opt.step(loss_of(net))
        other.step(loss_of(whole))
        assert torch.equal(opt.direction(net.second.weight, 0), other.direction(whole.second.weight, 0))
        assert torch.equal(opt.direction(net.first.weight, 0), other.direction(whole.first.weight, 0))


def test_schedulers_move_lr_and_eps_also_as_tensors(case):
    net = Net()
    opt = case.build(net.parameters(), lr=torch.tensor(0.02))
    schedule = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.5, total_iters=2)
    for k in range(3):
        opt.step(loss_of(net))
        schedule.step()
        opt.param_groups[0]["eps"] = 1e-3 / (k + 1)
    assert float(opt.param_groups[0]["lr"]) == pytest.approx(0.01)
    opt.param_groups[0]["lr"] = math.nan
    with pytest.raises(InputError, match="lr="):
        opt.step(loss_of(net))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_losses_that_are_not_finite_never_reach_the_weights(case, bad):
    net = Net()
    opt = case.build(net.parameters(), lr=0.02)
    for call in range(opt.forwards_per_step):
        before, calls = weights(net), iter(range(1000))

        def closure(call=call, calls=calls):
            return torch.tensor(bad) if next(calls) == call else loss_of(net)()

        opt.step(closure)
        assert all(p.isfinite().all() for p in net.parameters())
        if opt.settings.directions == 1 and not opt.settings.momentum:
            assert distance(before, weights(net)) < 1e-6
            assert opt.last.rejected_probes == 1 and not opt.last.accepted
    opt.step(lambda: torch.tensor(bad))
    assert not opt.last.accepted and opt.last.rejected_probes == opt.settings.directions


class Stop(Exception):
    pass


@pytest.mark.parametrize("restore", ["arithmetic", "snapshot"])
def test_an_exception_at_any_call_leaves_everything_as_it_was(case, restore):
    net, mirror = Net(0.2), Net(0.2)
    build = {"lr": 0.02, "weight_decay": 0.1, "restore": restore}
    opt, twin = case.build(net.parameters(), **build), case.build(mirror.parameters(), **build)
    for _ in range(3):
        torch.manual_seed(4)
        opt.step(loss_of(net))
        torch.manual_seed(4)
        twin.step(loss_of(mirror))
    for call in range(opt.forwards_per_step):
        before, state, stream = weights(net), copy.deepcopy(opt.state_dict()), torch.get_rng_state()
        calls = iter(range(1000))

        def closure(call=call, calls=calls):
            if next(calls) == call:
                raise Stop
            return loss_of(net)()

        with pytest.raises(Stop):
            opt.step(closure)
        assert torch.equal(stream, torch.get_rng_state())
        assert distance(before, weights(net)) <= (0 if restore == "snapshot" else 3e-7 * opt.forwards_per_step)
        assert_same_state(state, opt.state_dict())
    if restore == "snapshot":
        torch.manual_seed(5)
        opt.step(loss_of(net))
        torch.manual_seed(5)
        twin.step(loss_of(mirror))
        assert same(weights(net), weights(mirror))


def assert_same_state(a, b):
    assert a["param_groups"] == b["param_groups"]
    for key, entry in a["state"].items():
        assert all(torch.equal(v, b["state"][key][k]) for k, v in entry.items())


def test_an_exception_in_estimate_or_in_the_bare_step_leaves_everything_as_it_was(case):
    net = Net()
    opt = case.build(net.parameters(), lr=0.02, weight_decay=0.1, restore="snapshot")
    before, state = weights(net), copy.deepcopy(opt.state_dict())
    calls = []

    def closure(limit):
        calls.append(None)
        if len(calls) > limit:
            raise Stop
        return loss_of(net)()

    opt.estimate(loss_of(net))
    with pytest.raises(Stop):
        opt.estimate(lambda: closure(0))
    assert same(before, weights(net))
    assert_same_state(state, opt.state_dict())
    with pytest.raises(InputError, match="nothing pending"):
        opt.step()
    if opt.settings.rule.whole_step:
        calls.clear()
        opt.estimate(lambda: closure(3))
        with pytest.raises(Stop):
            opt.step()
        assert same(before, weights(net))
        assert_same_state(state, opt.state_dict())


def test_micro_batches_by_estimate_equal_one_batch(case):
    one, many = Net().double(), Net().double()
    x = DATA.double()
    a, b = case.build(one.parameters(), lr=0.02), case.build(many.parameters(), lr=0.02)
    for _ in range(4):
        whole = a.step(loss_of(one, x))
        losses = [b.estimate(loss_of(many, part)) for part in x.chunk(4)]
        bare = b.step()
        assert b.last.coefficients == pytest.approx(a.last.coefficients, abs=1e-9, rel=1e-9)
        assert b.last.accepted == a.last.accepted
        assert bare.item() == pytest.approx(whole.item(), rel=1e-6)
        assert sum(losses).item() / 4 == pytest.approx(whole.item(), rel=1e-2)
    assert distance(weights(one), weights(many)) < 1e-9


def test_dropout_is_the_same_within_a_step_and_the_stream_moves_as_by_one_call(case):
    net = Net(0.5)
    opt = case.build(net.parameters(), lr=0.0, restore="snapshot")
    masks = []

    def closure():
        masks.append(torch.rand(3))
        return loss_of(net)()

    torch.manual_seed(3)
    opt.step(closure)
    first = masks.copy()
    assert all(torch.equal(m, first[0]) for m in first)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    closure()
    assert torch.equal(after, torch.get_rng_state())
    masks.clear()
    opt.step(closure)
    assert not torch.equal(masks[0], first[0])


def test_addresses_of_weights_stay_and_autograd_works_afterwards(case):
    net = Net()
    pointers = [p.data_ptr() for p in net.parameters()]
    opt = case.build(net.parameters(), lr=0.02)
    for _ in range(4):
        opt.step(loss_of(net))
    assert pointers == [p.data_ptr() for p in net.parameters()]
    loss_of(net)().backward()
    assert all(p.grad is not None for p in net.parameters())
    torch.optim.SGD(net.parameters(), lr=0.1).step()


def test_maximize_climbs_by_the_mirrored_step(case):
    down, up = Net().double(), Net().double()
    a, b = case.build(down.parameters(), lr=0.02), case.build(up.parameters(), lr=0.02, maximize=True)
    for _ in range(4):
        a.step(loss_of(down, DATA.double()))
        loss = b.step(lambda: -loss_of(up, DATA.double())())
        assert loss.item() == pytest.approx(-a.last.loss, rel=1e-6)
        assert b.last.coefficients == pytest.approx([-c for c in a.last.coefficients], rel=1e-9)
    assert distance(weights(down), weights(up)) < 1e-12


@pytest.mark.parametrize("kind", [float, "numpy", "float32"])
def test_closures_may_return_numbers(case, kind):
    import numpy as np

    wrap = {"numpy": lambda t: np.float64(t.item()), "float32": lambda t: t.float(), float: lambda t: t.item()}[kind]
    net, other = Net(), Net()
    a, b = case.build(net.parameters(), lr=0.02), case.build(other.parameters(), lr=0.02)
    a.step(loss_of(net))
    b.step(lambda: wrap(loss_of(other)()))
    assert distance(weights(net), weights(other)) < (1e-4 if kind == "float32" else 1e-12)


def test_a_loss_that_is_a_count_moves_the_weights(case):
    """Accuracy has no gradient; a wide probe still finds where it grows."""
    net = Net()
    labels = DATA @ torch.randn(10, 10, generator=torch.Generator().manual_seed(1))

    def errors():
        return int((net(DATA).argmax(1) != labels.argmax(1)).sum())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        opt = case.build(net.parameters(), lr=1e-3, eps=0.1, directions=8)
        before = weights(net)
        for _ in range(5):
            opt.step(errors)
    assert distance(before, weights(net)) > 0


def test_distributed_checkpoint_round_trip(case):
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    net = Net()
    opt = case.build(net.parameters(), lr=0.02, seed=4)
    for _ in range(4):
        opt.step(loss_of(net))
    saved = copy.deepcopy(get_optimizer_state_dict(net, opt))
    twin = copy.deepcopy(net)
    other = case.build(twin.parameters(), lr=0.5, seed=8)
    set_optimizer_state_dict(twin, other, saved)
    for _ in range(3):
        opt.step(loss_of(net))
        other.step(loss_of(twin))
    assert same(weights(net), weights(twin))


def test_decay_acts_once_before_the_first_forward_on_matrices_only(case):
    net, seen = Net(), []
    before = weights(net)
    opt = case.build(net.parameters(), lr=0.5, weight_decay=0.1, eps=1e-9, restore="snapshot")

    def closure():
        seen.append(weights(net))
        return torch.tensor(math.nan)

    opt.step(closure)
    for position in (seen[0], weights(net)):
        for old, new in zip(before, position, strict=True):
            torch.testing.assert_close(new, old * (0.95 if old.ndim == 2 else 1.0), rtol=1e-6, atol=1e-7)


def test_a_thousand_steps_of_decay_alone_follow_the_closed_form():
    net = Net()
    norm = net.first.weight.norm().item()
    opt = kronzo.KronZO(net.parameters(), lr=0.01, weight_decay=0.1)
    for _ in range(1000):
        opt.step(lambda: torch.tensor(math.nan))
    assert net.first.weight.norm().item() == pytest.approx(norm * (1 - 0.001) ** 1000, rel=0.01)


def test_batch_norm_buffers_stand_still_between_probes_and_move_once_a_step(case):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    opt = case.build(net.parameters(), lr=0.0, restore="snapshot").attach(net)
    seen = []

    def closure():
        seen.append((net[1].running_mean.clone(), int(net[1].num_batches_tracked)))
        return net(DATA).square().mean()

    opt.step(closure)
    assert all(torch.equal(m, seen[0][0]) and n == 0 for m, n in seen)
    assert int(net[1].num_batches_tracked) == 1 and net[1].running_mean.abs().sum() > 0
    opt.step(closure)
    assert int(net[1].num_batches_tracked) == 2


@pytest.mark.slow
def test_a_compiled_model_gives_the_coefficients_of_an_eager_one():
    net, twin = Net().double(), Net().double()
    x = DATA.double()
    compiled = torch.compile(net, backend="aot_eager")
    a, b = kronzo.KronZO(net.parameters(), directions=3), kronzo.KronZO(twin.parameters(), directions=3)
    for _ in range(3):
        a.step(lambda: compiled(x).square().mean())
        b.step(loss_of(twin, x))
        assert a.last.coefficients == pytest.approx(b.last.coefficients, abs=1e-7)


def test_layers_of_one_shape_are_uncorrelated(case):
    """<Z, Z'> has variance mn for independent directions of any space at unit scale."""
    params = [nn.Parameter(torch.zeros(24, 30)) for _ in range(6)]
    opt = case.build(params, lr=0.0)
    opt.step(lambda: 1.0)
    zs = torch.stack([opt.direction(p, i).flatten() for p in params for i in range(opt.settings.directions)])
    correlation = torch.corrcoef(zs) - torch.eye(len(zs))
    other = torch.arange(len(zs)) // opt.settings.directions
    between = correlation[other[:, None] != other[None, :]]
    assert between.abs().max() < 6 / 720**0.5 and between.square().mean().sqrt() < 1.5 / 720**0.5
