import ast
import gzip
import inspect
import io
import json
import re
import subprocess
import sys
import tarfile
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_files import nested_tar, write_texts

from kronzo.errors import InputError
from kronzo.pretrain import corpus, hub
from kronzo.pretrain.data import open_corpus
from kronzo.pretrain.textfiles import local_path, read_documents, text_file, text_sha256

TEXTS = ["first\nline two\n\nparagraph", "second: naïve café ✓", "third\twith tab"]


def pinned(*packages: str) -> bool:
    return all(corpus._version(package) == corpus.PINNED[package] for package in packages)


# pydocs


MODULE = '''
"""Module.

    indented
"""
x = 1
"not a docstring"
class A(B):
    """Class A."""
    y = """neither"""
    def f(self):
        """Method f."""
        def inner(): "inner"
        return "nor this"
if x:
    async def g(): """g."""
else:
    def h(): "h"
try:
    def i(): "i"
except E:
    def j(): "j"
finally:
    def k(): "k"
match x:
    case 1:
        def l(): "l"
for _ in x:
    with y:
        def m(): "m\\ud800"
def empty(): "  "
'''


def test_docstrings_are_found_wherever_a_definition_stands_and_nothing_else():
    found = list(corpus.docstrings(MODULE.encode()))
    assert found == ["Module.\n\nindented", "Class A.", "Method f.", "inner", "g.", *"hijkl", "m?"]


