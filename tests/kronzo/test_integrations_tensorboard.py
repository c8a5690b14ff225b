"""RUN/tensorboard, read back by TensorBoard's own reader."""

import sys
from pathlib import Path

import pytest

from kronzo import cli
from kronzo.errors import InputError
from kronzo.integrations.tensorboard import Board
from kronzo.pretrain.log import read_metrics


def test_without_the_extra_the_install_line_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match=r'pip install -e "\.\[tensorboard\]"'):
        Board(tmp_path)


def train(monkeypatch, folder, *arguments):
    line = ["kronzo", "pretrain", "--data", "synthetic", "--out", str(folder), "--quiet", "--tensorboard"]
    small = {"model.layers": 1, "model.width": 16, "model.heads": 2, "model.context": 16, "budget.steps": 6}
    settings = [word for key, value in small.items() for word in ("--set", f"{key}={value}")]
    monkeypatch.setattr(sys, "argv", [*line, *settings, *arguments])
    with pytest.raises(SystemExit, match="0"):
        cli.main()


def read(folder):
    """Tag -> [(step, value)] of the one event file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = Path(folder, "tensorboard").iterdir()
    events = EventAccumulator(str(path)).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.extra
def test_a_zeroth_order_run_and_its_repetition(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    train(monkeypatch, tmp_path, "--method", "kronzo", "--set", "optimizer.rule='directional'")
    seen, log = read(tmp_path), read_metrics(tmp_path)
    steps = log[log["step"] > 0]
    for key, tag in (("loss", "loss/training"), ("coefficient_rms", "coefficients/rms"), ("lr", "step/lr")):
        assert [step for step, _ in seen[tag]] == [1, 2, 3, 4, 5, 6]
        assert [value for _, value in seen[tag]] == pytest.approx(steps[key].tolist(), rel=1e-6)
    assert [value for _, value in seen["step/accepted"]] == [float(value) for value in steps["accepted"]]
    assert dict(seen["loss/validation"]).keys() == set(log.loc[log["val_loss"].notna(), "step"])
    train(monkeypatch, tmp_path, "--method", "kronzo", "--set", "optimizer.rule='directional'")
    assert read(tmp_path) == seen, "a finished run is written again, not twice"


@pytest.mark.extra
def test_stable_ranks_of_every_layer_at_every_capture(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    import spectra

    train(monkeypatch, tmp_path, "--method", "adamw", "--set", "spectra.enabled=true", "--set", "spectra.every=3")
    seen, run = read(tmp_path), spectra.open(tmp_path / "spectra")
    frame = run.frame[run.frame["stable_rank"].notna()]
    assert len(run.steps) > 1 and {f"stable_rank/{layer}" for layer in frame["layer"]} <= seen.keys()
    for layer, rows in frame[frame["quantity"] == "gradient"].groupby("layer"):
        steps, values = zip(*seen[f"stable_rank/{layer}"], strict=True)
        assert list(steps) == rows["step"].tolist() and values == pytest.approx(rows["stable_rank"].tolist(), rel=1e-6)


def test_a_torn_line_waits_and_a_cut_log_is_read_from_its_start(tmp_path):
    written = []
    board = Board.__new__(Board)
    board._run, board._offset, board._begun, board._writer = tmp_path, 0, False, None
    board._scalar = lambda tag, value, step: written.append((tag, value, step))
    log = tmp_path / "metrics.jsonl"
    log.write_text('{"step": 9, "loss": 1.0}\n')
    board.update()
    assert written == [], "a run that goes on may cut these lines"
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "lo')
    board.update()
    board.update()
    assert written == [("loss/training", 2.0, 1)]
    log.write_text('{"step": 1, "loss": 2.0}\n{"step": 2, "loss": 3.0, "accepted": true}\n')
    board.close()
    assert written[1:] == [("loss/training", 3.0, 2), ("step/accepted", 1.0, 2)]
