"""Split-half nulls on planted signals in coloured noise, snapshots, and the recorder's halves."""

import numpy as np
import pytest
import torch
from spectra_models import CONTEXT, TinyLM, batch

import spectra
from spectra import InputError, null, singular_values


def coloured(m, n, generator):
    """Noise with steeply falling singular values, as mini-batch noise has: no white-noise edge fits it."""
    left = torch.linspace(0, -3, m, dtype=torch.float64).exp()
    right = torch.linspace(0, -3, n, dtype=torch.float64).exp()
    return left[:, None] * torch.randn(m, n, generator=generator, dtype=torch.float64) * right


def halves(m, n, rank, strength, generator):
    u = torch.linalg.qr(torch.randn(m, max(rank, 1), generator=generator, dtype=torch.float64)).Q[:, :rank]
    v = torch.linalg.qr(torch.randn(n, max(rank, 1), generator=generator, dtype=torch.float64)).Q[:, :rank]
    signal = strength * u @ v.T
    return signal + coloured(m, n, generator), signal + coloured(m, n, generator)


def spectra_of(a, b):
    return singular_values((a + b) / 2).values, singular_values((a - b) / 2).values


@pytest.mark.parametrize("rank", [0, 1, 4, 16])
def test_weyl_and_edge_rank_find_a_planted_rank_in_coloured_noise(rank):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(5):
        s, n = spectra_of(*halves(80, 60, rank, 200.0, generator))
        assert null.edge_rank(s, n) == pytest.approx(rank, abs=1)
        assert rank - 1 <= null.weyl_rank(s, n, margin=0.4) <= rank + 2


def test_a_marchenko_pastur_edge_misjudges_coloured_noise():
    generator = torch.Generator().manual_seed(0)
    s, _ = spectra_of(*halves(80, 60, 4, 200.0, generator))
    median = np.median(s) / np.median(null.chance_values(80, 60))
    edge = median * (80**0.5 + 60**0.5)
    assert (s > edge).sum() > 10


def test_the_same_rank_count_is_inflated_where_weyl_is_not():
    generator = torch.Generator().manual_seed(3)
    s, n = spectra_of(*halves(80, 60, 4, 200.0, generator))
    assert (s > 1.1 * n).sum() > 2 * null.weyl_rank(s, n, margin=0.4)


def test_weyl_rank_is_what_its_definition_says():
    def naive(s, n, margin):
        return next(k for k in range(len(s) + 1) if all(s[i] <= (1 + margin) * n[i - k] for i in range(k, len(s))))

    rng = np.random.default_rng(0)
    for _ in range(50):
        s, n = (np.sort(rng.random(12))[::-1] for _ in range(2))
        assert null.weyl_rank(s, n, 0.1) == naive(s, n, 0.1)
    assert null.weyl_rank([1.0, 1e-9], [0.5, 0.0]) == 1
    with pytest.raises(InputError, match="same matrix shape"):
        null.weyl_rank([1.0], [1.0, 0.5])


def test_signal_energy_is_unbiased():
    generator = torch.Generator().manual_seed(1)
    shares = []
    for _ in range(300):
        a, b = halves(20, 15, 2, 3.0, generator)
        s, n = spectra_of(a, b)
        shares.append(null.signal_energy(s, n) * float(s @ s))
    assert np.mean(shares) == pytest.approx(2 * 9.0, abs=4 * np.std(shares) / 300**0.5)
    assert null.signal_energy([0.0], [0.0]) == 0.0


def test_cross_values_are_the_signal_without_bias():
    generator = torch.Generator().manual_seed(2)
    found = np.mean([null.cross_values(*halves(40, 30, 2, 100.0, generator), 6) for _ in range(60)], axis=0)
    assert found[:2] == pytest.approx([100.0, 100.0], rel=0.05)
    assert np.abs(found[2:]).max() < 0.5
    biased = np.mean([singular_values(halves(40, 30, 2, 100.0, generator)[0]).values[2:6] for _ in range(20)])
    assert biased > 2


def test_cross_values_are_what_their_definition_says():
    a, b = halves(14, 9, 2, 5.0, torch.Generator().manual_seed(4))
    u, _, vt = np.linalg.svd(a.numpy(), full_matrices=False)
    np.testing.assert_allclose(null.cross_values(a, b, 4), np.diag(u.T @ b.numpy() @ vt.T)[:4], rtol=1e-6)


def test_noise_scale_recovers_both_moments():
    rng = np.random.default_rng(0)
    truth, sigma = np.full(50, 0.3), 2.0

    def energy(size):
        return np.mean([np.sum((truth + sigma / size**0.5 * rng.standard_normal(50)) ** 2) for _ in range(4000)])

    found = null.noise_scale(energy(4), 4, energy(64), 64)
    assert found.gradient_energy == pytest.approx(50 * 0.09, rel=0.05)
    assert found.noise_trace == pytest.approx(50 * 4, rel=0.05)
    assert found.batch_size == pytest.approx(200 / 4.5, rel=0.1)
    with pytest.raises(InputError, match="small < large"):
        null.noise_scale(1, 8, 1, 8)


