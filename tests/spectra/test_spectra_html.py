"""The page: self-contained, small, and its two selects change the plot (in Debian's chromium)."""

import re
import shutil

import pytest
import torch
from spectra_models import CONTEXT, TinyLM, batch

import spectra
from spectra import html, plots, report


@pytest.fixture(scope="module")
def run():
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with spectra.GradientRecorder(model, optimizer, every=2, split_half=2) as rec:
        for step in range(5):
            optimizer.zero_grad()
            for half in range(2):
                (model.loss(batch(2 * step + half)) / 2).backward()
                rec.micro_batch(tokens=4 * CONTEXT)
            optimizer.step()
    return rec.run


@pytest.fixture(scope="module")
def page(run):
    return report.render(run, "html")


def test_the_page_loads_nothing_and_is_small(page):
    assert len(page.encode()) < 3_000_000
    linked = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", page)
    assert all(link.startswith(("#", "data:")) for link in linked)
    assert not re.search(r"@import|url\(['\"]?http|fetch\(|<link[^>]+stylesheet", page)


def test_the_page_holds_the_numbers_of_the_report(page, run):
    frame = report.table(run)
    for value in frame["participation_ratio last"]:
        assert f"{value:.4g}" in page
    for layer in frame["layer"]:
        assert f"<option>{layer}</option>" in page
    assert "Gaussian matrix" in page and "TinyLM" in page


def test_spectra_are_thinned_at_both_ends():
    kept = plots.thinned(768, 80)
    assert kept[:5].tolist() == [0, 1, 2, 3, 4] and kept[-5:].tolist() == [763, 764, 765, 766, 767]
    assert 50 < len(kept) <= 80 and (kept[1:] > kept[:-1]).all()
    assert plots.thinned(7, 80).tolist() == list(range(7))


def test_layer_names_cannot_break_out_of_the_page(run):
    hostile = spectra.Run(run.parts, run.manifest | {"model": "<script>alert(1)</script>"}, ["<b>bad</b>"])
    drawn = html.page(hostile)
    assert "<script>alert(1)" not in drawn and "<b>bad</b>" not in drawn


def test_a_run_shows_itself_in_a_notebook(run):
    shown = run._repr_html_()
    assert "<svg" in shown and "<table" in shown and "block.mlp_in.weight" in shown
    assert "Run(0 layers" in spectra.Run([], {})._repr_html_()


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_selects_change_the_plot_without_an_error(page, tmp_path, width):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs Debian's chromium")
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 900})
        problems = []
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on(
            "request",
            lambda request: None if request.url.startswith(("file:", "data:")) else problems.append(request.url),
        )
        tab.goto(path.as_uri())
        drawn = [tab.inner_html("#stage")]
        tab.select_option("#layer", "block.mlp_in.weight")
        drawn.append(tab.inner_html("#stage"))
        assert tab.locator("#stage g[id^=step-]:visible").count() == 6
        tab.select_option("#step", "2")
        drawn.append(tab.inner_html("#stage"))
        assert tab.locator("#stage g[id^=step-]:visible").count() == 2
        assert len(set(drawn)) == 3 and problems == []
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
