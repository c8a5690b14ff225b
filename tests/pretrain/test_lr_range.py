"""The lr range test: a rising lr on one batch, a suggestion inside the range, and refusals."""

import sys

import pytest
from small_runs import small_config

from kronzo import cli
from kronzo.errors import InputError
from kronzo.pretrain.config import to_toml
from kronzo.pretrain.loop import pretrain
from kronzo.pretrain.lr_range import LrRange, lr_range, prepared

KRONZO = ("optimizer.method=kronzo", "optimizer.directions=4")


def test_the_suggestion_lies_a_third_below_the_lowest_loss():
    found = lr_range(small_config(*KRONZO), low=1e-5, high=1.0, num_steps=25)
    assert min(found.loss) < found.start
    assert found.suggestion == pytest.approx(found.lr[found.loss.index(min(found.loss))] / 3)
    assert found.lr[1] / found.lr[0] == pytest.approx(found.lr[-1] / found.lr[-2])
    assert len(found.loss) < 25 and found.loss[-1] > 2 * found.start
    assert all(len(line) <= 80 for line in str(found).splitlines())


@pytest.mark.parametrize("method", ["adamw", "lozo", "fzoo"])
def test_every_method_is_probed(method):
    found = lr_range(small_config(f"optimizer.method={method}"), low=1e-6, high=1e-2, num_steps=6)
    assert len(found.loss) == 6 and method in found.advice()


def test_no_suggestion_without_improvement():
    found = LrRange("kronzo", (1.0, 2.0), (3.0, float("nan")), 2.5, None)
    assert "no lr" in str(found) and "not finite" in str(found)
    found.plot()


def test_a_probe_that_destroys_the_model_ends_the_test():
    found = lr_range(
        small_config(*KRONZO, "optimizer.eps=30", "optimizer.rule=directional"), low=1e-6, high=1.0, num_steps=5
    )
    assert found.loss == () and found.suggestion is None


def test_a_run_gives_its_weights(tmp_path):
    config = small_config("optimizer.method=adamw", "optimizer.lr=0.01")
    pretrain(config, tmp_path / "run", progress=False)
    again = prepared(tmp_path / "run", ["optimizer.lr=0.1"])
    assert again.init == str(tmp_path / "run")
    fresh = lr_range(config, low=1e-6, high=1e-5, num_steps=2).start
    assert lr_range(again, low=1e-6, high=1e-5, num_steps=2).start < fresh


def test_the_command_draws(tmp_path, monkeypatch, capsys):
    (tmp_path / "c.toml").write_text(to_toml(small_config(*KRONZO)))
    arguments = ["lr-range", str(tmp_path / "c.toml"), "--steps", "5", "--quiet", "--out"]
    monkeypatch.setattr(sys, "argv", ["kronzo", *arguments, str(tmp_path / "lr.png")])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert not ending.value.code and (tmp_path / "lr.png").stat().st_size > 5000
    assert "lr" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["kronzo", *arguments, str(tmp_path / "lr.nonsense")])
    with pytest.raises(SystemExit) as ending:
        cli.main()
    assert ending.value.code == 2


def test_empty_ranges_are_refused():
    for low, high, num_steps in ((1.0, 0.1, 5), (0.0, 1.0, 5), (0.1, 1.0, 1)):
        with pytest.raises(InputError, match="low"):
            lr_range(small_config(), low=low, high=high, num_steps=num_steps)
