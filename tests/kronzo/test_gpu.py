"""On a CUDA device, `pytest -m gpu`: the numbers of the CPU, weights on two devices, no memory of a weight's size."""

import pytest
import torch

import kronzo
from kronzo.pretrain import gpt2

DEVICE = "cuda"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(autouse=True)
def exact_products():
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def steps_on(device, name, steps=3):
    """Coefficients and final weights of a small GPT-2."""
    model = gpt2.GPT2(gpt2.config("nano", layers=1, width=64, context=16), seed=0).to(device)
    keywords = {"noise": "portable"} if name in ("mezo", "fzoo") else {}
    optimizer = kronzo.METHODS[name](model.named_parameters(), lr=1e-3, eps=1e-2, directions=2, seed=5, **keywords)
    vocabulary, found = model.config.vocab_size, []
    for step in range(steps):
        rows = torch.randint(0, vocabulary, (4, 17), generator=torch.Generator().manual_seed(step)).to(device)
        optimizer.step(lambda rows=rows: model.loss(rows[:, :-1], rows[:, 1:]))
        found += optimizer.last.coefficients
    return torch.tensor(found), torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


@pytest.mark.parametrize("name", sorted(kronzo.METHODS))
def test_coefficients_are_those_of_the_cpu(name):
    ours, weights = steps_on(DEVICE, name)
    theirs, expected = steps_on("cpu", name)
    assert (ours - theirs).norm() <= 1e-3 * theirs.norm()
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-5)


def test_weights_may_lie_on_two_devices():
    first, second = torch.nn.Linear(8, 6), torch.nn.Linear(6, 4).to(DEVICE)
    parameters = [*first.parameters(), *second.parameters()]
    before, places = [p.detach().clone() for p in parameters], [p.data_ptr() for p in parameters]
    optimizer = kronzo.KronZO(parameters, lr=1e-2, directions=2)
    x = torch.randn(16, 8)
    loss = optimizer.step(lambda: second(first(x).to(DEVICE)).square().mean())
    assert torch.isfinite(loss) and [p.data_ptr() for p in parameters] == places
    assert not any(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))


@pytest.mark.parametrize("name", ["kronzo", "lozo", "mezo"])
def test_a_step_allocates_nothing_of_the_size_of_a_weight(name):
    weight = torch.nn.Parameter(torch.randn(4096, 4096, device=DEVICE))
    x = torch.randn(1, 4096, device=DEVICE)

    def closure():
        return (x @ weight).square().mean()

    def peak(work):
        torch.cuda.reset_peak_memory_stats()
        start = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - start

    with torch.no_grad():
        forward = peak(closure)
    optimizer = kronzo.METHODS[name]([weight], lr=1e-4)
    optimizer.step(closure)
    assert peak(lambda: optimizer.step(closure)) <= forward + 0.25 * weight.numel() * weight.element_size()


@pytest.mark.parametrize(("name", "rule"), [("kronzo", "average"), ("kronzo", "directional"), ("lozo", "average")])
def test_the_host_waits_once_a_step_to_read_the_losses(name, rule):
    weight = torch.nn.Parameter(torch.randn(64, 64, device=DEVICE))
    x = torch.randn(4, 64, device=DEVICE)
    optimizer = kronzo.METHODS[name]([weight], lr=1e-4, rule=rule, refresh_every=2)
    for _ in range(2):
        optimizer.step(lambda: (x @ weight).square().mean())
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchronizing") as said:
            optimizer.step(lambda: (x @ weight).square().mean())
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert sum("synchronizing" in str(warning.message) for warning in said) == 1
