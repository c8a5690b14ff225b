import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("kronzo", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("kronzo")


def _homes() -> list[Path]:
    """Where local data sets are looked for: KRONZO_DATA, then the folder shared/data beside the checkout."""
    given = os.environ.get("KRONZO_DATA")
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    return [*([Path(given)] if given else []), beside]


@pytest.fixture(scope="session")
def local_data() -> Callable[[str], Path]:
    """local_data("glue/CoLA"): the path of a local data set; the test is skipped by name where it is absent."""

    def find(name: str) -> Path:
        for home in _homes():
            if (home / name).exists():
                return home / name
        pytest.skip(f"needs {name} in KRONZO_DATA or in shared/data beside the checkout")

    return find


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this test run's own: the user's is neither read nor written."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("KRONZO_CACHE", str(cache))
        yield cache


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forbid-skips", action="store_true", help="a skipped test has failed; .ci/run uses it")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and item.config.getoption("--forbid-skips") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and skips are forbidden here: {report.longrepr}"
