"""Steps shared by processes of torch.distributed (gloo): the same update as one process, to the bit on every rank.

Few processes do many checks: starting one costs seconds. What they do stands in ranks.py.
"""

import math

import pytest
import ranks
import torch

import kronzo
from kronzo import distributed
from kronzo.pretrain import steps
from kronzo.pretrain.config import from_dict

KINDS = ["average", "directional", "normalized", "momentum", "one-sided", "lozo"]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return ranks.start(2, ["data", "directions", "micro", "refusals"], tmp_path_factory.mktemp("two"))


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return ranks.start(4, ["data", "directions", "both", "refusals"], tmp_path_factory.mktemp("four"))


def alone(kind, steps=8, **keywords):
    """One process on the whole batch."""
    net = ranks.make()
    opt = ranks.build(net, kind, **keywords)
    reports = []
    for step in range(steps):
        opt.step(ranks.loss_of(net, ranks.DATA.roll(step, 0)))
        reports.append(opt.last)
    return ranks.weights(net), reports


def of(folder, name, rank=0):
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=False)


def assert_like_one_process(folder, name, kind):
    """Same decisions, coefficients and weights as one process with the union batch, up to float64's rounding."""
    (found, reports), (expected, wanted) = of(folder, name), alone(kind)
    assert not torch.equal(expected, ranks.weights(ranks.make()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    for mine, theirs in zip(reports, wanted, strict=True):
        assert mine.coefficients == pytest.approx(theirs.coefficients, rel=1e-8, abs=1e-10)
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert (mine.accepted, mine.reason) == (theirs.accepted, theirs.reason)
        assert mine.record.window == pytest.approx(theirs.record.window)


def assert_data_parallel(folder):
    for kind in KINDS:
        assert_like_one_process(folder, f"data-{kind}", kind)
        (_, reports) = of(folder, f"data-{kind}")
        assert [r.forwards for r in reports] == [r.forwards for r in alone(kind)[1]]


def assert_direction_parallel(folder, world):
    """To the bit, where both leave from snapshots: the same losses, shared out."""
    for kind in [*KINDS, "five", "split"]:
        (found, reports), (expected, wanted) = of(folder, f"directions-{kind}"), alone(kind, restore="snapshot")
        assert torch.equal(found, expected), kind
        assert [r.coefficients for r in reports] == [r.coefficients for r in wanted]
        assert [r.record for r in reports] == [r.record for r in wanted]
        rule = reports[0].reason
        q = ranks.KINDS[kind]["directions"]
        own = -(-q // world)
        if kind in ("average", "five"):
            assert rule == "averaged" and [r.forwards for r in reports] == [2 * own + 1, *[2 * own] * 7]


def test_two_ranks_with_unequal_shards_take_the_step_of_the_union_batch(two):
    assert_data_parallel(two)


def test_two_ranks_share_directions_to_the_bit(two):
    assert_direction_parallel(two, 2)


def test_only_scalars_are_sent_and_their_bytes_are_reported(two):
    """Averaging joins its measurement once: (2 losses x 4 directions + a weight) x 8 bytes, beside the checks."""
    _, reports = of(two, "data-average")
    assert [r.sent_bytes for r in reports[1:]] == [8 * 9] * 7
    check = 8 * (4 + len([k for k in kronzo.KronZO([torch.zeros(2, 2)]).param_groups[0] if k != "params"]))
    assert reports[0].sent_bytes == 72 + check
    _, reports = of(two, "data-directional")
    assert {r.sent_bytes for r in reports[1:]} == {16 * 13 + 8 * 21}
    _, reports = of(two, "directions-average")
    assert {r.sent_bytes for r in reports[1:]} == {8 * 5}
    _, reports = of(two, "directions-directional")
    assert {r.sent_bytes for r in reports[1:]} == {8 * 11}


@pytest.mark.parametrize("kind", ["average", "directional"])
def test_ranks_may_join_different_numbers_of_micro_batches(two, kind):
    found, last = of(two, f"micro-{kind}")
    expected, wanted = alone(kind, steps=4)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert last.coefficients == pytest.approx(wanted[-1].coefficients, rel=1e-8, abs=1e-10)


@pytest.mark.slow
def test_four_ranks(four):
    assert_data_parallel(four)
    assert_direction_parallel(four, 4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["average", "directional", "five"])
def test_two_shards_of_two_ranks_that_share_directions(four, kind):
    assert_like_one_process(four, f"both-{kind}", kind)


def test_one_process_never_touches_torch_distributed(monkeypatch):
    net = ranks.make()
    opt = ranks.build(net, "average", parallel="directions")
    for name in ("get_rank", "get_world_size", "get_backend", "all_gather", "all_reduce", "broadcast"):
        monkeypatch.setattr(torch.distributed, name, lambda *_, **__: pytest.fail("torch.distributed was asked"))
    opt.step(ranks.loss_of(net, ranks.DATA), weight=3.0)
    assert opt.last.sent_bytes == 0 and distributed.world() == (0, 1)
    for wrong in (0.0, -1.0, math.nan):
        with pytest.raises(kronzo.InputError, match="weight"):
            opt.step(ranks.loss_of(net, ranks.DATA), weight=wrong)


def test_every_direction_has_one_rank_of_each_shard():
    for world, slots, q in [(4, 2, 5), (6, 3, 3), (8, 8, 33), (4, 1, 7)]:
        teams = [distributed.Team(rank, world // slots, slots, q, "auto") for rank in range(world)]
        for shard in range(world // slots):
            assert sorted(i for t in teams if t.shard == shard for i in t.mine) == list(range(q))


def test_a_batch_that_the_shards_cannot_share_is_refused(monkeypatch):

    for name, value in (("is_initialized", True), ("get_world_size", 2), ("get_rank", 1)):
        monkeypatch.setattr(torch.distributed, name, lambda value=value: value)
    opt = kronzo.KronZO([torch.nn.Parameter(torch.zeros(4, 4))])
    whole = {"optimizer": {"method": "kronzo"}, "budget": {"batch_size": 6, "accumulate": 3}}
    assert steps.share(from_dict(whole), opt) == (1, 2)
    with pytest.raises(kronzo.InputError, match="not a multiple of 2"):
        steps.share(from_dict({**whole, "budget": {"batch_size": 3}}), opt)
