"""Every Python block of docs/spectra.md runs, one after the other, and every metric and command is explained there."""

import re
from pathlib import Path

import pytest

from spectra import cli, labels

PAGE = Path(__file__).parents[2] / "docs" / "spectra.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="the documentation is not part of an installed package")


def test_the_blocks_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) >= 7
    namespace = {}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, block {number}", "exec"), namespace)


def test_every_metric_and_command_is_explained():
    text = PAGE.read_text(encoding="utf-8")
    for name in labels.LABELS:
        assert f"`{name}`" in text or f"`_{name.rpartition('_')[2]}`" in text, name
    for command in cli.app.registered_commands:
        assert f"spectra {command.callback.__name__} " in text
