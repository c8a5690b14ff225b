"""The log of scalars rebuilds weights and state, for every method of the registry."""

import json
import math
import warnings

import pytest
import torch
from registry import CASES
from torch import nn

import kronzo
from kronzo import InputError, replay

DATA = torch.randn(16, 10, generator=torch.Generator().manual_seed(7))


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 10))


def loss_of(net):
    dtype = next(net.parameters()).dtype
    return lambda: net(DATA.to(dtype)).double().square().mean()


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def build(case, net, **keywords):
    groups = [{"params": net[0].parameters(), "scale": 2.0}, {"params": net[2].parameters(), "lr": 0.01}]
    return case.build(groups, **{"lr": 0.02, "weight_decay": 0.01, "seed": 5, **keywords})


def run(case, path, steps=11, dtype=torch.float32, **keywords):
    """A run with a schedule, a rejected probe and a step that is not taken; its weights and state after every step."""
    net = make().to(dtype)
    opt = build(case, net, **keywords)
    journal, schedule = replay.Journal(opt), torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    states, calls = [(weights(net), opt.state_dict())], iter(range(10**6))
    with path.open("w") as file:
        file.write(json.dumps(journal.header()) + "\n")
        for step in range(steps):
            bad = {4: lambda: math.nan, 6: lambda: math.nan if next(calls) == 0 else loss_of(net)()}
            opt.step(bad.get(step, loss_of(net)))
            file.write(json.dumps(journal.line()) + "\n")
            schedule.step()
            state = {"param_groups": [dict(g) for g in opt.state_dict()["param_groups"]]}
            kept = [{k: v.clone() for k, v in opt.state[p].items()} for p in net.parameters()]
            states.append((weights(net), state | {"kept": kept}))
    return states, net


@pytest.fixture(params=list(CASES))
def case(request):
    return CASES[request.param]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_with_snapshots_every_step_is_rebuilt_to_the_bit(case, dtype, tmp_path):
    decay = 0.0 if dtype == torch.bfloat16 else 0.01
    states, _ = run(case, tmp_path / "log", dtype=dtype, restore="snapshot", weight_decay=decay)
    net = make().to(dtype)
    opt = build(case, net, restore="snapshot", weight_decay=decay)
    log = replay.read(tmp_path / "log")
    assert not same(states[0][0], states[-1][0])
    for step in range(1, len(states)):
        replay.apply(opt, log, step)
        assert same(weights(net), states[step][0])
        for mine, theirs in zip(opt.state_dict()["param_groups"], states[step][1]["param_groups"], strict=True):
            assert (mine["step"], mine["window"]) == (theirs["step"], theirs["window"])
        for p, kept in zip(net.parameters(), states[step][1]["kept"], strict=True):
            assert all(torch.equal(opt.state[p][k], v) for k, v in kept.items())
    assert opt.last is None


def test_under_arithmetic_restore_it_stays_within_the_rounding(case, tmp_path):
    states, _ = run(case, tmp_path / "log", restore="arithmetic")
    net = make()
    opt = build(case, net, restore="arithmetic")
    log = replay.read(tmp_path / "log")
    replay.apply(opt, log)
    for p, w, start in zip(net.parameters(), states[-1][0], states[0][0], strict=True):
        drift = (p - w).abs().max().item()
        bound = replay.drift_bound(p, log.records, opt.forwards_per_step + 1)
        assert drift <= bound < 0.1 * (w - start).abs().max().item()


def test_a_worker_that_joins_late_goes_on_to_the_bit(case, tmp_path):
    """Checkpoint of step 5, the log from there to step 11, then steps of its own."""
    whole, late = make(), make()
    a, b = build(case, whole, restore="snapshot"), build(case, late, restore="snapshot")
    journal = replay.Journal(a)
    lines = [journal.header()]
    for step in range(11):
        if step == 5:
            late.load_state_dict(whole.state_dict())
            saved = json.loads(json.dumps(a.state_dict()["param_groups"]))
            b.load_state_dict(
                {
                    "param_groups": saved,
                    "state": {k: {n: t.clone() for n, t in e.items()} for k, e in a.state_dict()["state"].items()},
                }
            )
        a.step(loss_of(whole))
        lines.append(journal.line())
    (tmp_path / "log").write_text("".join(json.dumps(line) + "\n" for line in lines))
    replay.apply(b, replay.read(tmp_path / "log"))
    for _ in range(4):
        a.step(loss_of(whole))
        b.step(loss_of(late))
        assert a.last == b.last
    assert same(weights(whole), weights(late))


@pytest.mark.parametrize("window_rule", ["sliding", "replace_max", "accepted"])
def test_windows_of_every_rule(window_rule, tmp_path):
    case = CASES["kronzo-directional"]
    states, _ = run(case, tmp_path / "log", steps=14, window=3, window_rule=window_rule)
    log = replay.read(tmp_path / "log")
    assert [list(r.window) for r in log.records] == [s["param_groups"][0]["window"] for _, s in states[1:]]


