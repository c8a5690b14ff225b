"""Two runs side by side, and matrices from files."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from spectra_models import TinyLM, train
from typer.testing import CliRunner

import spectra
from spectra import InputError, cli, compare


def recorded(folder, seed, layers="*"):
    model = TinyLM(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with spectra.GradientRecorder(model, optimizer, every=2, store=folder, layers=layers):
        train(model, optimizer, range(3 + 2 * seed))
    return spectra.open(folder)


def test_runs_are_compared_at_their_last_captures(tmp_path):
    a, b = recorded(tmp_path / "a", 0), recorded(tmp_path / "b", 1, layers="block*")
    frame = compare.compare(a, b, "stable_rank").set_index("layer")
    assert frame.attrs["steps"] == [2, 4]
    one = a.frame.query("step == 2").set_index("layer").loc["block.mlp_in.weight", "stable_rank"]
    two = b.frame.query("step == 4").set_index("layer").loc["block.mlp_in.weight", "stable_rank"]
    assert frame.loc["block.mlp_in.weight"].tolist() == pytest.approx([one, two, two / one])
    assert np.isnan(frame.loc["wte.weight", "stable_rank second"])
    done = CliRunner().invoke(cli.app, ["diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert done.exit_code == 0 and "block.mlp_in" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    rows = json.loads(CliRunner().invoke(cli.app, ["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--json"]).stdout)
    assert len(rows) == 5
    wpe = recorded(tmp_path / "c", 0, layers="wpe*")
    with pytest.raises(InputError, match="no layer in common"):
        compare.compare(b, wpe)


def test_matrices_of_every_file_kind_have_the_same_spectrum(tmp_path):
    g = torch.randn(30, 20, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "g.npy", g.numpy())
    np.savez(tmp_path / "g.npz", g=g.numpy(), bias=np.zeros(3), count=np.ones((2, 2), dtype=int))
    torch.save({"layer": {"g": g, "step": 3}}, tmp_path / "g.pt")
    save_file({"g": g}, tmp_path / "g.safetensors")
    expected = spectra.metrics.stable_rank(spectra.singular_values(g).values)
    for suffix, name in [("npy", "g"), ("npz", "g"), ("pt", "layer.g"), ("safetensors", "g")]:
        frame = compare.file_spectra(tmp_path / f"g.{suffix}")
        assert frame["name"].tolist() == [name] and frame["shape"].tolist() == ["30x20"]
        assert frame["stable_rank"][0] == pytest.approx(expected)
    done = CliRunner().invoke(cli.app, ["matrix", str(tmp_path / "g.pt")])
    assert done.exit_code == 0 and f"{expected:.3g}" in done.stdout
    assert (
        json.loads(CliRunner().invoke(cli.app, ["matrix", str(tmp_path / "g.pt"), "--json"]).stdout)[0]["name"]
        == "layer.g"
    )


class Executes:
    def __reduce__(self):
        return print, ("executed",)


def test_bad_files_are_refused_and_nothing_in_them_is_executed(tmp_path, capsys):
    torch.save({"g": Executes()}, tmp_path / "evil.pt")
    (tmp_path / "bad.npy").write_bytes(b"no")
    (tmp_path / "g.csv").write_text("1,2")
    np.save(tmp_path / "vector.npy", np.ones(3))
    np.save(tmp_path / "g.npy", np.ones((2, 2)))
    for name, words in [
        ("evil.pt", "cannot be read"),
        ("bad.npy", "cannot be read"),
        ("g.csv", "is not a matrix file"),
        ("missing.npy", "does not exist"),
        ("vector.npy", "holds no floating-point matrix"),
    ]:
        with pytest.raises(InputError, match=words):
            compare.file_spectra(tmp_path / name)
    with pytest.raises(InputError, match="no matrix matches"):
        compare.file_spectra(tmp_path / "g.npy", key="h*")
    assert "executed" not in capsys.readouterr().out


def test_compact_command(tmp_path):
    recorded(tmp_path / "a", 0)
    assert CliRunner().invoke(cli.app, ["compact", str(tmp_path / "a")]).stdout == "2 parts merged\n"
