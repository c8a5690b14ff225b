"""Every number has an address: no two addresses share a stream, and no numbers depend on how they are drawn."""

import itertools

import numpy as np
import oracles
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kronzo.noise import BLOCK, Noise, Purpose, philox_keys

WORD = st.integers(0, 2**32 - 1)


@given(st.integers(0, 2**200), st.sampled_from(list(Purpose)), WORD, WORD, st.lists(st.tuples(WORD, WORD), min_size=1))
def test_keys_are_those_of_numpy(seed, purpose, step, direction, addresses):
    parameters, blocks = zip(*addresses, strict=True)
    keys = philox_keys(seed, purpose, step, direction, parameters, blocks)
    for key, parameter, block in zip(keys, parameters, blocks, strict=True):
        sequence = np.random.SeedSequence(seed, spawn_key=(int(purpose), step, direction, parameter, block))
        assert (key == sequence.generate_state(2, np.uint64)).all()


def test_no_two_addresses_share_a_stream():
    seen = set()
    for seed, purpose, step, direction in itertools.product(range(2), Purpose, range(8), range(8)):
        addresses = list(itertools.product(range(12), range(6)))
        keys = philox_keys(seed, purpose, step, direction, *zip(*addresses, strict=True))
        seen.update(map(bytes, keys))
    assert len(seen) == 2 * 2 * 8 * 8 * 12 * 6


def test_golden_numbers():
    """The first numbers of each kind; a change here changes every committed run."""
    noise = Noise(0, 3)
    x = np.empty(3, np.float32)
    noise.coordinates(1, {2: x})
    np.testing.assert_allclose(x, GOLDEN["coordinates"], rtol=0, atol=0)
    assert noise.kept(2, 1, (3,)).tolist() == GOLDEN["kept"]
    out = torch.zeros(BLOCK + 2)
    noise.add_dense_(out, {0: 1.0}, 5, 0)
    assert [out[0].item(), out[BLOCK].item(), out[BLOCK + 1].item()] == GOLDEN["dense"]
    signs = np.empty(8, np.float32)
    Noise(0, 3, "rademacher").coordinates(0, {0: signs})
    assert signs.tolist() == GOLDEN["rademacher"]


GOLDEN = {
    "coordinates": [0.004901497159153223, -0.38968801498413086, 0.45908018946647644],
    "kept": [-1.0074766874313354, 0.8106513619422913, 2.430168390274048],
    "dense": [1.932752013206482, -0.3984130620956421, 0.21245428919792175],
    "rademacher": [1.0, 1.0, -1.0, 1.0, 1.0, -1.0, 1.0, 1.0],
}


@pytest.mark.parametrize("law", ["normal", "rademacher"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk", [9973, BLOCK, 3 * BLOCK // 2])
def test_dense_noise_is_the_same_in_any_chunks_and_threads(law, threads, chunk):
    size = 3 * BLOCK + 77
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = torch.zeros(size)
        for start in range(0, size, chunk):
            Noise(4, 2, law).add_dense_(whole[start : start + chunk], {1: 0.5, 3: -2.0}, 6, start)
    finally:
        torch.set_num_threads(before)
    naive = [oracles.dense(4, 2, 0, 6, i, (size,), law) for i in (1, 3)]
    torch.testing.assert_close(whole.double(), 0.5 * naive[0] - 2.0 * naive[1], rtol=1e-6, atol=1e-6)


def test_a_tensor_scale_gives_the_bits_of_a_number():
    a, b = torch.zeros(1000), torch.zeros(1000)
    scale = 0.1 + 1e-9
    Noise(0, 0).add_dense_(a, {0: scale}, 0, 0)
    Noise(0, 0).add_dense_(b, {0: torch.tensor(scale, dtype=torch.float64)}, 0, 0)
    assert torch.equal(a, b)


def test_stored_and_regenerated_numbers_are_the_same():
    stored, regenerated = np.empty(500, np.float32), torch.zeros(500)
    Noise(1, 2).coordinates(3, {4: stored})
    Noise(1, 2).add_dense_(regenerated, {3: 1.0}, 4, 0)
    assert torch.equal(torch.from_numpy(stored), regenerated)


def test_streams_are_uncorrelated():
    """Parameters, directions, steps and purposes: every pair of 40 streams of 20 000 numbers."""
    n, streams = 20_000, []
    for step, direction, parameter in itertools.product(range(2), range(3), range(5)):
        x = np.empty(n, np.float32)
        Noise(0, step).coordinates(direction, {parameter: x})
        streams.append(x)
    streams += [
        Noise(0, step).kept(parameter, k, (n,)).numpy() for step in range(2) for parameter in range(5) for k in (0,)
    ]
    correlation = np.corrcoef(np.stack(streams))
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / np.sqrt(n)


def test_moments():
    x = np.empty(200_000, np.float32)
    Noise(0, 0).coordinates(0, {0: x})
    assert abs(x.mean()) < 0.01 and abs(x.var() - 1) < 0.02 and abs((x**4).mean() - 3) < 0.15
    Noise(0, 0, "rademacher").coordinates(0, {0: x})
    assert set(np.unique(x)) == {-1.0, 1.0} and abs(x.mean()) < 0.01


@pytest.mark.parametrize("threads", [1, 2])
def test_weights_of_many_blocks_move_alike_on_any_number_of_threads(threads: int) -> None:
    before = torch.get_num_threads()
    weight = torch.nn.Parameter(torch.zeros(3 * BLOCK + 7))
    try:
        torch.set_num_threads(threads)
        with torch.no_grad():
            Noise(seed=5, step=2).add_dense_(weight.view(-1), {0: 1.0}, parameter=1, start=0)
    finally:
        torch.set_num_threads(before)
    whole = torch.zeros(3 * BLOCK + 7)
    for start in range(0, whole.numel(), 1000):
        Noise(seed=5, step=2).add_dense_(whole[start : start + 1000], {0: 1.0}, parameter=1, start=start)
    assert torch.equal(weight.detach(), whole)


@pytest.mark.parametrize("start", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK - 1])
def test_a_piece_may_begin_anywhere_in_a_block(start: int) -> None:
    noise, whole = Noise(seed=5, step=2), torch.zeros(3 * BLOCK)
    noise.add_dense_(whole, {0: 1.0}, parameter=1, start=0)
    for length in (1, 2, BLOCK + 1):
        piece = torch.zeros(length)
        noise.add_dense_(piece, {0: 1.0}, parameter=1, start=start)
        assert torch.equal(piece, whole[start : start + length])
