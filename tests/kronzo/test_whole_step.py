"""Every method against its naive twin, and what a step must be for any method: applied equals measured."""

import math

import pytest
import torch
from registry import CASES, settings

SHAPES = [(8, 9), (7,), (6, 4), (4, 3, 2), (), (1, 1), (5, 13)]


class Landscape:
    """A smooth loss over parameters of many shapes; not symmetric, so that signs and transposes show."""

    def __init__(self, dtype=torch.float64, seed=0, shapes=SHAPES):
        rng = torch.Generator().manual_seed(seed)
        self.params = [torch.nn.Parameter(torch.randn(s, generator=rng, dtype=torch.float64).to(dtype)) for s in shapes]
        self.targets = [torch.randn(s, generator=rng, dtype=torch.float64).to(dtype) for s in shapes]

    def loss(self):
        parts = [((p - t).square() * (1 + 0.3 * p.sin())).sum() for p, t in zip(self.params, self.targets, strict=True)]
        return sum(parts) / 100


def cosine(a, b):
    a, b = (torch.cat([x.flatten().double() for x in xs]) for xs in (a, b))
    return (a @ b / (a.norm() * b.norm())).item()


@pytest.mark.parametrize("name", CASES)
def test_the_step_of_the_naive_twin(name):
    from oracles import NaiveZeroOrder

    case = CASES[name]
    fast, slow = Landscape(), Landscape()
    opt = case.build(fast.params, lr=0.05, eps=1e-3, weight_decay=0.1, seed=5)
    twin = NaiveZeroOrder(
        [p.data for p in slow.params], case.z, lr=0.05, eps=1e-3, weight_decay=0.1, seed=5, **settings(case)
    )
    for step in range(10):
        opt.step(fast.loss)
        twin.step(slow.loss)
        assert opt.last.coefficients == pytest.approx(twin.c, rel=1e-4, abs=1e-6), step
        if twin.accepted is not None:
            assert opt.last.accepted == twin.accepted, step
        for j, (p, q) in enumerate(zip(fast.params, slow.params, strict=True)):
            torch.testing.assert_close(p.data, q.data, rtol=1e-5, atol=1e-6, msg=f"step {step} parameter {j}")


@pytest.mark.parametrize("window_rule", ["sliding", "replace_max", "accepted"])
def test_each_window_rule_accepts_what_the_naive_twin_accepts(window_rule):
    from oracles import NaiveZeroOrder, kronecker

    import kronzo

    fast, slow, keywords = Landscape(), Landscape(), {"directions": 2, "window": 2, "window_rule": window_rule}
    opt = kronzo.KronZO(fast.params, lr=0.3, rule="directional", refresh_every=3, **keywords)
    twin = NaiveZeroOrder(
        [p.data for p in slow.params], kronecker, lr=0.3, eps=1e-3, rule="directional", refresh_every=3, **keywords
    )
    shift, taken = torch.Generator().manual_seed(1), []
    for step in range(30):
        noise = torch.randn((), generator=shift, dtype=torch.float64)
        opt.step(lambda noise=noise: fast.loss() + noise)
        twin.step(lambda noise=noise: slow.loss() + noise)
        assert opt.last.accepted == twin.accepted and opt.param_groups[0]["window"] == pytest.approx(twin.window), step
        taken.append(opt.last.accepted)
    assert 0 < sum(taken) < 30


@pytest.mark.parametrize("name", [n for n in CASES if "momentum" not in n])
@pytest.mark.parametrize("restore", ["arithmetic", "snapshot"])
def test_applied_equals_measured(name, restore):
    case = CASES[name]
    land = Landscape(torch.float32)
    opt = case.build(land.params, lr=0.05, seed=3, restore=restore)
    every = opt.settings.refresh_every or 3
    for step in range(3 * every):
        before = [p.detach().clone() for p in land.params]
        opt.step(land.loss)
        moved = [p.detach() - b for p, b in zip(land.params, before, strict=True)]
        c = opt.last.coefficients
        if opt.settings.rule.whole_step:
            if not opt.last.accepted:
                drift = 0.0 if restore == "snapshot" else 2e-6
                assert all(m.abs().max() <= drift for m in moved)
                continue
            zs = [[opt.direction(p, i) for p in land.params] for i in range(len(c))]
            assert max(abs(cosine(moved, z)) for z in zs) > 0.9999, step
        else:
            sums = [sum(-ci * opt.direction(p, i) for i, ci in enumerate(c)) for p in land.params]
            assert cosine(moved, sums) > 0.9999, step


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].keywords.get("rule") == "directional"])
def test_the_accepted_candidate_is_the_evaluated_one_bit_for_bit_with_snapshots(name):
    land = Landscape(torch.float32)
    opt = CASES[name].build(land.params, lr=0.05, seed=1, restore="snapshot")
    seen = []

    def closure():
        seen.append([p.detach().clone() for p in land.params])
        return land.loss()

    accepted = 0
    for _ in range(6):
        seen.clear()
        opt.step(closure)
        accepted += opt.last.accepted
        position = seen[0] if not opt.last.accepted else None
        found = [all(torch.equal(a, p) for a, p in zip(s, land.params, strict=True)) for s in seen]
        assert any(found)
        assert position is None or found[0]
        if opt.last.accepted:
            assert land.loss().item() == opt.last.candidate_loss
    assert accepted >= 3


