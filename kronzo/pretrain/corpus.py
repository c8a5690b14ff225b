"""Where text comes from: docstrings of installed packages, Python's language reference, and files.

A source knows what decides its content (`identity`, part of the cache key) and gives its documents, in a fixed order,
as often as it is asked to. Token sources (nanoGPT folders, the synthetic source) are not here: see `data`, `synthetic`.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import json
import warnings
from collections.abc import Iterable, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import cache, hub
from kronzo.pretrain.textfiles import (
    SUFFIXES,
    Progress,
    TextSource,
    local_path,
    read_jsonl,
    silent,
    text_file,
    text_sha256,
)

SOURCES = ("pydocs", "pytopics", "synthetic", "openwebtext")
PACKAGES = ("matplotlib", "numpy", "pandas", "scipy", "seaborn", "torch")
PINNED = {
    "matplotlib": "3.11.2",
    "numpy": "2.4.6",
    "pandas": "3.1.1",
    "scipy": "1.17.1",
    "seaborn": "0.13.2",
    "torch": "2.13.0",
}
EXPECTED_SHA256 = {
    PACKAGES: "78a2c65717b1613ca3853e444dc134398e23e24ad2c430c258175274ac1565be",
    ("numpy", "scipy"): "580a56a1cdc5a1eeb383c4f636e41483af0ff4e5f2ea81368c6c41b80b3d31c1",
}
_BLOCK = 2048
_SKIPPED = {"tests", "test", "testing"}
_FORMAT = 1


def deduplicated(documents: Iterable[str]) -> Iterator[str]:
    """Documents without the paragraphs that an earlier one (or the same one) holds; empty documents are left out."""
    seen: set[bytes] = set()
    for document in documents:
        kept = []
        for paragraph in document.split("\n\n"):
            key = hashlib.sha256(" ".join(paragraph.split()).encode("utf-8")).digest()[:16]
            if paragraph.strip() and key not in seen:
                seen.add(key)
                kept.append(paragraph)
        if kept:
            yield "\n\n".join(kept)


def pydocs(selection: str, root: Path, progress: Progress = silent) -> TextSource:
    """The docstrings of installed packages, read from their files and never imported; a document is a module.

    Tests and folders named testing are skipped, and so is a paragraph that an earlier document holds. The extracted
    text is cached; the first extraction of all six packages takes about 20 s.

    Args:
        selection: "" for all six packages or their names between commas.
        root: the cache.
        progress: called with a label, files done and files in all.

    Raises:
        InputError: an unknown or absent package.
    """
    packages = _packages(selection)
    versions = {package: _version(package) for package in packages}
    source = "pydocs" if packages == PACKAGES else f"pydocs:{','.join(packages)}"
    identity = {"source": source, "versions": versions, "format": _FORMAT}

    def build(folder: Path) -> dict[str, Any]:
        documents = list(deduplicated(_modules(packages, progress)))
        with (folder / "documents.jsonl").open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps(document) + "\n" for document in documents)
        return {"documents": len(documents), "sha256": text_sha256(documents), "versions": versions}

    folder, manifest = cache.entry(root / "texts", source, identity, build)
    _compare(packages, versions, manifest["sha256"])
    return TextSource(source, identity, lambda: read_jsonl(folder / "documents.jsonl"), versions)


def _packages(selection: str) -> tuple[str, ...]:
    names = sorted({name.strip() for name in selection.split(",") if name.strip()}) if selection else PACKAGES
    for name in names:
        if name not in PACKAGES:
            near = difflib.get_close_matches(name, PACKAGES, n=1, cutoff=0.0)[0]
            raise InputError(f"pydocs reads {', '.join(PACKAGES)}, not {name!r}; did you mean {near!r}?")
        if find_spec(name) is None:
            raise InputError(f"pydocs:{name} needs the package {name}; run pip install {name}=={PINNED[name]}.")
    return tuple(names)


def _version(package: str) -> str:
    return metadata.version(package).partition("+")[0]


def _compare(packages: tuple[str, ...], versions: dict[str, str], sha256: str) -> None:
    """Warn when the text is not the one that committed numbers were measured on."""
    other = [
        f"{package} {version} (not {PINNED[package]})"
        for package, version in versions.items()
        if version != PINNED[package]
    ]
    if other:
        warnings.warn(
            f"pydocs was read from {', '.join(other)}; numbers will differ from the committed ones.", stacklevel=3
        )
    elif sha256 != EXPECTED_SHA256.get(packages, sha256):
        warnings.warn(
            f"pydocs has sha256 {sha256[:16]}... and not {EXPECTED_SHA256[packages][:16]}...: the packages hold other "
            "files than the tested wheels; numbers will differ from the committed ones.",
            stacklevel=3,
        )


def _modules(packages: Iterable[str], progress: Progress) -> Iterator[str]:
    """The joined docstrings of every module that has some, in the order of their paths."""
    files = [path for package in packages for path in _module_files(package)]
    for done, path in enumerate(files):
        progress("reading docstrings", done, len(files))
        try:
            text = "\n\n".join(docstrings(path.read_bytes()))
        except SyntaxError as error:
            warnings.warn(f"{path} is not for this Python ({error}); pydocs is built without it.", stacklevel=2)
            continue
        if text:
            yield text
    progress("reading docstrings", len(files), len(files))


def _module_files(package: str) -> list[Path]:
    spec = find_spec(package)
    assert spec is not None and spec.submodule_search_locations
    root = Path(next(iter(spec.submodule_search_locations)))
    inside = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py"))
    return [root / name for name in inside if not _SKIPPED.intersection(name.split("/")[:-1])]


def docstrings(source: bytes) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, in source order, dedented alike on every Python.

    Statements are walked and expressions are not, which finds the same and takes a third of the time of `ast.walk`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text and (text := dedented(text)):
                yield text.encode("utf-8", errors="replace").decode("utf-8")
        blocks = (getattr(node, name, ()) for name in ("body", "handlers", "orelse", "finalbody", "cases"))
        inner = [child for block in blocks if isinstance(block, list) for child in block]
        todo.extend(
            child for child in reversed(inner) if isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case)
        )


def dedented(docstring: str) -> str:
    """A docstring without indentation, trailing spaces and outer blank lines; one blank line parts paragraphs."""
    lines = [line.rstrip() for line in docstring.expandtabs().split("\n")]
    margin = min((len(line) - len(line.lstrip(" ")) for line in lines[1:] if line), default=0)
    kept = [lines[0].strip(), *(line[margin:] for line in lines[1:])]
    paragraphs = "\n".join(kept).split("\n\n")
    return "\n\n".join(stripped for paragraph in paragraphs if (stripped := paragraph.strip("\n")))


def pytopics() -> TextSource:
    """The language reference that Python itself carries (`pydoc_data`), paragraphs once, documents of some 2 kB."""
    from platform import python_version
    from pydoc_data.topics import topics

    texts = [dedented(str(topics[name])) for name in sorted(topics)]
    identity = {"source": "pytopics", "sha256": text_sha256(texts), "format": _FORMAT}
    return TextSource("pytopics", identity, lambda: _blocks(deduplicated(texts)), {"python": python_version()})


def _blocks(documents: Iterable[str]) -> Iterator[str]:
    """Documents cut between paragraphs into ones of at least 2 048 characters, but for the last of each."""
    for document in documents:
        block = ""
        for paragraph in document.split("\n\n"):
            block = f"{block}\n\n{paragraph}" if block else paragraph
            if len(block) >= _BLOCK:
                yield block
                block = ""
        if block:
            yield block


def text_source(source: str, root: Path, show: Progress) -> TextSource:
    """The text source of a name or file.

    Raises:
        InputError: unknown, with the nearest name; unreadable or empty.
    """
    kind, _, option = source.partition(":")
    path = local_path(source)
    if kind == "pydocs":
        return pydocs(option, root, show)
    if source == "pytopics":
        return pytopics()
    if path.name.endswith(SUFFIXES):
        return text_file(path)
    if source == "openwebtext":
        return hub.openwebtext()
    if path.exists():
        raise InputError(f"corpus {source} has an unknown suffix; it needs one of {', '.join(SUFFIXES)}, .bin.")
    near = difflib.get_close_matches(source, SOURCES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "give one of these."
    raise InputError(f"corpus {source!r} is neither {', '.join(SOURCES)} nor a file or folder that exists; {hint}")
