"""What the written account names exists: files, tests, Python names, commands; and its Python blocks run."""

import ast
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer.main

import kronzo.cli
import spectra.cli
from kronzo.pretrain.launch import compose
from kronzo.pretrain.plan import read_plan

ROOT = Path(__file__).resolve().parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "PAPERS.md")), *DOCS]
COMMANDS: dict[str, Any] = {
    "kronzo": typer.main.get_command(kronzo.cli.app),
    "spectra": typer.main.get_command(spectra.cli.app),
}

FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)[^)]*\)")
FILE = re.compile(r"(?:kronzo|spectra|tests|docs|benchmarks|figures|notebooks|\.ci)/[\w./*-]*(?:::\w+)?")
NAME = re.compile(r"((?:kronzo|spectra)(?:\.[A-Za-z_]\w*)+)(?:\(.*)?", re.DOTALL)

by_page = pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _inline(page: Path) -> list[str]:
    """The `code` between single backticks, its line breaks as spaces."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", _text(page)))]


def _blocks(page: Path, language: str) -> list[str]:
    return [body for kind, body in FENCE.findall(_text(page)) if kind.strip() == language]


# ---------------------------------------------------------------------- files and names


@by_page
def test_links_lead_to_files(page: Path) -> None:
    targets = [target for target in LINK.findall(FENCE.sub("", _text(page))) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@by_page
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    named = [code for code in _inline(page) if FILE.fullmatch(code)]
    assert [code for code in named if not _exists(code)] == []


def _exists(code: str) -> bool:
    path, _, test = code.partition("::")
    found = list(ROOT.glob(path)) if path else []
    return bool(found) and (not test or f"def {test}(" in _text(found[0]))


@by_page
def test_python_names_resolve(page: Path) -> None:
    named = [match[1] for code in _inline(page) if (match := NAME.fullmatch(code))]
    assert [name for name in named if not _resolves(name)] == []


def _resolves(name: str) -> bool:
    head, *rest = name.split(".")
    found: Any = import_module(head)
    for place, part in enumerate(rest, 1):
        if hasattr(found, part):
            found = getattr(found, part)
        elif part in getattr(found, "__dataclass_fields__", {}):
            return place == len(rest)
        else:
            try:
                found = import_module(".".join((head, *rest[:place])))
            except ModuleNotFoundError as error:
                return _lacks_an_extra(error)
    return True


def _lacks_an_extra(error: ModuleNotFoundError) -> bool:
    """Whether a module of ours exists and what it needs is not installed: then its names cannot be judged here."""
    return (error.name or "").split(".")[0] not in COMMANDS


@pytest.mark.extra
def test_with_every_extra_all_names_can_be_judged() -> None:
    for package in ("transformers", "lightning", "tensorboard", "peft"):
        pytest.importorskip(package)
    assert _lacks_an_extra(ModuleNotFoundError(name="transformers"))
    for module in (ROOT / "kronzo" / "integrations").glob("*.py"):
        import_module(f"kronzo.integrations.{module.stem}")
    assert not _resolves("kronzo.integrations.hf.Nothing")


def test_what_does_not_exist_is_noticed() -> None:
    assert _exists("tests/test_docs.py::test_what_does_not_exist_is_noticed")
    assert not _exists("tests/test_docs.py::test_of_nothing") and not _exists("kronzo/nothing.py")
    assert _resolves("kronzo.pretrain.config.Config") and _resolves("spectra.svd.Spectrum.values")
    assert not _resolves("kronzo.KronZO.nothing") and not _resolves("spectra.nothing.at_all")


# ---------------------------------------------------------------------- DESIGN.md against the code


def _folders() -> dict[str, set[str]]:
    """Folder -> modules, of the packages, without __init__ and __main__."""
    found: dict[str, set[str]] = {}
    for path in [*(ROOT / "kronzo").rglob("*.py"), *(ROOT / "spectra").rglob("*.py")]:
        if not path.name.startswith("__"):
            found.setdefault(f"{path.parent.relative_to(ROOT).as_posix()}/", set()).add(path.name)
    return found


def test_the_design_has_a_line_for_every_module() -> None:
    told: dict[str, set[str]] = {}
    folder = ""
    for line in "".join(_blocks(ROOT / "docs" / "DESIGN.md", "text")).splitlines():
        if not line.startswith(" "):
            folder = line.strip()
        else:
            name, what = line.split(maxsplit=1)
            assert what and name not in told.setdefault(folder, set()), line
            told[folder].add(name)
    assert told == _folders()


def _imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(_text(path))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def _importers(files: list[Path], *packages: str) -> list[str]:
    inside = re.compile(rf"(?:{'|'.join(map(re.escape, packages))})(?:\.|$)")
    return [file.name for file in files if any(inside.match(name) for name in _imports(file))]


def test_imports_go_one_way() -> None:
    optimizer_library = [path for path in (ROOT / "kronzo").glob("*.py") if path.name not in ("cli.py", "__main__.py")]
    optimizer_library += (ROOT / "kronzo" / "spaces").glob("*.py")
    assert _importers(list((ROOT / "spectra").rglob("*.py")), "kronzo") == []
    assert _importers(optimizer_library, "spectra", "kronzo.pretrain") == []
    assert "loop.py" in _importers(list((ROOT / "kronzo" / "pretrain").glob("*.py")), "spectra")


# ---------------------------------------------------------------------- Python blocks


def _program(page: Path) -> str:
    """The python blocks of a page, every other line left blank, so that errors name the page's own lines."""
    lines, running = [], False
    for line in _text(page).splitlines():
        running = (running or line == "```python") and line != "```"
        lines.append(line if running and line != "```python" else "")
    return "\n".join(lines)


