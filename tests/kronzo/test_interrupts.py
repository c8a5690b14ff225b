"""Ctrl-C at any operation of a step, and a sweep that breaks off: weights are at theta or after the whole step."""

import contextlib
import copy
import itertools
import signal
import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import kronzo
from kronzo.interrupts import uninterrupted
from kronzo.spaces.lowrank import LowRankSpace

CASES = [
    (kronzo.KronZO, {"refresh_every": 2, "weight_decay": 0.1}, (6, 8)),
    (kronzo.KronZO, {"momentum": 0.5}, (6, 8)),
    (kronzo.LOZO, {"rule": "directional", "directions": 2, "restore": "snapshot"}, (9, 8)),
    (kronzo.MeZO, {"weight_decay": 0.1}, (260, 260)),
    (kronzo.MeZO, {"weight_decay": 0.1, "restore": "snapshot"}, (260, 260)),
]


@pytest.fixture(autouse=True)
def python_raises_on_ctrl_c():
    """As at a terminal: a process that was started in the background without job control ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class PressAt(TorchDispatchMode):
    """Presses Ctrl-C at the n-th operation."""

    def __init__(self, n):
        super().__init__()
        self.left = n

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.left -= 1
        out = func(*args, **(kwargs or {}))
        if self.left == 0:
            signal.raise_signal(signal.SIGINT)
        return out


def weights(params):
    return [p.detach().clone() for p in params]


def distance(a, b):
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("method", "keywords", "shape"), CASES)
def test_ctrl_c_at_any_operation_leaves_no_half_done_step(method, keywords, shape):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(s)) for s in (shape, (5,))]
    opt = method(params, lr=0.01, **keywords)

    def loss(params=params):
        return sum(p.square().mean() for p in params)

    opt.step(loss)
    allowed, undone = (0.0 if keywords.get("restore") == "snapshot" else 1e-6), 0
    for n in itertools.count(1):
        before, step, (twins, twin) = weights(params), opt.param_groups[0]["step"], copy.deepcopy((params, opt))
        with contextlib.suppress(KeyboardInterrupt), PressAt(n) as press:
            opt.step(loss)
        if done := opt.param_groups[0]["step"] - step:
            twin.step(lambda twins=twins: loss(twins))
            before = weights(twins)
        assert distance(weights(params), before) <= allowed, n
        if press.left > 0:
            break
        undone += not done
    assert n > 20 and undone >= 5
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_while_a_failed_step_is_undone():
    params = [nn.Parameter(torch.ones(6, 8)), nn.Parameter(torch.ones(8, 6))]
    opt = kronzo.KronZO(params, lr=0.01, weight_decay=0.1)
    before = weights(params)
    for n in itertools.count(1):
        with contextlib.suppress(KeyboardInterrupt, ZeroDivisionError), PressAt(n) as press:
            opt.step(lambda: 1 / 0)
        assert distance(weights(params), before) <= 1e-6, n
        if press.left > 0:
            break
    assert n > 5
    opt.step(lambda: 1.0)


@pytest.mark.parametrize("at", range(1, 10))
def test_a_sweep_that_breaks_off_is_taken_back(monkeypatch, at):
    """A weight of three is refused: those before it have moved, those behind it have not."""
    params = [nn.Parameter(torch.randn(9, 8, generator=torch.Generator().manual_seed(k))) for k in range(3)]
    opt = kronzo.LOZO(params, lr=0.01)
    before, calls, add = weights(params), itertools.count(1), LowRankSpace.add_rows_

    def breaking(*args):
        if next(calls) == at:
            raise MemoryError
        add(*args)

    monkeypatch.setattr(LowRankSpace, "add_rows_", breaking)
    with pytest.raises(MemoryError):
        opt.step(lambda: sum(p.square().mean() for p in params))
    assert distance(before, weights(params)) < 1e-6
    opt.step(lambda: sum(p.square().mean() for p in params))


def test_what_was_held_back_arrives_when_the_outermost_block_ends():
    seen = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            seen.append("inner")
        seen.append("outer")
    assert seen == ["inner", "outer"]


def test_other_threads_are_left_alone():
    seen = []

    def work():
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
