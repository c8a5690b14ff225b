"""What the processes of test_sharded.py do; run as `python shards.py RANK WORLD FILE JOBS`.

Every rank holds a whole model beside the sharded one, and both are trained on the same share of the batch.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ranks import everyones, with_error
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import kronzo

BATCH = torch.randint(0, 7, (8, 6), generator=torch.Generator().manual_seed(1))
EXACT = {
    "average": (kronzo.KronZO, {"directions": 2}),
    "directional": (kronzo.KronZO, {"directions": 3, "rule": "directional", "window": 3}),
    "momentum and decay": (kronzo.KronZO, {"directions": 2, "momentum": 0.5, "weight_decay": 0.1}),
    "snapshot": (kronzo.KronZO, {"restore": "snapshot", "weight_decay": 0.1}),
    "auto": (kronzo.KronZO, {"lr": 1e-2}),
    "dense": (kronzo.MeZO, {}),
    "dense, snapshot": (kronzo.MeZO, {"restore": "snapshot"}),
    "dense momentum": (kronzo.MeZO, {"momentum": 0.5}),
    "one-sided": (kronzo.FZOO, {"directions": 2, "lr": 1e-4}),
}
CLOSE = {
    "lozo": (kronzo.LOZO, {"rank": 1}),
    "subzero": (kronzo.SubZero, {"rank": 1}),
    "tezo": (kronzo.TeZO, {"rank": 1}),
}


class Net(nn.Module):
    """Matrices with rows that do not divide, vectors, 3-D and 4-D weights, a tied head, one above a block."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 18)
        self.image = nn.Sequential(nn.Conv2d(1, 5, 3), nn.Tanh())
        self.line = nn.Sequential(nn.Conv1d(5, 3, 2), nn.Flatten(), nn.Linear(189, 18))
        self.two = nn.Sequential(nn.Linear(18, 2), nn.Tanh(), nn.Linear(2, 18, bias=False), nn.LayerNorm(18))
        self.wide = nn.Linear(18, 3700)
        self.back = nn.Linear(3700, 18, bias=False)
        self.head = nn.Linear(18, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x):
        h = self.embed(x)
        h = h + self.line(self.image(h[:, None]).flatten(2))[:, None]
        return self.head(h + self.two(h) + self.back(torch.tanh(self.wide(h))))


def pair(dtype=torch.float32, **options):
    """A whole model and its sharded twin."""
    torch.manual_seed(0)
    whole = Net().to(dtype)
    split = copy.deepcopy(whole)
    for block in (split.image, split.line, split.two):
        fully_shard(block, **options)
    return whole, fully_shard(split, **options)


def loss_of(net, x):
    return lambda: nn.functional.cross_entropy(net(x).flatten(0, 1).float(), x.roll(1, 1).flatten())


def whole_of(split):
    return [p.full_tensor() for p in split.parameters()]


def assert_same(whole, split, ulps=0):
    for (name, expected), found in zip(whole.named_parameters(), whole_of(split), strict=True):
        if not ulps:
            assert torch.equal(found, expected), f"{name}: {(found - expected).abs().max()}"
            continue
        off = (found - expected).abs().max() / expected.abs().max() / torch.finfo(expected.dtype).eps
        assert off <= ulps, f"{name}: {off} ulp"


def build(net, method, **keywords):
    return method(net.named_parameters(), **{"lr": 1e-3, "seed": 5, **keywords}).attach(net)


