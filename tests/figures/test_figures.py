"""Figures: committed data, tables, captions and pictures agree, and what does not is found."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_data import questions

from figures import __main__ as command
from figures import check, collect, compute, frames, rerun, store
from figures.catalogue import DRAWINGS
from figures.drawing import DATA, OUT, Drawing, Files, draw
from figures.readback import differences
from kronzo.errors import InputError

BY_NAME = {drawing.name: drawing for drawing in DRAWINGS}


@pytest.fixture(name="made", scope="module")
def _made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    draw(BY_NAME["q1"], [questions()["q1"]], folder)
    return folder


@pytest.fixture(name="drawn")
def _drawn(made: Path, tmp_path: Path) -> tuple[Drawing, list[pd.DataFrame], Path]:
    shutil.copytree(made, tmp_path / "q1")
    return BY_NAME["q1"], [questions()["q1"]], tmp_path / "q1"


def _problem(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> str:
    return " ".join(check.check(*drawn))


def test_what_is_committed_agrees() -> None:
    drawings = [each for each in DRAWINGS if all((DATA / f"{name}.parquet").is_file() for name in each.data)]
    assert {"fig1", "fig2", "fig3", "fig4", "table1", "table2", "table3", "table4"} <= {each.name for each in drawings}
    found = [problem for each in drawings for problem in check.check(each, [store.read(n) for n in each.data], OUT)]
    assert found + check.strays(drawings, OUT) == []


@pytest.mark.parametrize("name", [f"q{i}" for i in range(1, 9)])
def test_every_question_draws_its_numbers(name: str) -> None:
    frame, drawing = questions()[name], BY_NAME[name]
    assert drawing.make is not None and differences(drawing.make(frame), drawing.table(frame)) == []
    assert not frame.attrs["seeds"] or f"n = {len(frame.attrs['seeds'])} seeds" in drawing.caption(frame)


def test_what_is_drawn_passes_the_check(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> None:
    assert check.check(*drawn) == []


def test_the_dots_of_a_question_are_mean_and_interval_of_the_last_losses() -> None:
    table = BY_NAME["q1"].table(questions()["q1"])
    best = table[table["series"] == "KronZO average"].iloc[0]
    losses = np.array([3.5, 3.51, 3.52])
    half = 4.302652729749464 * losses.std(ddof=1) / np.sqrt(3)
    assert best["x"] == pytest.approx(losses.mean()) and best["high"] - best["x"] == pytest.approx(half)
    assert table[table["series"] == "KronZO average, seeds"]["x"].tolist() == pytest.approx(losses)


# ---------------------------------------------------------------------- what the check finds


def test_missing_metadata_are_found(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> None:
    del drawn[1][0].attrs["corpus"]
    assert "metadata lack corpus" in _problem(drawn)
    with pytest.raises(InputError, match="lack corpus"):
        store.write("q1", drawn[1][0], drawn[2])


def test_a_command_and_the_seeds_must_be_those_of_the_data() -> None:
    frame = questions()["q1"]
    frame.attrs = frame.attrs | {"seeds": [0, 1]}
    assert "the metadata say [0, 1]" in store.problems("q1", frame)[0]
    frame.attrs = frame.attrs | {"seeds": [0, 1, 2], "command": []}
    assert "command is empty" in store.problems("q1", frame)[0]
    frame.attrs = frame.attrs | {"command": ["kronzo compare /home/me/grid.toml"]}
    assert "path of this machine" in store.problems("q1", frame)[0]


def test_another_number_in_the_table_is_found(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> None:
    files = Files(drawn[2], "q1")
    table = files.read_table()
    table.loc[0, "x"] += 1e-5
    table.to_csv(files.path(".csv"), index=False)
    found = _problem(drawn)
    assert "table is not that of the data" in found and "drawn points are not those" in found
    assert "q1.png was drawn from other numbers" in found and "q1.pdf was drawn from other numbers" in found


def test_another_drawn_number_or_band_is_found(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> None:
    drawing, frames, folder = drawn
    moved = frames[0].assign(val_loss=frames[0]["val_loss"] * 1.001)
    wrong = replace(drawing, make=lambda frame: drawing.make(moved) if drawing.make else None)
    found = " ".join(check.check(wrong, frames, folder))
    assert "drawn points are not those" in found and "drawn band is not that" in found
    assert "table is not" not in found


def test_another_number_of_seeds_in_a_caption_is_found(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> None:
    path = Files(drawn[2], "q1").path(".txt")
    path.write_text(path.read_text().replace("n = 3", "n = 5"))
    assert "the caption says n = 5, the data have n = 3" in _problem(drawn)
    path.write_text(path.read_text().replace("n = 5", "n = 3").replace("Averaging", "averaging"))
    assert "committed caption is not that of the data" in _problem(drawn)


def test_missing_files_and_strays_are_found(drawn: tuple[Drawing, list[pd.DataFrame], Path]) -> None:
    assert check.strays([drawn[0]], drawn[2]) == []
    shutil.copy(drawn[2] / "q1.png", drawn[2] / "q2.png")
    assert "q2.png" in check.strays([drawn[0]], drawn[2])[0]
    (drawn[2] / "q1.pdf").unlink()
    assert "no q1.pdf" in _problem(drawn)


def test_lines_that_the_table_lacks_and_other_labels_are_found() -> None:
    frame = questions()["q3"]
    figure, table = BY_NAME["q3"].make(frame), BY_NAME["q3"].table(frame)  # type: ignore[misc]
    assert differences(figure, table) == []
    figure.axes[0].lines[0].set_label("another")
    assert "'another' stands where the table has" in differences(figure, table)[0]
    figure.axes[0].plot([1, 2], [3, 4])
    assert "lines are drawn" in differences(figure, table)[0]
    assert "panes are drawn" in differences(figure, table.assign(pane=[str(i % 2) for i in range(len(table))]))[0]


# ---------------------------------------------------------------------- data and runs


def test_data_come_back_with_their_metadata(tmp_path: Path) -> None:
    frame = questions()["q7"]
    store.write("q7", frame, tmp_path)
    back = store.read("q7", tmp_path)
    assert back.attrs == frame.attrs
    pd.testing.assert_frame_equal(back, frame)
    with pytest.raises(InputError, match="no data 'q9'"):
        store.read("q9", tmp_path)


def test_every_entry_of_the_runs_has_both_presets_and_every_drawing_of_the_paper_an_entry() -> None:
    for preset in rerun.PRESETS:
        known = rerun.entries(preset)
        assert {name for each in DRAWINGS if not each.name.startswith("q") for name in each.data} <= set(known)
    with pytest.raises(InputError, match=r"no entry \[nothing\]"):
        rerun.needed(["nothing"], known)


def test_a_run_that_fails_or_is_no_program_of_ours_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a command of kronzo or spectra"):
        rerun.rerun(rerun.Entry("storage", {}, ("rm -r x",)), tmp_path, print)
    with pytest.raises(InputError, match="exit code 2"):
        rerun.rerun(rerun.Entry("storage", {}, ("kronzo pretrain nothing.toml",)), tmp_path, print)


def test_rosenbrock_gives_both_rules_the_same_directions_and_the_candidates_are_theirs() -> None:
    frame = compute.rosenbrock([3], [4], [1e-3, 1e-2], forwards=48)
    path = frame[(frame["part"] == "path") & (frame["rule"] == "directional")]
    candidates = frame[frame["part"] == "candidate"]
    assert len(candidates) == 5 and path["forwards"].tolist() == [0, 16, 32, 48]
    best = candidates.loc[candidates["loss"].idxmin()]
    moved = path.iloc[1]
    expected = best if best["loss"] < path.iloc[0]["loss"] else path.iloc[0]
    assert (moved["x"], moved["y"]) == pytest.approx((expected["x"], expected["y"]), rel=1e-9)
    assert frame.attrs["config"]["chosen"].keys() == {"average", "directional"}


def test_storage_of_the_reported_matrix() -> None:
    method = [{"label": "KronZO", "method": "kronzo"}, {"label": "MeZO", "method": "mezo"}]
    frame = compute.storage({"c_attn": [2304, 768]}, method)
    assert frame["stored"].tolist() == [48 * 24 + 48 * 32, 0] and frame["rank"].tolist() == [768, 768]


def test_last_points_tell_models_and_corpora_apart() -> None:
    frame = questions()["q1"]
    both = pd.concat([frame, frame.assign(corpus="another")], ignore_index=True)
    assert len(frames.last_points(both)) == 2 * len(frames.last_points(frame)) == 2 * 5 * 3


def test_a_store_survives_its_frame() -> None:
    frame = store.read("pretraining")
    run = collect.store_of(frame)
    step, layer = int(frame["step"].iloc[-1]), str(frame["layer"].iloc[-1])
    assert np.array_equal(run.values(step, layer), np.asarray(frame["values"].iloc[-1], dtype=float))


# ---------------------------------------------------------------------- the command


def test_the_command_checks_and_names_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["fig3", "--check"]) == 0
    assert command.main(["fgi3", "--check"]) == 2
    assert "did you mean 'fig3'" in capsys.readouterr().err


def test_a_rerun_at_smoke_is_held_against_its_committed_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table2", "--rerun", "--preset", "smoke", "--runs", str(tmp_path)]
    monkeypatch.setattr(command, "SMOKE", tmp_path / "committed")
    assert command.main(words) == 0
    shutil.copytree(tmp_path / "out", tmp_path / "committed")
    assert command.main(words) == 0
    path = tmp_path / "committed" / "table2.csv"
    path.write_text(path.read_text().replace("2688", "2888"))
    assert command.main(words) == 1 and "not within 2 %" in capsys.readouterr().err
