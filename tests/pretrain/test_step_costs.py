"""Seconds by part, with a clock that only forwards, backwards and looking at it move: every part is then known."""

import pytest
import torch
from torch import nn

import kronzo
from kronzo.pretrain.step_costs import BACKWARD, FORWARDS, SEARCH, UPDATE, step_seconds

FORWARD, GRADIENT, STEP = 1.0, 100.0, 10_000.0


class Clock:
    """Time that passes by what happens: 1 s a forward, 100 s a backward, 10 000 s an AdamW step."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


class Tick(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, clock):
        ctx.clock = clock
        clock.seconds += FORWARD
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.clock.seconds += GRADIENT
        return gradient, None


@pytest.fixture
def parts():
    clock, model = Clock(), nn.Linear(6, 4)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-7)
    adamw.register_step_pre_hook(lambda *_: setattr(clock, "seconds", clock.seconds + STEP))
    optimizers = {
        "adamw": adamw,
        "average": kronzo.KronZO(model.parameters(), lr=1e-7, directions=3),
        "directional": kronzo.KronZO(model.parameters(), lr=1e-7, directions=3, rule="directional"),
    }
    frame = step_seconds(
        model, lambda: Tick.apply(model(torch.ones(2, 6)).square().mean(), clock), optimizers, rounds=4, clock=clock
    )
    assert (frame.groupby(["name", "part"])["round"].unique().map(list) == [[1, 2, 3, 4]] * 7).all()
    return frame.groupby(["name", "part"])["seconds"].unique().map(list).to_dict()


def test_a_first_order_step_is_a_forward_a_backward_and_an_update(parts):
    assert parts["adamw", FORWARDS] == [FORWARD]
    assert parts["adamw", BACKWARD] == [GRADIENT]
    assert parts["adamw", UPDATE] == [STEP]


def test_a_zeroth_order_step_is_its_forwards_and_the_rest(parts):
    assert parts["average", FORWARDS] == [6 * FORWARD]
    assert parts["directional", FORWARDS] == [10 * FORWARD]
    assert parts["average", SEARCH] == parts["directional", SEARCH] == [0.0]


def test_processor_seconds_are_counted_by_default():
    model = nn.Linear(6, 4)
    optimizer = kronzo.MeZO(model.parameters(), lr=1e-7)
    frame = step_seconds(model, lambda: model(torch.ones(2, 6)).square().mean(), {"mezo": optimizer}, rounds=2)
    assert len(frame) == 4 and (frame["seconds"] > 0).all()