def train(kind, rank, world, steps=6, dtype=torch.float32):
    method, keywords = (EXACT | CLOSE)[kind]
    whole, split = pair(dtype)
    ours, theirs = build(whole, method, **keywords), build(split, method, **keywords)
    start = whole_of(split)
    rows = BATCH[rank::world]
    for _ in range(steps if kind in EXACT else 1):
        with torch.no_grad():
            split(rows)
        for opt, net in ((ours, whole), (theirs, split)):
            opt.step(loss_of(net, rows))
        assert kind in CLOSE or ours.last.record == theirs.last.record, (ours.last, theirs.last)
    assert kind == "directional" or not all(map(torch.equal, start, whole_of(split))), "nothing moved"
    assert_same(whole, split, 0 if kind in EXACT else 2)
    found = everyones(torch.cat([p.flatten() for p in whole_of(split)]))
    assert all(torch.equal(found[0], other) for other in found)
    with torch.no_grad():
        assert torch.equal(loss_of(whole, rows)(), loss_of(split, rows)()) or kind in CLOSE


def saved(rank, world):
    """State and log of a sharded run are those of a whole one: each continues the other."""
    keywords = {"directions": 2, "momentum": 0.5, "refresh_every": 3}
    whole, split = pair()
    ours, theirs = build(whole, kronzo.KronZO, **keywords), build(split, kronzo.KronZO, **keywords)
    rows, journal = BATCH[rank::world], kronzo.replay.Journal(theirs)
    assert kronzo.replay.Journal(ours).header() == journal.header()
    lines = [json.dumps(journal.header())]
    for _ in range(4):
        theirs.step(loss_of(split, rows))
        lines.append(json.dumps(journal.line()))
    _, other = pair()
    replayed(build(other, kronzo.KronZO, **keywords), lines, f"log-{rank}.jsonl")
    for found, expected in zip(whole_of(other), whole_of(split), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    state = theirs.state_dict()
    assert not any(isinstance(v, DTensor) for entry in state["state"].values() for v in entry.values())
    with torch.no_grad():
        for p, value in zip(whole.parameters(), whole_of(split), strict=True):
            p.copy_(value)
    ours.load_state_dict(state)
    for opt, net in ((ours, whole), (theirs, split)):
        for _ in range(3):
            opt.step(loss_of(net, rows))
    assert_same(whole, split)


def replayed(optimizer, lines, path):
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")
    kronzo.replay.apply(optimizer, kronzo.replay.read(path))


def replay(rank, world):
    """The log of a sharded run with snapshots gives its weights to the bit, to a sharded and to a whole model."""
    for dtype, method in (
        (torch.float32, kronzo.KronZO),
        (torch.bfloat16, kronzo.KronZO),
        (torch.float32, kronzo.MeZO),
    ):
        keywords = {"restore": "snapshot", "momentum": 0.5, "lr": 1e-2}
        keywords |= {"refresh_every": 3} if method is kronzo.KronZO else {}
        _, split = pair(dtype)
        opt, rows, start = build(split, method, **keywords), BATCH[rank::world], whole_of(split)
        journal = kronzo.replay.Journal(opt)
        lines = [json.dumps(journal.header())]
        for _ in range(5):
            opt.step(loss_of(split, rows))
            lines.append(json.dumps(journal.line()))
        assert not any(map(torch.equal, start, whole_of(split)))
        whole, other = pair(dtype)
        for net in (whole, other):
            replayed(build(net, method, **keywords), lines, f"log-{rank}.jsonl")
        assert_same(whole, split)
        assert_same(whole, other)


def checkpointed(rank, world):
    """Through torch.distributed.checkpoint: what was saved off the refresh grid goes on as if it had not stopped."""
    keywords = {"directions": 2, "momentum": 0.5, "refresh_every": 3}
    (_, split), (_, other) = pair(), pair()
    ours, theirs = build(split, kronzo.KronZO, **keywords), build(other, kronzo.KronZO, **keywords, lr=0.5)
    rows = BATCH[rank::world]
    for _ in range(4):
        ours.step(loss_of(split, rows))
    theirs.step(loss_of(other, rows))
    model, optimizer = get_state_dict(split, ours)
    dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id="checkpoint")
    model, optimizer = get_state_dict(other, theirs)
    dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id="checkpoint")
    set_state_dict(other, theirs, model_state_dict=model, optim_state_dict=optimizer)
    for opt, net in ((ours, split), (theirs, other)):
        for _ in range(4):
            opt.step(loss_of(net, rows))
    assert ours.last == theirs.last and ours.last.step == 7
    for found, expected in zip(whole_of(other), whole_of(split), strict=True):
        assert torch.equal(found, expected)


