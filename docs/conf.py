"""Sphinx configuration: `sphinx-build -W -b html docs OUT` (extra docs)."""

from typing import Any

from kronzo import __version__

project = "kronzo + spectra"
author = "The kronzo developers"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["out", "laptop"]
myst_heading_anchors = 3
suppress_warnings = ["myst.xref_missing"]  # links to files outside docs/; tests/test_docs.py checks that they exist
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_rtype = False
napoleon_custom_sections = [("Cost", "notes"), ("Source", "notes")]
html_theme = "furo"
html_title = "kronzo + spectra"


def _plain_bars(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Norms in docstrings are |G|, which reStructuredText would take for substitutions."""
    lines[:] = [line.replace("|", "\\|") for line in lines]


def setup(app: Any) -> None:
    """Connect what reads docstrings."""
    app.connect("autodoc-process-docstring", _plain_bars)