@pytest.mark.parametrize("name", ["kronzo", "kronzo-directional"])
def test_fifty_thousand_steps_take_a_few_megabytes(name):
    """q = 1 averaging and the directional rule: one coefficient, one lr that a schedule moves, one best loss."""
    net, keywords = make(), {} if name == "kronzo-directional" else {"directions": 1}
    opt = CASES[name].build(net.parameters(), lr=0.02, **keywords)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 200)
    journal, size = replay.Journal(opt), 0
    for _ in range(200):
        opt.step(loss_of(net))
        size += len(json.dumps(journal.line())) + 1
        schedule.step()
    assert 50_000 * size / 200 < 6e6


def test_lines_hold_only_what_changed(tmp_path):
    net = make()
    opt = kronzo.KronZO(net.parameters(), lr=0.01, rule="directional", directions=2)
    journal = replay.Journal(opt)
    with pytest.raises(InputError, match="first step"):
        journal.line()
    opt.step(loss_of(net))
    assert set(journal.line()) >= {"step", "update", "lr", "eps", "scale", "weight_decay", "window"}
    opt.step(loss_of(net))
    assert set(journal.line()) <= {"step", "update", "best", "accepted"}
    opt.param_groups[0]["lr"] = 0.02
    opt.step(loss_of(net))
    assert journal.line()["lr"] == [0.02]


def written(tmp_path, lines):
    path = tmp_path / "log"
    path.write_text("".join(line + "\n" for line in lines))
    return path


def test_what_cannot_be_replayed_is_refused(tmp_path):
    case = CASES["lozo"]
    _, net = run(case, tmp_path / "log", steps=4)
    lines = (tmp_path / "log").read_text().splitlines()
    log = replay.read(tmp_path / "log")
    with pytest.raises(InputError, match="starts from"):
        replay.apply(build(case, net), log)
    fresh = make()
    for keywords, words in [
        ({"seed": 6}, "seed = 5"),
        ({"rank": 3}, "spaces"),
        ({"directions": 3}, "directions = 2"),
        ({"rule": "normalized"}, "rule"),
        ({"momentum": 0.5}, "momentum"),
    ]:
        with pytest.raises(InputError, match=words):
            replay.apply(build(case, fresh, **keywords), log)
    with pytest.raises(InputError, match="LOZO"):
        replay.apply(build(CASES["kronzo"], fresh), log)
    opt = build(case, fresh)
    with pytest.raises(InputError, match="from 0 to 4"):
        replay.apply(opt, log, 5)
    with pytest.raises(InputError, match="stands at step 0"):
        opt.replay(log.records[1])
    device = replay.Log(log.header | {"noise": "NVIDIA H200"}, log.records)
    with pytest.raises(InputError, match="NVIDIA H200"):
        replay.apply(opt, device)
    with pytest.warns(UserWarning, match="numpy 0"):
        replay.apply(opt, replay.Log(log.header | {"numpy": "0.1"}, log.records))
    with pytest.raises(InputError, match="no log"):
        replay.read(tmp_path / "absent")
    with pytest.raises(InputError, match="format"):
        replay.read(written(tmp_path, []))
    with pytest.raises(InputError, match="line 3 is damaged"):
        replay.read(written(tmp_path, [*lines[:2], "{nonsense", *lines[3:]]))
    with pytest.raises(InputError, match="out of order"):
        replay.read(written(tmp_path, [*lines[:2], *lines[3:]]))


def test_an_unfinished_last_line_is_left_out(tmp_path):
    run(CASES["lozo"], tmp_path / "log", steps=4)
    with (tmp_path / "log").open("a") as file:
        file.write('{"step": 4, "upd')
    assert len(replay.read(tmp_path / "log").records) == 4


def test_a_later_log_begins_where_its_optimizer_stood(tmp_path):
    net, twin = make(), make()
    a, b = (build(CASES["subzero"], n, restore="snapshot") for n in (net, twin))
    for _ in range(3):
        a.step(loss_of(net))
        b.step(loss_of(twin))
    journal = replay.Journal(a)
    lines = [journal.header()]
    for _ in range(3):
        a.step(loss_of(net))
        lines.append(journal.line())
    path = written(tmp_path, [json.dumps(line) for line in lines])
    replay.apply(b, replay.read(path))
    assert same(weights(net), weights(twin))
    with pytest.raises(InputError, match="from 3 to 6"):
        replay.apply(build(CASES["subzero"], make(), restore="snapshot"), replay.read(path))


def test_replay_says_nothing_when_versions_agree(tmp_path):
    run(CASES["mezo"], tmp_path / "log", steps=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay.apply(build(CASES["mezo"], make()), replay.read(tmp_path / "log"))