@pytest.mark.parametrize("name", CASES)
def test_sweeps_and_forwards(name):
    land, calls = Landscape(torch.float32), []
    opt = CASES[name].build(land.params, lr=0.01)
    q, rule = opt.settings.directions, opt.settings.rule

    def closure():
        calls.append(None)
        return land.loss()

    for _ in range(5):
        calls.clear()
        opt.step(closure)
        assert len(calls) == opt.last.forwards == opt.forwards_per_step
        assert opt.forwards_per_step == (3 * q + 1 if rule.whole_step else q + 1 if rule.one_sided else 2 * q)
        assert opt.last.sweeps <= (3 * q + 1 if rule.whole_step else 2 * q + 1)


@pytest.mark.parametrize("name", ["kronzo", "lozo", "subzero", "tezo", "mezo"])
def test_unbiased_on_a_linear_loss(name):
    """E[c Z] = G within 4 standard errors, in the norm: E||mean - G||^2 = trace of the covariance / samples."""
    g = torch.randn(6, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w = torch.nn.Parameter(torch.zeros(6, 8, dtype=torch.float64))
    case = CASES[name]
    samples, q = 40, 100
    estimates = []
    for seed in range(samples):
        opt = case.build([w], lr=1.0, directions=q, seed=seed, **({"rank": 2} if "zero" in name else {}))
        w.data.zero_()
        opt.step(lambda: (w * g).sum())
        estimates.append(-w.detach().clone())
    stack = torch.stack(estimates)
    mean, variance = stack.mean(0), stack.var(0)
    z = (mean - g) / (variance / samples).sqrt()
    assert z.abs().max() < 4.5
    assert z.square().mean() < 2.0


def test_the_second_moment_of_kronecker_directions():
    """E||<G,Z>Z||^2 = (m1 n1 + 2)(m2 n2 + 2) ||G||^2 within 3 standard errors."""
    from oracles import algorithm_1, kronecker

    import kronzo

    m, n = 12, 10
    (m1, m2), (n1, n2) = algorithm_1(m), algorithm_1(n)
    g = torch.randn(m, n, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    w = torch.nn.Parameter(torch.zeros(m, n, dtype=torch.float64))
    opt = kronzo.KronZO([w], lr=1.0, refresh_every=1)
    values = []
    for _ in range(3000):
        w.data.zero_()
        opt.step(lambda: (w * g).sum())
        values.append(w.detach().square().sum().item())
    values = torch.tensor(values)
    expected = (m1 * n1 + 2) * (m2 * n2 + 2) * g.square().sum().item()
    assert abs(values.mean() - expected) < 3 * values.std() / math.sqrt(len(values))
    last = kronecker(0, 2999, 2999, 0, 0, (m, n))
    torch.testing.assert_close(opt.direction(w, 0), last, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "keywords", "expected"),
    [
        ("mezo", {}, lambda m, n, q: q / (q + m * n + 1)),
        ("kronzo", {"refresh_every": 1}, lambda m, n, q: q / (6 * 6 * (q + 6 * 4 + 1))),
        ("lozo", {"rank": 2, "refresh_every": 1}, lambda m, n, q: (2 / n) * q / (q + m * 2 + 1)),
    ],
)
def test_expected_cosines(name, keywords, expected):
    """cos^2 between the average of q directions and the gradient, METHODS section 1, within 25 % in the mean."""
    m, n, q = 36, 24, 33
    g = torch.randn(m, n, generator=torch.Generator().manual_seed(1))
    w = torch.nn.Parameter(torch.zeros(m, n, dtype=torch.float64))
    opt = CASES[name].method([w], lr=1.0, directions=q, **keywords)
    total = 0.0
    for _ in range(60):
        w.data.zero_()
        opt.step(lambda: (w * g).sum())
        total += cosine([w.detach()], [g]) ** 2
    assert total / 60 == pytest.approx(expected(m, n, q), rel=0.25)
