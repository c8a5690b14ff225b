"""report.html in headless Chromium, without a network, on a desk and on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

playwright_api = pytest.importorskip("playwright.sync_api", reason="needs the extra browser (playwright)")
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from kronzo.pretrain.plan import read_plan
    from kronzo.pretrain.reproduce import reproduce

    out = tmp_path_factory.mktemp("browser") / "out"
    return reproduce(read_plan("test"), out, preset="test", progress=False, workers=1)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Debian's chromium")
    with playwright_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture(params=[1280, 390])
def opened(request: pytest.FixtureRequest, browser: Any, page_file: Path) -> Iterator[tuple[Any, int, list[str]]]:
    """The page at a width, and what the browser complained of or asked for while it loaded."""
    page = browser.new_page(viewport={"width": request.param, "height": 900})
    noise: list[str] = []
    page.on("console", lambda message: noise.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: noise.append(f"error: {error}"))
    page.on("request", lambda asked: asked.url.startswith(("file:", "data:")) or noise.append(f"asked: {asked.url}"))
    page.goto(page_file.as_uri())
    page.wait_for_load_state("networkidle")
    yield page, request.param, noise
    page.close()


def test_it_is_quiet_and_fits_the_width(opened: tuple[Any, int, list[str]]) -> None:
    page, width, noise = opened
    assert noise == []
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width


def test_every_picture_is_drawn_and_its_letters_can_be_read(opened: tuple[Any, int, list[str]]) -> None:
    page, width, _ = opened
    images = page.evaluate(
        "[...document.images].map(i => ({natural: i.naturalWidth, shown: i.getBoundingClientRect().width,"
        " narrow: i.parentElement.tagName == 'PICTURE' && i.currentSrc != i.src}))"
    )
    assert len(images) == 6 and all(image["natural"] > 0 for image in images)
    assert sum(image["narrow"] for image in images) == (4 if width < 700 else 0)
    pixels_a_point = 200 / 72
    assert all(7 * pixels_a_point * image["shown"] / image["natural"] >= 7 for image in images), "labels of 7 points"


def test_text_is_large_enough_and_long_tables_scroll_by_themselves(opened: tuple[Any, int, list[str]]) -> None:
    page, width, _ = opened
    sizes = page.evaluate(
        "[...document.querySelectorAll('p, li, td, th, figcaption, dd')]"
        ".map(e => parseFloat(getComputedStyle(e).fontSize))"
    )
    assert min(sizes) >= 13
    table = page.locator(".scroll").first
    if width < 700:
        assert table.evaluate("e => e.scrollWidth > e.clientWidth && getComputedStyle(e).overflowX == 'auto'")
        table.evaluate("e => { e.scrollLeft = 200 }")
        left = table.locator("tbody th").first.evaluate("e => e.getBoundingClientRect().left")
        assert left >= 0, "names stay in view"


def test_it_prints(browser: Any, page_file: Path) -> None:
    page = browser.new_page()
    page.goto(page_file.as_uri())
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 720, "height": 1000})
    assert page.evaluate("document.scrollingElement.scrollWidth") <= 720
    assert page.pdf(format="A4")[:5] == b"%PDF-"
    page.close()