def broken(rank, world):
    """A closure that raises in the middle of a forward leaves rows and modules as before the step."""

    def run(options, **keywords):
        whole, split = pair(**options)
        opt, rows, before = build(split, kronzo.KronZO, **keywords), BATCH[rank::world], whole_of(split)
        calls = iter(range(9))

        def stop(*_):
            if next(calls) == 1:
                raise RuntimeError("in the middle")

        handle = split.back.register_forward_hook(stop)
        try:
            opt.step(loss_of(split, rows))
        except RuntimeError as error:
            assert str(error) == "in the middle"
        handle.remove()
        for found, expected in zip(whole_of(split), before, strict=True):
            bound = 0 if keywords.get("restore") == "snapshot" else 2e-7 * expected.abs().max()
            assert (found - expected).abs().max() <= bound
        with torch.no_grad():
            whole(rows), split(rows)
        ours = build(whole, kronzo.KronZO, **keywords)
        if keywords.get("restore") == "snapshot":
            for each, net in ((ours, whole), (opt, split)):
                each.step(loss_of(net, rows))
            assert_same(whole, split)

    run({}, restore="snapshot")
    run({"reshard_after_forward": False}, restore="snapshot")
    run({})


def placements(rank, world):
    mesh = init_device_mesh("cpu", (world,))
    matrix = torch.arange(24.0).view(6, 4)
    for placement in (Shard(1), Partial()):
        given = DTensor.from_local(matrix, mesh, [placement])
        with_error(placement, lambda given=given: kronzo.KronZO([nn.Parameter(given)]), "Shard(0)")
    copies = nn.Linear(4, 6, bias=False)
    copies.weight = nn.Parameter(distribute_tensor(matrix.clone(), mesh, [Replicate()]))
    opt = kronzo.KronZO([copies.weight])
    with_error("unattached", lambda: opt.step(lambda: 0.0), "opt.attach(model)")
    with_error("other model", lambda: opt.attach(nn.Linear(2, 2)).step(lambda: 0.0), "not in the attached model")
    opt.attach(copies).step(lambda: copies.weight.to_local().square().mean())
    assert opt.last.accepted and not torch.equal(copies.weight.to_local(), matrix)
    _, split = pair()
    words = 'use parallel="data" with fully_shard'
    with_error("slots", lambda: build(split, kronzo.KronZO, directions=4, parallel="directions"), words)


def replicas(rank, world):
    """Rows divided among two, each half twice: replicas are compared and named."""
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "rows"))
    whole, split = pair(mesh=mesh)
    ours, theirs = build(whole, kronzo.KronZO), build(split, kronzo.KronZO)
    rows = BATCH[rank::world]
    for opt, net in ((ours, whole), (theirs, split)):
        opt.step(loss_of(net, rows))
    assert_same(whole, split)
    theirs.check_every = 1
    if rank == world - 1:
        with torch.no_grad():
            split.wide.weight.to_local()[0, 0] += 1
    with_error("replicas", lambda: theirs.step(loss_of(split, rows)), "differs from rank 0 in wide.weight")


def main(rank, world, jobs):
    torch.set_num_threads(1)
    if "train" in jobs:
        for kind in (*EXACT, *CLOSE):
            train(kind, rank, world)
    if "bfloat16" in jobs:
        train("auto", rank, world, steps=2, dtype=torch.bfloat16)
    for job in (saved, replay, checkpointed, broken, placements, replicas):
        if job.__name__ in jobs:
            job(rank, world)


if __name__ == "__main__":
    place, number, file, *work = sys.argv[1:]
    os.chdir(os.path.dirname(file))
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=int(place), world_size=int(number))
    try:
        main(int(place), int(number), work)
        dist.barrier()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)