@pytest.mark.parametrize("shape", [(30, 50), (40, 40), (200, 10), (1, 7)])
def test_chance_values_are_those_of_a_gaussian_matrix(shape):
    generator = torch.Generator().manual_seed(0)
    matrices = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(60)]
    drawn = np.mean([singular_values(matrix).values for matrix in matrices], axis=0)
    expected = null.chance_values(*shape)
    np.testing.assert_allclose(expected, drawn, rtol=0.08, atol=0.03 * drawn[0])
    assert np.sum(expected**2) == pytest.approx(shape[0] * shape[1], rel=0.01)


def test_the_recorder_and_the_snapshot_see_the_same_halves():
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    shot = spectra.snapshot(model, lambda m, x: m.loss(x), [batch(0), batch(1)], tokens=4 * CONTEXT)
    with spectra.GradientRecorder(model, optimizer, every=1, split_half=2) as rec:
        for part in range(2):
            (model.loss(batch(part)) / 2).backward()
            rec.micro_batch(tokens=4 * CONTEXT)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
    run, factor = rec.run, float(rec.run.frame["clip_factor"].iloc[0])
    assert factor < 1
    for layer in ("wte.weight", "block.mlp_in.weight", "block.c_attn.weight[q]"):
        for read in (spectra.Run.values, spectra.Run.noise_values, spectra.Run.cross_values):
            np.testing.assert_allclose(read(run, 0, layer), read(shot, 0, layer) * factor, rtol=2e-4, atol=1e-6)
    for column in ("weyl_rank", "edge_rank", "tokens", "micro_batches"):
        assert run.frame[column].tolist() == shot.frame[column].tolist()
    np.testing.assert_allclose(run.frame["noise_scale"], shot.frame["noise_scale"], rtol=1e-3)


def test_noise_values_are_those_of_the_half_difference():
    model = TinyLM()
    shot = spectra.snapshot(model, lambda m, x: m.loss(x), [batch(0), batch(1), batch(2), batch(3)])
    weight = model.block.mlp_in.weight
    grads = [torch.autograd.grad(model.loss(batch(i)), weight)[0].double() for i in range(4)]
    a, b = (grads[0] + grads[2]) / 2, (grads[1] + grads[3]) / 2
    layer = "block.mlp_in.weight"
    np.testing.assert_allclose(shot.values(0, layer), singular_values((a + b) / 2).values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(shot.noise_values(0, layer), singular_values((a - b) / 2).values, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(shot.cross_values(0, layer)[:3], null.cross_values(a, b, 3), rtol=1e-3)
    s, n = shot.values(0, layer), shot.noise_values(0, layer)
    row = shot.frame.set_index("layer").loc[layer]
    assert row["signal_energy"] == pytest.approx(1 - (n @ n) / (s @ s), rel=1e-4)


def test_a_snapshot_leaves_the_model_as_it_was(tmp_path):
    model = TinyLM()
    model.loss(batch(9)).backward()
    before = [(p.detach().clone(), None if p.grad is None else p.grad.clone()) for p in model.parameters()]
    run = spectra.snapshot(model, lambda m, x: m.loss(x), [batch(0), batch(1)], step=7, store=tmp_path)
    spectra.snapshot(model, lambda m, x: m.loss(x), [batch(0), batch(1)], step=9, store=tmp_path)
    assert run.steps == [7] and spectra.open(tmp_path).steps == [7, 9]
    for parameter, (weight, gradient) in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter, weight) and torch.equal(parameter.grad, gradient)


def test_snapshots_refuse_what_gives_no_halves():
    model = TinyLM()
    with pytest.raises(InputError, match="3 batches; the two halves"):
        spectra.snapshot(model, lambda m, x: m.loss(x), [batch(0)] * 3)
    with pytest.raises(InputError, match="0 batches"):
        spectra.snapshot(model, lambda m, x: m.loss(x), iter([]))
    with pytest.raises(InputError, match="finite scalar"):
        spectra.snapshot(model, lambda m, x: m(x[:, :-1]), [batch(0)] * 2)
    with pytest.raises(InputError, match="no selected parameter"):
        spectra.snapshot(model, lambda m, x: m.block.ln.bias.sum(), [batch(0)] * 2)


def test_incomplete_halves_warn_and_leave_no_null():
    model = TinyLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with spectra.GradientRecorder(model, optimizer, every=1, split_half=4) as rec:
        for part in range(2):
            model.loss(batch(part)).backward()
            rec.micro_batch()
        with pytest.warns(UserWarning, match=r"saw 2 micro-batches, split_half=4"):
            optimizer.step()
    assert rec.run.frame["weyl_rank"].isna().all()
    for bad in (3, 0, -2):
        with pytest.raises(InputError, match="even number"):
            spectra.GradientRecorder(model, optimizer, split_half=bad)
