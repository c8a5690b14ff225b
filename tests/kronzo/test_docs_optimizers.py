"""The code of docs/optimizers.md runs as it stands, in one namespace."""

import re
import warnings
from pathlib import Path

import torch

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "optimizers.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_every_block_runs(capsys):
    torch.manual_seed(0)
    space = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for block in BLOCKS:
            exec(block, space)
    assert len(BLOCKS) == 4
    assert "fewer" in capsys.readouterr().out
    custom = space["Cross"](3, 2)
    out = torch.zeros(3, 2, dtype=torch.float64)
    custom.add_rows_(out[1:], torch.arange(5.0, dtype=torch.float64), {}, 1)
    assert torch.allclose(out[1:] * 2**0.5, torch.tensor([[1 + 3, 1 + 4], [2 + 3, 2 + 4.0]], dtype=torch.float64))


def test_the_custom_space_passes_the_checks_of_the_library_ones():
    """Unit scale of the example, and a step along what was measured."""
    space = {}
    exec(BLOCKS[3].split("opt = ")[0], {"kronzo": __import__("kronzo"), "torch": torch}, space)
    import kronzo

    w = torch.nn.Parameter(torch.zeros(6, 5, dtype=torch.float64))
    opt = kronzo.ZeroOrder([w], lambda shape: space["Cross"](*shape), lr=1.0)
    zs = []
    for _ in range(3000):
        w.data.zero_()
        opt.step(lambda: w.sum())
        zs.append(opt.direction(w, 0))
    torch.testing.assert_close(w.detach(), -opt.last.coefficients[0] * zs[-1], rtol=1e-6, atol=1e-9)
    assert abs(torch.stack(zs).square().mean() - 1) < 0.05
