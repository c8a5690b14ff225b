"""The report of a folder of `kronzo reproduce`: every number in it is one that a run wrote."""

from __future__ import annotations

import json
import math
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import spectra
from kronzo.errors import InputError
from kronzo.pretrain import findings, report, report_figures, report_html, report_tables
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.plan import read_plan
from kronzo.pretrain.reported import ROWS
from kronzo.pretrain.reproduce import reproduce
from kronzo.pretrain.results import read

TESTED = "kronzo reproduce --preset test"
RUNS = ["adamw", "adamw-tokens", "kronzo-directional", "kronzo-average", "lozo", "subzero", "mezo"]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "out"
    reproduce(read_plan("test"), folder, preset="test", command=TESTED, progress=False, workers=1)
    return folder


@pytest.fixture
def copy(out: Path, tmp_path: Path) -> Path:
    """A folder to damage."""
    return Path(shutil.copytree(out, tmp_path / "out"))


class Page(HTMLParser):
    """Tags with their attributes, text, and the tables as rows of cells."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.text = ""
        self._cell = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell:
            self.tables[-1][-1][-1] += data

    def table(self, heading: str) -> pd.DataFrame:
        """The first table with this heading."""
        rows = next(rows for rows in self.tables if heading in rows[0])
        return pd.DataFrame(rows[1:], columns=rows[0])


def page_of(folder: Path) -> Page:
    """The page of a folder without its pictures, which take seconds."""
    results = read(folder)
    return Page(report_html.render(results, report_tables.write(results, folder / "tables"), {}))


# ---------------------------------------------------------------- tables


def test_the_results_are_what_the_runs_wrote(out: Path) -> None:
    frame = pd.read_csv(out / "tables" / "results.csv").set_index("method")
    assert list(frame.index) == RUNS
    reference = json.loads((out / "reference.json").read_text())
    floor = json.loads((out / "adamw" / "result.json").read_text())["val_loss"]
    for name, row in frame.iterrows():
        result = json.loads((out / str(name) / "result.json").read_text())
        manifest = json.loads((out / str(name) / "manifest.json").read_text())
        metrics = read_metrics(out / str(name))
        for key in ("steps", "tokens", "token_forwards", "val_loss", "best_val_loss"):
            assert row[key] == pytest.approx(result[key], rel=1e-12), key
        assert row["seconds_per_step"] == pytest.approx(result["seconds"] / result["steps"], rel=1e-3)
        assert row["minus_unigram"] == pytest.approx(result["val_loss"] - reference["unigram"])
        assert row["minus_adamw"] == pytest.approx(result["val_loss"] - floor)
        assert row["parameters"] == manifest["parameters"]
        assert row["peak_bytes"] == metrics["peak_bytes"].max()
        if "accepted" in metrics:
            assert row["acceptance_rate"] == np.mean([bool(value) for value in metrics["accepted"][1:]])
        else:
            assert math.isnan(row["acceptance_rate"])


def test_the_lr_is_the_best_of_the_last_rung(out: Path) -> None:
    frame = pd.read_csv(out / "tables" / "results.csv").set_index("method")
    trials = pd.read_csv(out / "tables" / "tuning.csv")
    for method, tried in trials.groupby("method"):
        last = tried[tried["rung"] == tried["rung"].max()]
        assert frame.loc[method, "lr"] == last.loc[last["val_loss"].idxmin(), "lr"]


def test_reported_numbers_are_marked_and_stand_beside_ours(out: Path) -> None:
    frame = pd.read_csv(out / "tables" / "reported.csv", keep_default_na=False, na_values=[""])
    assert list(frame["reported_loss"]) == [row.loss for row in ROWS]
    assert all(name.startswith("reported_") for name in frame if name not in (
        "label", "method", "rule", "val_loss", "minus_adamw", "seconds_per_step", "peak_bytes"
    ))  # fmt: skip
    assert frame["reported_by"].str.contains("G-2025-44").all()
    ours = pd.read_csv(out / "tables" / "results.csv").set_index("method")["val_loss"]
    rows = frame.set_index("label")["val_loss"]
    assert rows["KronZO directional"] == ours["kronzo-directional"] and rows["MeZO average"] == ours["mezo"]
    assert math.isnan(rows["MeZO directional"]), "not run here"


def test_markdown_and_csv_hold_the_same_rows(out: Path) -> None:
    for path in sorted((out / "tables").glob("*.csv")):
        lines = path.with_suffix(".md").read_text(encoding="utf-8").splitlines()
        assert len(lines) == len(pd.read_csv(path)) + 2, path.name
    names = {path.stem for path in (out / "tables").glob("*.md")}
    assert names == {"results", "tuning", "reported", "spectra_layers", "spectra_kinds"}


def test_spectra_tables_hold_the_first_and_the_last_stage(out: Path) -> None:
    run = spectra.open(out / "fo" / "spectra")
    frame = pd.read_csv(out / "tables" / "spectra_layers.csv").set_index("layer")
    captured = run.gradients().set_index(["step", "layer"])
    for layer, row in frame.iterrows():
        assert row["stable_rank first"] == pytest.approx(captured.loc[(run.steps[0], layer), "stable_rank"])
        assert row["participation_ratio last"] == pytest.approx(
            captured.loc[(run.steps[-1], layer), "participation_ratio"]
        )


def test_breadth_is_the_share_of_the_attainable_rank(out: Path) -> None:
    run = spectra.open(out / "fo" / "spectra")
    shares = []
    for step in run.steps:
        values = []
        for layer in run.layers:
            if ".attn." in layer or ".mlp." in layer:
                if "[" in layer:
                    continue
                energy = run.values(step, layer) ** 2
                values.append(energy.sum() ** 2 / (energy**2).sum() / energy.size)
        shares.append(np.mean(values))
    np.testing.assert_allclose(findings.breadth(read(out)), shares, rtol=1e-5)


# ---------------------------------------------------------------- the page


def test_the_page_is_one_small_file_that_asks_for_nothing(out: Path) -> None:
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    assert (out / "report.html").stat().st_size < 3_000_000
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "iframe", "object", "embed", "base", "a"}
    for tag, attributes in page.tags:
        for key in ("src", "srcset", "href", "data", "poster"):
            assert (attributes.get(key) or "data:").startswith("data:image/png;base64,") or key not in attributes, tag
    text = (out / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text and "url(" not in text


def test_headings_pictures_and_tables_have_what_a_reader_without_eyes_needs(out: Path) -> None:
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    headings = [tag for tag, _ in page.tags if tag in ("h1", "h2", "h3", "h4")]
    assert headings[0] == "h1" and headings.count("h1") == 1 and "h4" not in headings
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert len(images) == 6 and all(len(image["alt"] or "") > 20 for image in images)
    assert sum(tag == "caption" for tag, _ in page.tags) == len(page.tables)
    assert dict(page.tags)["html"] == {"lang": "en"}


def test_the_page_shows_the_numbers_of_the_tables(out: Path) -> None:
    page = Page((out / "report.html").read_text(encoding="utf-8"))
    shown = page.table("lowest").set_index("run")
    results = pd.read_csv(out / "tables" / "results.csv").set_index("label")
    reference = json.loads((out / "reference.json").read_text())
    for label, row in results.iterrows():
        assert shown.loc[label, "validation loss"] == f"{row['val_loss']:.3f}"
    assert shown.loc["unigram line", "validation loss"] == f"{reference['unigram']:.3f}"
    losses = [float(text) for text in shown["validation loss"]]
    assert losses == sorted(losses)
    for sentence in findings.headline(read(out)):
        assert sentence in page.text


def test_the_page_says_what_was_run_and_how_to_repeat_it(out: Path) -> None:
    text = " ".join(Page((out / "report.html").read_text(encoding="utf-8")).text.split())
    manifest = json.loads((out / "mezo" / "manifest.json").read_text())
    assert TESTED in text
    assert all(digest in text for digest in manifest["corpus"]["sha256"].values())
    assert f"torch {manifest['versions']['torch']}" in text and manifest["machine"]["processor"] in text
    for name in ["fo", *RUNS]:
        assert f"kronzo pretrain OUT/{name}/config.toml" in text
    assert str(out) not in text


def test_it_says_that_noise_is_not_separated(out: Path) -> None:
    text = " ".join(Page((out / "report.html").read_text(encoding="utf-8")).text.split())
    assert "their noise is not separated" in text and "not how many directions carry information" in text


def test_names_cannot_inject_markup(copy: Path) -> None:
    plan = json.loads((copy / "plan.json").read_text())
    plan["command"] = "kronzo reproduce --out '<script>alert(1)</script>'"
    plan["runs"]["mezo"]["label"] = "<b>MeZO</b>"
    (copy / "plan.json").write_text(json.dumps(plan))
    page = page_of(copy)
    assert "script" not in {tag for tag, _ in page.tags} and "b" not in {tag for tag, _ in page.tags}
    assert "<script>alert(1)</script>" in page.text and "<b>MeZO</b>" in page.text


@pytest.mark.slow
def test_the_same_folder_gives_the_same_files(copy: Path) -> None:
    before = {path: path.read_bytes() for path in sorted(copy.glob("figures/*")) + sorted(copy.glob("tables/*"))}
    page = (copy / "report.html").read_bytes()
    report.write(copy)
    assert len(before) == 22
    assert [path for path, data in before.items() if path.read_bytes() != data] == []
    assert (copy / "report.html").read_bytes() == page


# ---------------------------------------------------------------- less than everything


def test_missing_and_unfinished_runs_are_named(copy: Path) -> None:
    shutil.rmtree(copy / "lozo")
    (copy / "mezo" / "result.json").unlink()
    lines = (copy / "mezo" / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copy / "mezo" / "metrics.jsonl").write_bytes(b"".join(lines[:20]))
    text = page_of(copy).text
    assert "LOZO has not begun." in text and "MeZO stopped at step 19 of 32." in text
    assert "MeZO (unfinished)" in text
    assert "! LOZO has not begun" in report.terminal(copy)
    assert not any("MeZO" in sentence for sentence in findings.headline(read(copy)))
    frame = report_tables.losses(read(copy)).set_index("method")
    assert "lozo" not in frame.index and math.isnan(frame.loc["mezo", "val_loss"]) and frame.loc["mezo", "steps"] == 19


def test_a_plan_of_which_nothing_has_begun_gives_a_page(copy: Path) -> None:
    for name in ("tuning.json", "run.json", "reference.json"):
        (copy / name).unlink()
    for name in ["fo", *RUNS]:
        shutil.rmtree(copy / name)
    text = Page(report.write(copy).read_text(encoding="utf-8")).text
    assert "no run of the comparison has finished" in text and "No spectra were captured yet." in text
    assert report_figures.write(read(copy), copy / "figures") == {}
    assert "Nothing to compare yet" in report.terminal(copy)


def test_a_run_without_its_first_step_is_no_obstacle(copy: Path) -> None:
    (copy / "mezo" / "result.json").unlink()
    (copy / "mezo" / "metrics.jsonl").write_bytes(b"")
    assert "MeZO stopped at step 0 of 32." in page_of(copy).text


def test_a_diverged_run_is_said_to_have_diverged(copy: Path) -> None:
    result = json.loads((copy / "mezo" / "result.json").read_text())
    (copy / "mezo" / "result.json").write_text(json.dumps(result | {"diverged": True, "val_loss": None}))
    text = page_of(copy).text
    assert "MeZO diverged" in text and "MeZO (diverged)" in text and "unfinished reproduction" not in text


def test_a_folder_that_is_none_is_refused(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(InputError, match=r"no plan\.json there; give the --out folder"):
        report.write(tmp_path)
    (copy / "tuning.json").write_text("[{")
    with pytest.raises(InputError, match=r"tuning\.json: cannot be read"):
        report.terminal(copy)


# ---------------------------------------------------------------- the terminal


def test_the_terminal_summary_fits_80_columns_and_holds_the_losses(out: Path) -> None:
    text = report.terminal(out)
    lines = text.splitlines()
    assert max(map(len, lines[:-1])) <= 80 and "…" not in text and "nan" not in text
    results = pd.read_csv(out / "tables" / "results.csv")
    for _, row in results.iterrows():
        line = next(line for line in lines if line.startswith(f"{row['label']} ") and "ms" in line)
        assert f"{row['val_loss']:.3f}" in line
    assert lines[-1] == f"report: {out / 'report.html'}"
