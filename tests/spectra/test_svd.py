"""Singular values against numpy's float64 SVD: accuracy, shapes, dtypes, the fallback chain, memory."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import spectra
from spectra import InputError, svd


def planted(m, n, values, seed=0):
    """A float64 matrix with exactly these singular values."""
    rng = np.random.default_rng(seed)
    p = len(values)
    u = np.linalg.qr(rng.standard_normal((m, p)))[0]
    v = np.linalg.qr(rng.standard_normal((n, p)))[0]
    return torch.from_numpy(u * values @ v.T)


@pytest.mark.parametrize("shape", [(200, 60), (60, 200), (64, 64)])
def test_gram_of_a_float32_gradient_is_exact_to_a_millionth_down_to_1e5(shape):
    g = planted(*shape, np.logspace(0, -7, 60)).float()
    reference = np.linalg.svd(g.double().numpy(), compute_uv=False)
    found = spectra.singular_values(g)
    assert (found.method, found.converged, found.shape) == ("gram", True, shape)
    resolved = reference > 1e-5 * reference[0]
    assert resolved.sum() > 40
    np.testing.assert_allclose(found.values[resolved], reference[resolved], rtol=1e-6)
    assert found.error <= 1e-12


def test_exact_resolves_what_a_gram_matrix_cannot():
    values = np.logspace(0, -12, 20)
    g = planted(70, 20, values)
    assert spectra.singular_values(g).method == "exact"
    np.testing.assert_allclose(spectra.singular_values(g).values, values, rtol=1e-3)
    assert abs(spectra.singular_values(g, "gram").values[-1] / values[-1] - 1) > 1e-3


@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["float32", "bfloat16", "float16", "float64"]),
    st.integers(0, 9),
)
@settings(max_examples=60, deadline=None)
def test_any_shape_and_dtype_agrees_with_numpy(m, n, dtype, seed):
    g = torch.randn(m, n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(getattr(torch, dtype))
    reference = np.linalg.svd(g.double().numpy(), compute_uv=False)
    found = spectra.singular_values(g)
    np.testing.assert_allclose(found.values, reference, atol=1e-6 * reference[0])
    assert np.all(np.diff(found.values) <= 0) and np.all(found.values >= 0)
    assert found.values @ found.values == pytest.approx(float((g.double() ** 2).sum()), rel=1e-12)


@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1.0, 1e30])
def test_scale_goes_through_exactly(scale):
    g = torch.randn(30, 20, generator=torch.Generator().manual_seed(1))
    scaled = g * scale
    reference = np.linalg.svd(scaled.double().numpy(), compute_uv=False)
    np.testing.assert_allclose(spectra.singular_values(scaled).values, reference, rtol=1e-9)


def test_blocks_cover_every_row_and_leave_the_matrix_alone(monkeypatch):
    monkeypatch.setattr(svd, "CHUNK_NUMBERS", 64)
    for dtype in (torch.float32, torch.float64):
        g = torch.randn(101, 7, dtype=dtype)
        before = g.clone()
        np.testing.assert_allclose(
            spectra.singular_values(g, "gram").values, np.linalg.svd(g.double().numpy(), compute_uv=False), rtol=1e-9
        )
        assert torch.equal(g, before)


@pytest.mark.parametrize("shape", [(40, 23), (23, 40), (12, 12), (9, 5)])
def test_the_gram_matrix_is_whole_though_only_its_lower_half_is_computed(monkeypatch, shape):
    monkeypatch.setattr(svd, "PANEL", 5)
    monkeypatch.setattr(svd, "CHUNK_NUMBERS", 100)
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    tall = g.double() if shape[0] >= shape[1] else g.double().T
    found, energy = svd.gram(g, 1.0)
    torch.testing.assert_close(found, tall.T @ tall, rtol=1e-13, atol=1e-13)
    assert energy == pytest.approx(float((g.double() ** 2).sum()), rel=1e-13)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_float64_is_scaled_before_it_is_squared(scale):
    g = torch.randn(12, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for method in ("gram", "exact"):
        found = spectra.singular_values(g * scale, method)
        np.testing.assert_allclose(found.values / scale, spectra.singular_values(g).values, rtol=1e-9)


@pytest.mark.parametrize("shape", [(1, 7), (7, 1), (3, 100_000), (1, 1), (0, 4), (4, 0)])
def test_odd_shapes_are_answered(shape):
    found = spectra.singular_values(torch.ones(shape))
    assert found.values.shape == (min(shape),)
    if min(shape):
        assert found.values[0] == pytest.approx((shape[0] * shape[1]) ** 0.5)


def test_zero_and_folded_and_sparse_and_transposed():
    assert spectra.singular_values(torch.zeros(5, 3)).values.tolist() == [0.0, 0.0, 0.0]
    kernel = torch.randn(4, 3, 2, 2)
    np.testing.assert_allclose(
        spectra.singular_values(kernel).values,
        np.linalg.svd(kernel.reshape(4, 12).double(), compute_uv=False),
        rtol=1e-6,
    )
    sparse = torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 0]], [1.0, 2.0, 5.0], (3, 2))
    np.testing.assert_allclose(spectra.singular_values(sparse).values, [5.0, 3.0], rtol=1e-12)
    g = torch.randn(6, 4)
    assert spectra.singular_values(g.T).shape == (4, 6)


def test_the_chain_falls_back_and_says_so(monkeypatch):
    g = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    reference = np.linalg.svd(g.double().numpy(), compute_uv=False)

    def fails(*_):
        raise np.linalg.LinAlgError("no convergence")

    monkeypatch.setattr(svd, "eigenvalues", fails)
    found = spectra.singular_values(g)
    assert found.method == "exact"
    np.testing.assert_allclose(found.values, reference, rtol=1e-12)
    monkeypatch.setattr(torch.linalg, "svdvals", fails)
    found = spectra.singular_values(g)
    assert found.method == "gesvd"
    np.testing.assert_allclose(found.values, reference, rtol=1e-12)


def test_a_wrong_eigenvalue_solver_is_caught_by_the_certificate(monkeypatch):
    g = torch.randn(20, 8)
    honest = svd.eigenvalues
    monkeypatch.setattr(svd, "eigenvalues", lambda c: honest(c) * 1.001)
    assert spectra.singular_values(g).method == "exact"


@pytest.mark.parametrize("threads", [1, 2])
def test_either_eigenvalue_solver_gives_the_same(monkeypatch, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    g = planted(60, 40, np.logspace(0, -4, 40)).float()
    np.testing.assert_allclose(
        spectra.singular_values(g).values, np.linalg.svd(g.double().numpy(), compute_uv=False), rtol=1e-7
    )


def test_randomized_is_flagged_and_bounded():
    g = planted(80, 50, np.logspace(0, -3, 50))
    found = spectra.singular_values(g, "randomized", k=10)
    reference = np.logspace(0, -3, 50)
    assert (found.method, found.converged, found.values.size) == ("randomized", False, 10)
    assert np.all(found.values <= reference[:10] * (1 + 1e-12))
    missed = reference[:10] ** 2 - found.values**2
    assert missed.max() <= found.error**2 * float(reference @ reference)
    state = torch.random.get_rng_state()
    spectra.singular_values(g, "randomized", k=10)
    assert torch.equal(state, torch.random.get_rng_state())


def test_triplets_match_the_dense_svd():
    g = planted(40, 25, np.linspace(5, 1, 25)).float()
    for matrix in (g, g.T):
        found = spectra.singular_triplets(matrix, 4)
        u, s, vt = np.linalg.svd(matrix.double().numpy(), full_matrices=False)
        np.testing.assert_allclose(found.values, s[:4], rtol=1e-9)
        np.testing.assert_allclose((found.u * found.values) @ found.v.T, (u[:, :4] * s[:4]) @ vt[:4], atol=1e-6)
        assert found.residual < 1e-12
        np.testing.assert_allclose(found.u.T @ found.u, np.eye(4), atol=1e-12)


@pytest.mark.parametrize(
    ("matrix", "options", "words"),
    [
        (torch.tensor([[1.0, float("nan")]]), {}, "NaN or inf"),
        (torch.tensor([[1.0, float("inf")]]), {}, "NaN or inf"),
        (torch.ones(3), {}, "need a matrix"),
        (torch.ones(2, 2, dtype=torch.int64), {}, "floating point"),
        (torch.ones(2, 2, dtype=torch.complex64), {}, "floating point"),
        (torch.ones(2, 2), {"method": "grm"}, "did you mean 'gram'"),
        (torch.ones(2, 2), {"method": "randomized"}, "k="),
    ],
)
def test_bad_matrices_are_refused(matrix, options, words):
    with pytest.raises(InputError, match=words):
        spectra.singular_values(matrix, **options)


def test_threads_and_random_state_of_the_process_are_untouched():
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    spectra.singular_values(torch.ones(50, 20) + torch.eye(50, 20))
    assert torch.get_num_threads() == threads
    assert torch.equal(state, torch.random.get_rng_state())


MEMORY = """
import re, torch, spectra
def peak():  # of this process only: ru_maxrss would start from that of the parent
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
spectra.singular_values(torch.randn(300, 768))
g = torch.randn(50257, 768)
before = peak()
spectra.singular_values(g)
print(peak() - before)
"""


@pytest.mark.slow
def test_the_gradient_of_a_gpt2_embedding_costs_at_most_64_mb():
    printed = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, check=True).stdout
    assert 10e6 < int(printed) <= 64e6


@pytest.mark.parametrize(("m", "n"), [(400_000, 8), (100_000, 128)])
def test_many_rows_cost_no_digits(m, n):
    """Rounding of the sums, within blocks and over them, would grow with the number of rows."""
    generator = torch.Generator().manual_seed(0)
    columns = torch.randn(m, n, generator=generator) * torch.logspace(0, -5, n)
    g = columns @ torch.linalg.qr(torch.randn(n, n, generator=generator)).Q
    found, expected = spectra.singular_values(g, "gram"), spectra.singular_values(g, "exact").values
    resolved = expected >= 1e-5 * expected[0]
    np.testing.assert_allclose(found.values[resolved], expected[resolved], rtol=1e-6)
    assert found.converged
