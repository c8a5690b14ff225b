"""What the processes of test_distributed.py do; run as `python ranks.py RANK WORLD FILE JOBS`."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback

import torch
import torch.distributed as dist
from torch import nn

import kronzo
from kronzo import InputError

DATA = torch.randn(24, 10, generator=torch.Generator().manual_seed(7)).double()
KINDS = {
    "average": {"directions": 4},
    "directional": {"directions": 4, "rule": "directional", "window": 3},
    "normalized": {"directions": 4, "rule": "normalized"},
    "momentum": {"directions": 4, "momentum": 0.5},
    "one-sided": {"directions": 4},
    "lozo": {"directions": 4},
    "five": {"directions": 5},
    "split": {"directions": 4, "data": "split"},
}


def start(world, jobs, folder, program=__file__):
    """Run the jobs of a program like this one in `world` processes that meet in `folder`, which is returned."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(world), str(folder / "meeting"), *jobs],
            stderr=subprocess.PIPE, env=environment,
        )
        for rank in range(world)
    ]  # fmt: skip
    said = [child.communicate(timeout=300)[1].decode() for child in children]
    assert all(child.returncode == 0 for child in children), "\n".join(said)
    return folder


def make(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 12), nn.Tanh(), nn.Linear(12, 10)).to(dtype)


def build(net, kind, **keywords):
    method = {"one-sided": kronzo.FZOO, "lozo": kronzo.LOZO}.get(kind, kronzo.KronZO)
    return method(net.named_parameters(), lr=0.02, seed=3, **{**KINDS[kind], **keywords})


def loss_of(net, x):
    x = x.to(next(net.parameters()).dtype)
    return lambda i=None: net(x if i is None else x.chunk(4)[i]).double().square().mean()


def weights(net):
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def everyones(values):
    found = [torch.empty_like(values) for _ in range(dist.get_world_size())]
    dist.all_gather(found, values)
    return found


def run(kind, parallel, batch_of, steps=8, dtype=torch.float64, **keywords):
    """Weights and reports of a run on this rank; `batch_of(step)` gives its rows."""
    net = make(dtype)
    opt = build(net, kind, parallel=parallel, **keywords)
    reports = []
    for step in range(steps):
        rows = batch_of(step)
        opt.step(loss_of(net, rows), weight=len(rows))
        reports.append(opt.last)
    found = weights(net)
    assert all(torch.equal(found, other) for other in everyones(found)), "ranks differ"
    return found, reports


def rows_of(step, shard, shards):
    """Unequal shares: the last one is larger."""
    rows = DATA.roll(step, 0)
    low, high = shard * (24 // shards) - (shard > 0) * 2, (shard + 1) * (24 // shards) - 2 * (shard + 1 < shards)
    return rows[low:high]


def main(rank, world, jobs):
    torch.set_num_threads(1)
    if "data" in jobs:
        for kind in ("average", "directional", "normalized", "momentum", "one-sided", "lozo"):
            found, reports = run(kind, "data", lambda step: rows_of(step, rank, world))
            torch.save((found, reports), f"data-{kind}-{rank}.pt")
        found, reports = run("directional", None, lambda step: rows_of(step, rank, world), dtype=torch.float32)
        torch.save((found, reports), f"data-float32-{rank}.pt")
        run("average", "data", lambda step: rows_of(step, rank, world), steps=20, dtype=torch.float32)
    if "directions" in jobs:
        for kind in ("average", "directional", "normalized", "momentum", "one-sided", "lozo", "five", "split"):
            found, reports = run(kind, "directions", lambda step: DATA.roll(step, 0))
            torch.save((found, reports), f"directions-{kind}-{rank}.pt")
    if "both" in jobs:
        for kind in ("average", "directional", "five"):
            found, reports = run(kind, 2, lambda step: rows_of(step, rank // 2, 2))
            torch.save((found, reports), f"both-{kind}-{rank}.pt")
        with_error("five", lambda: run("five", 2, lambda step: DATA, rule="directional"), "multiple of 2")
    if "refusals" in jobs:
        refusals(rank, world)
    if "micro" in jobs:
        micro(rank, world)


def with_error(name, function, words):
    try:
        function()
    except InputError as error:
        assert words in str(error), f"{name}: {error}"
    else:
        raise AssertionError(f"{name}: nothing was raised")


def refusals(rank, world):
    net = make()
    opt = build(net, "average", parallel="directions")
    with_error("batch", lambda: opt.step(loss_of(net, DATA[rank:])), "same batch")
    before = weights(make())
    assert torch.equal(weights(net), before), "a refused step moved the weights"
    opt.step(loss_of(net, DATA))

    net = make()
    opt = build(net, "average")
    opt.check_every = 2
    for _ in range(3):
        opt.step(loss_of(net, DATA[rank::world]))
    if rank == world - 1:
        with torch.no_grad():
            net[2].weight[3, 4] += 1e-9
    opt.step(loss_of(net, DATA[rank::world]))
    words = f"rank {world - 1} differs from rank 0 in 2.weight before step 4"
    with_error("weights", lambda: opt.step(loss_of(net, DATA)), words)

    net = make()
    opt = build(net, "average")
    opt.param_groups[0]["lr"] = 0.02 + 0.01 * (rank == 1)
    with_error("lr", lambda: opt.step(loss_of(net, DATA)), "rank 1 differs from rank 0 in lr before step 0")

    net = make()
    opt = build(net, "average")
    bad = float("nan") if rank == world - 1 else None
    opt.step(lambda: bad if bad is not None else loss_of(net, DATA)())
    assert not opt.last.accepted and opt.last.rejected_probes == 4, "one rank's NaN is everyone's"
    assert torch.equal(everyones(weights(net))[0], weights(net))


def micro(rank, world):
    """Ranks may join different numbers of micro-batches: the mean of each counts by its weight."""
    for kind in ("average", "directional"):
        net = make()
        opt = build(net, kind)
        for step in range(4):
            rows = rows_of(step, rank, world)
            for part in rows.chunk(rank + 1):
                opt.estimate(loss_of(net, part))
            opt.step(weight=len(rows))
        torch.save((weights(net), opt.last), f"micro-{kind}-{rank}.pt")


if __name__ == "__main__":
    place, number, file, *work = sys.argv[1:]
    os.chdir(os.path.dirname(file))
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(place), world_size=int(number))
    try:
        main(int(place), int(number), work)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    dist.destroy_process_group()
