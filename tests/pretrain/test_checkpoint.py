from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kronzo.errors import InputError
from kronzo.pretrain import checkpoint

FILES = (checkpoint.MODEL, checkpoint.STATE, checkpoint.META)


def network(seed: int = 0, width: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(width, 4), nn.Linear(4, 2))


def save(run: Path, step: int, keep: int = 3) -> nn.Module:
    model = network(step)
    state = {"window": [float("inf"), 1.0], "random": torch.arange(step), "step": step}
    checkpoint.save(run, step, model, state, {"metrics_bytes": 10 * step}, keep)
    return model


def latest(run: Path, usable: Any = lambda meta: True) -> tuple[int | None, list[str]]:
    said: list[str] = []
    found = checkpoint.latest(run, usable=usable, say=said.append)
    return (found.meta["step"] if found else None), said


def test_what_is_saved_is_read_back_bit_for_bit(tmp_path: Path) -> None:
    model = save(tmp_path, 7)
    found = checkpoint.read(tmp_path / "checkpoints" / "7")
    other = network(99)
    checkpoint.load_weights(other, found.weights, "here")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    assert found.state["window"] == [float("inf"), 1.0] and torch.equal(found.state["random"], torch.arange(7))
    assert found.meta["metrics_bytes"] == 70


def test_the_newest_is_taken_and_only_the_last_are_kept(tmp_path: Path) -> None:
    for step in (2, 9, 10, 11):
        save(tmp_path, step, keep=2)
    assert latest(tmp_path) == (11, [])
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["10", "11"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["truncated", "flipped", "absent"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before_and_says_so(
    tmp_path: Path, name: str, damage: str
) -> None:
    save(tmp_path, 3)
    save(tmp_path, 8)
    path = tmp_path / "checkpoints" / "8" / name
    content = bytearray(path.read_bytes())
    if damage == "absent":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 3] ^= 0x80
        path.write_bytes(content)
    step, said = latest(tmp_path)
    assert step == 3 and len(said) == 1
    assert str(tmp_path / "checkpoints" / "8") in said[0] and said[0].endswith("The one before is taken.")


def test_a_changed_counter_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 8)
    path = tmp_path / "checkpoints" / "8" / checkpoint.META
    path.write_text(path.read_text().replace('"metrics_bytes": 80', '"metrics_bytes": 81'))
    step, said = latest(tmp_path)
    assert step == 3 and "its own checksum differs" in said[0]


def test_all_damaged_is_none(tmp_path: Path) -> None:
    save(tmp_path, 3)
    (tmp_path / "checkpoints" / "3" / checkpoint.STATE).write_bytes(b"")
    assert latest(tmp_path)[0] is None
    with pytest.raises(InputError, match="no usable checkpoint"):
        checkpoint.initial_weights(tmp_path)


def test_the_last_damaged_one_does_not_speak_of_one_before(tmp_path: Path) -> None:
    for step in (3, 8):
        save(tmp_path, step)
        (tmp_path / "checkpoints" / str(step) / checkpoint.MODEL).write_bytes(b"")
    said = latest(tmp_path)[1]
    assert [text.partition(". ")[2] for text in said] == ["The one before is taken.", "There is none before it."]


def test_initial_weights_say_which_checkpoint_they_passed_over(tmp_path: Path) -> None:
    model = save(tmp_path, 3)
    save(tmp_path, 8)
    (tmp_path / "checkpoints" / "8" / checkpoint.MODEL).write_bytes(b"")
    with pytest.warns(UserWarning, match=r"checkpoints/8/model\.safetensors: damaged.*The one before is taken"):
        weights = checkpoint.initial_weights(tmp_path)
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_a_checkpoint_ahead_of_the_log_is_passed_over(tmp_path: Path) -> None:
    save(tmp_path, 3)
    save(tmp_path, 8)
    step, said = latest(tmp_path, usable=lambda meta: meta["metrics_bytes"] <= 30)
    assert step == 3 and "does not fit the log" in said[0]


@pytest.mark.parametrize("stage", ["weights", "state", "sync", "rename"])
def test_a_full_disk_leaves_the_earlier_checkpoint_and_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    save(tmp_path, 3)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    module, name = {
        "weights": (checkpoint, "save_file"),
        "state": (torch, "save"),
        "sync": (checkpoint, "_sync"),
        "rename": (checkpoint.os, "rename"),
    }[stage]
    with monkeypatch.context() as patch:
        patch.setattr(module, name, full)
        with pytest.raises(OSError, match="No space left"):
            save(tmp_path, 8)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3"]
    assert latest(tmp_path) == (3, [])
    save(tmp_path, 8)
    assert latest(tmp_path) == (8, [])


SMALL_DISK = """
import resource, signal, sys
import torch
from pathlib import Path
from kronzo.pretrain import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
largest = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
for write in (checkpoint.save_weights, checkpoint._save_state):
    for limit in (64, 1_000, 100_000):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, largest))
        try:
            write({"a": torch.zeros(100_000)}, Path(sys.argv[1]) / "file")
        except OSError as error:
            print(error.errno)
"""


def test_a_full_disk_is_an_oserror_whatever_the_writers_make_of_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SMALL_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(errno.EFBIG)] * 6


def test_an_unfinished_folder_of_a_killed_process_is_ignored_and_replaced(tmp_path: Path) -> None:
    save(tmp_path, 3)
    unfinished = tmp_path / "checkpoints" / ".writing-8"
    unfinished.mkdir()
    (unfinished / checkpoint.MODEL).write_bytes(b"half")
    assert latest(tmp_path) == (3, [])
    save(tmp_path, 8)
    assert not unfinished.exists() and latest(tmp_path) == (8, [])


def test_reading_executes_nothing(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return (Path.touch, (tmp_path / "executed",))

    save(tmp_path, 3)
    folder = tmp_path / "checkpoints" / "3"
    torch.save({"step": Trap()}, folder / checkpoint.STATE)
    meta = checkpoint._read_meta(folder / checkpoint.META)
    meta["files"][checkpoint.STATE] = checkpoint._fingerprint(folder / checkpoint.STATE)
    checkpoint._write_meta(folder / checkpoint.META, meta)
    with pytest.raises(InputError, match="not a whole checkpoint"):
        checkpoint.read(folder)
    assert not (tmp_path / "executed").exists()


def test_weights_of_another_model_are_refused_by_name_and_shape(tmp_path: Path) -> None:
    save(tmp_path, 3)
    weights = checkpoint.initial_weights(tmp_path)
    with pytest.raises(InputError, match=r"run is of another model: 0.weight is \(4, 3\) there and \(4, 5\) here"):
        checkpoint.load_weights(network(width=5), weights, "run")
    with pytest.raises(InputError, match=r"1.bias is \(2,\) there and absent here"):
        checkpoint.load_weights(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2, bias=False)), weights, "run")


def test_initial_weights_come_from_a_run_a_checkpoint_or_a_file(tmp_path: Path) -> None:
    save(tmp_path, 3)
    folder = tmp_path / "checkpoints" / "3"
    for source in (tmp_path, folder, folder / checkpoint.MODEL):
        assert torch.equal(checkpoint.initial_weights(source)["0.weight"], next(network(3).parameters()))
    for bad in (tmp_path / "absent", folder / checkpoint.META):
        with pytest.raises(InputError, match="no weights can be read"):
            checkpoint.initial_weights(bad)