def test_docstrings_equal_those_of_a_walk_over_the_whole_tree():
    source = Path(inspect.__file__).read_bytes()
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    walked = [ast.get_docstring(node, clean=False) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    assert sorted(corpus.docstrings(source)) == sorted(
        corpus.dedented(text) for text in walked if text and text.strip()
    )


@given(st.lists(st.sampled_from(["", "a", "  b c", "    d  ", "\te", "      "]), min_size=1, max_size=8))
def test_dedenting_agrees_with_the_library_up_to_blank_lines(lines):
    def squeezed(text: str) -> list[str]:
        return [line.rstrip() for line in text.split("\n") if line.strip()]

    text = "\n".join(lines)
    assert squeezed(corpus.dedented(text)) == squeezed(inspect.cleandoc(text))
    assert "\n\n\n" not in corpus.dedented(text)


def test_paragraphs_are_kept_once_over_all_documents():
    documents = ["a\n\nb", "b\n\nc  d\n\nb", "a\n\nb", "c d\n\ne"]
    assert list(corpus.deduplicated(documents)) == ["a\n\nb", "c  d", "e"]


def test_pydocs_of_two_packages_is_the_text_that_was_measured(own_cache):
    if not pinned("numpy", "scipy"):
        pytest.skip("needs the pinned numpy and scipy")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opened = open_corpus("pydocs:scipy,numpy")
    assert opened.name == "pydocs:numpy,scipy"
    assert opened.manifest["sha256"] == corpus.EXPECTED_SHA256["numpy", "scipy"]
    assert opened.manifest["versions"] == {"numpy": corpus.PINNED["numpy"], "scipy": corpus.PINNED["scipy"]}
    sides = {split: opened.tokenizer.decode(getattr(opened, split)) for split in ("train", "val")}
    paragraphs = {split: {" ".join(one.split()) for one in text.split("\n\n")} for split, text in sides.items()}
    assert len(paragraphs["val"]) > 1000
    joined = [one for one in paragraphs["val"] & paragraphs["train"] if one]
    assert not joined
    assert sum(opened.manifest["documents"].values()) > 500


@pytest.mark.slow
def test_pydocs_of_all_packages_is_the_text_that_was_measured(tmp_path):
    if not pinned(*corpus.PACKAGES):
        pytest.skip("needs all pinned packages")
    source = corpus.pydocs("", tmp_path)
    assert text_sha256(source.documents()) == corpus.EXPECTED_SHA256[corpus.PACKAGES]


def test_other_versions_and_other_files_warn(monkeypatch):
    monkeypatch.setitem(corpus.PINNED, "seaborn", "0.0.1")
    with pytest.warns(UserWarning, match=r"seaborn .* \(not 0\.0\.1\)"):
        open_corpus("pydocs:seaborn")
    monkeypatch.setitem(corpus.PINNED, "seaborn", corpus._version("seaborn"))
    monkeypatch.setitem(corpus.EXPECTED_SHA256, ("seaborn",), "0" * 64)
    with pytest.warns(UserWarning, match="other files than the tested wheels"):
        open_corpus("pydocs:seaborn")


def test_pins_are_those_of_the_constraints():
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert dict(re.findall(rf"^({'|'.join(corpus.PACKAGES)})==(\S+)$", constraints, re.M)) == corpus.PINNED


def test_packages_are_read_and_never_imported(own_cache):
    code = (
        "import sys; from kronzo.pretrain.data import open_corpus; open_corpus('pydocs:seaborn');"
        "print([name for name in ('seaborn', 'torch', 'scipy', 'pandas', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_package_names_the_install_line(monkeypatch):
    monkeypatch.setattr(corpus, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"run pip install seaborn==0"):
        open_corpus("pydocs:seaborn")


def test_pytopics_has_no_paragraph_on_both_sides():
    opened = open_corpus("pytopics")
    assert sum(opened.manifest["bytes"].values()) > 200_000
    train, val = (set(opened.tokenizer.decode(ids).split("\n\n")) for ids in (opened.train, opened.val))
    assert val and not train & val


# Files


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.txt", "a.tar"])
def test_every_format_gives_the_same_documents(tmp_path, name):
    assert list(read_documents(write_texts(tmp_path / name, TEXTS))) == TEXTS
    assert list(text_file(tmp_path / name).documents()) == TEXTS


def test_a_text_is_cut_at_blank_lines_into_documents_of_two_kilobytes(tmp_path):
    paragraphs = [f"paragraph {i} " + "word " * 30 for i in range(100)]
    path = tmp_path / "a.txt"
    path.write_text("\n\n".join(paragraphs))
    documents = list(read_documents(path))
    assert "\n\n".join(documents) == "\n\n".join(paragraphs)
    assert all(2048 <= len(document) < 2400 for document in documents[:-1])
    path.write_text("\n".join(paragraphs))
    documents = list(read_documents(path))
    assert "\n".join(documents) == "\n".join(paragraphs)
    assert all(8192 <= len(document) < 8600 for document in documents[:-1])


def broken(name: str, tmp_path: Path) -> Path:
    path = tmp_path / name
    good = (json.dumps({"text": "x" * 100}) + "\n").encode()
    match name:
        case "utf8.txt":
            path.write_bytes(b"abc\n" * 10 + b"de\xff\n")
        case "utf8.jsonl.gz":
            path.write_bytes(gzip.compress(good * 3 + b'{"text": "\xc3("}\n'))
        case "json.jsonl":
            path.write_bytes(good + b"{text\n")
        case "key.jsonl":
            path.write_bytes(good + b'{"body": "x"}\n')
        case "half.jsonl":
            path.write_bytes(good + b'{"text": "\\ud83d"}\n')
        case "cut.jsonl.gz":
            path.write_bytes(gzip.compress(good * 5000)[:-20])
        case "plain.jsonl.gz":
            path.write_bytes(good)
        case "column.parquet":
            pq.write_table(pa.table({"body": ["x"]}), path)
        case "noise.parquet" | "noise.tar":
            path.write_bytes(b"PAR1 nothing of the kind" * 50)
        case "utf8.tar":
            path.write_bytes(nested_tar(["fine"]).replace(b"nothing", b""))
            with tarfile.open(path, "w") as archive:
                info = tarfile.TarInfo("doc.txt")
                info.size = 3
                archive.addfile(info, io.BytesIO(b"a\xffb"))
        case "empty.txt":
            path.write_bytes(b"")
    return path


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("utf8.txt", r"utf8\.txt: byte 42 is not UTF-8"),
        ("utf8.jsonl.gz", r"byte 349 is not UTF-8"),
        ("json.jsonl", r"json\.jsonl, line 2: not JSON"),
        ("key.jsonl", r'key\.jsonl, line 2: no text; every line needs an object {"text"'),
        ("half.jsonl", r"half\.jsonl, line 2: half a surrogate pair"),
        ("cut.jsonl.gz", r"cut\.jsonl\.gz cannot be read"),
        ("plain.jsonl.gz", r"plain\.jsonl\.gz cannot be read"),
        ("column.parquet", r"column\.parquet has the columns body; it needs one named text"),
        ("noise.parquet", r"noise\.parquet is not a readable parquet file"),
        ("noise.tar", r"noise\.tar is not a readable tar archive"),
        ("utf8.tar", r"utf8\.tar/doc\.txt: byte 1 is not UTF-8"),
        ("empty.txt", r"empty\.txt is empty \(0 bytes\)"),
        ("absent.jsonl", r"absent\.jsonl cannot be read \(No such file"),
    ],
)
def test_what_is_broken_is_named_with_its_place(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        open_corpus(str(broken(name, tmp_path)))


# The hub


def test_openwebtext_out_of_reach_is_one_sentence(monkeypatch):
    monkeypatch.setattr(hub, "find_spec", lambda name: object())
    monkeypatch.setattr(hub, "_HOST", ("127.0.0.1", 1))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(InputError, match=r"does not answer; .*kronzo data build openwebtext --from FOLDER --out DIR"):
        open_corpus("openwebtext")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set"):
        open_corpus("openwebtext")
    monkeypatch.setattr(hub, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r'pip install -e "\.\[hub\]"'):
        open_corpus("openwebtext")


def test_a_name_that_never_resolves_does_not_hang(monkeypatch):
    import threading

    monkeypatch.setattr(hub, "_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(hub.socket, "create_connection", lambda *_, **__: threading.Event().wait())
    assert not hub._reachable()


def test_openwebtext_is_streamed_from_the_repository_or_its_conversion(monkeypatch):
    calls = []

    class Datasets:
        @staticmethod
        def load_dataset(repository, **options):
            calls.append((repository, options.get("revision"), options["streaming"]))
            if "revision" not in options:
                raise RuntimeError("Dataset scripts are no longer supported")
            return iter([{"text": text} for text in TEXTS])

    monkeypatch.setitem(sys.modules, "datasets", Datasets)
    assert list(hub._documents()) == TEXTS
    assert calls == [(hub.REPOSITORY, None, True), (hub.REPOSITORY, "refs/convert/parquet", True)]


def test_a_source_is_found_here_first_and_then_in_the_folder_of_local_data(tmp_path, monkeypatch, own_cache):
    data, here = tmp_path / "data", tmp_path / "here"
    (data / "set").mkdir(parents=True)
    here.mkdir()
    (data / "set" / "a.txt").write_text("there one\n\n" * 400 + "there two " * 400)
    monkeypatch.chdir(here)
    monkeypatch.setenv("KRONZO_DATA", str(data))
    assert local_path("set/a.txt") == data / "set" / "a.txt"
    assert open_corpus("set/a.txt").name == "a.txt"
    (here / "set").mkdir()
    (here / "set" / "a.txt").write_text("here")
    assert local_path("set/a.txt") == Path("set/a.txt")
    assert local_path("set/absent.txt") == Path("set/absent.txt")