ELSEWHERE = ("spectra.md", "huggingface.md")
"""Pages whose blocks run in tests/spectra/test_spectra_docs.py, and below with every extra."""
WITH_PYTHON = [page for page in DOCS if _blocks(page, "python") and page.name not in ELSEWHERE]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[page.name for page in WITH_PYTHON])
def test_python_blocks_run_one_after_the_other(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(_program(page), page, "exec"), {"__name__": page.stem})


@pytest.mark.extra
@pytest.mark.filterwarnings("ignore")
def test_blocks_that_need_transformers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("peft", "lightning"):
        pytest.importorskip(library)
    test_python_blocks_run_one_after_the_other(ROOT / "docs" / "huggingface.md", tmp_path, monkeypatch)


@pytest.mark.extra
def test_the_documentation_builds_without_warnings(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    build = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", str(ROOT / "docs"), str(tmp_path)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kronzo.methods.KronZO" in (tmp_path / "api.html").read_text(encoding="utf-8")


def test_a_block_that_fails_is_noticed_at_its_line(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\na = 1\n```\n\n```python notest\n1 / 0\n```\n\n```python\na / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile(_program(page), page, "exec"), {})
    assert caught.traceback[-1].lineno + 1 == 12


@by_page
def test_python_blocks_that_do_not_run_here_are_python(page: Path) -> None:
    for block in _blocks(page, "python notest"):
        ast.parse(block)


def test_there_is_no_other_kind_of_python_block() -> None:
    kinds = {kind.strip() for page in PAGES for kind, _ in FENCE.findall(_text(page))}
    assert {kind for kind in kinds if "py" in kind} <= {"python", "python notest"}


# ---------------------------------------------------------------------- commands


def _command_lines(page: Path) -> list[list[str]]:
    """The `kronzo` and `spectra` calls of the shell blocks, as words."""
    text = "".join(_blocks(page, "sh") + _blocks(page, "bash")).replace("\\\n", " ")
    calls = [call for line in text.splitlines() for call in re.split(r"&&|;", line)]
    words = [shlex.split(call.removeprefix("$ "), comments=True) for call in calls]
    words = [call[call.index("kronzo") :] if call[:1] == ["torchrun"] else call for call in words]
    return [call for call in words if call and call[0] in COMMANDS]


def _resolve(words: list[str]) -> tuple[Any, list[str]]:
    """The command that some words call, and the words that it gets."""
    command, rest = COMMANDS[words[0]], words[1:]
    while rest and rest[0] in getattr(command, "commands", {}):
        command, rest = command.commands[rest[0]], rest[1:]
    return command, rest


def _parse(words: list[str]) -> None:
    """Parse a command line without running it; what a preset or config would refuse is refused here too."""
    command, rest = _resolve(words)
    if set(rest) & {"--help", "--version"}:
        return
    assert not hasattr(command, "commands"), f"{' '.join(words)}: no such command"
    given = command.make_context(command.name, list(rest)).params
    if command.name == "reproduce":
        read_plan(given["preset"], given["set_"] or ())
    if command.name == "pretrain" and (given["config"] is None or ":" in str(given["config"])):
        options = {key: given[key] for key in ("model", "method", "data", "tokenizer", "init")}
        compose(given["config"], **options, settings=given["set_"] or ())


@by_page
def test_command_lines_parse(page: Path) -> None:
    for words in _command_lines(page):
        _parse(words)


@by_page
def test_commands_named_in_the_text_exist(page: Path) -> None:
    for code in _inline(page):
        words = code.split()
        if words[0] not in COMMANDS or len(words) == 1:
            continue
        command, rest = _resolve(words)
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        options = {word.partition("=")[0] for word in rest if word.startswith("--")}
        assert options <= known and (options or not hasattr(command, "commands")), code


@pytest.mark.parametrize(
    "line",
    [
        "kronzo reproduse",
        "kronzo reproduce --presett smoke",
        "kronzo reproduce --preset smok",
        "kronzo reproduce --set methods.mezo.lrs=[1]",
        "kronzo pretrain --method kronzo --set optimizer.epps=1",
        "kronzo pretrain paper:kronzo-directionl --model gpt2-xl",
        "spectra report",
    ],
)
def test_wrong_command_lines_are_noticed(line: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        _parse(line.split())
    assert type(caught.value).__name__ in ("AssertionError", "NoSuchOption", "InputError", "MissingParameter")


def test_there_are_command_lines_to_check() -> None:
    assert sum(len(_command_lines(page)) for page in PAGES) >= 10
