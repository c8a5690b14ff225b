"""The nine tasks of GLUE and their rows, from a folder in GLUE's download layout, JSON subsets or the hub.

Source: Wang et al. 2019, "GLUE: a multi-task benchmark and analysis platform for natural language understanding". The
files are split at tabs and newlines only: their quotes are text, never csv's.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kronzo.errors import InputError
from kronzo.pretrain import hub
from kronzo.pretrain.tables import nearest

HUB = "hub"
REPOSITORY = "nyu-mll/glue"
_HUB_SPLITS = {"dev": "validation", "train": "train", "test": "test"}
_MOST_INCOMPLETE = 1e-3
_DOWNLOADS = "the tsv files of gluebenchmark.com or JSON subsets {id: {text_a, text_b, label}}"


@dataclass(frozen=True)
class Task:
    """One task.

    Attributes:
        name: its key, as on the hub.
        folder: its folder in the download.
        texts: columns of the one or two texts.
        label: column of the label.
        classes: the labels in the order of their numbers; () for a score that is predicted as a number.
        metrics: the official ones, keys of kronzo.pretrain.glue_metrics.METRICS.
        sizes: official number of rows by split.
        header: False where train and dev have no header but the columns source, label, mark, sentence.
    """

    name: str
    folder: str
    texts: tuple[str, ...]
    label: str
    classes: tuple[str, ...]
    metrics: tuple[str, ...]
    sizes: Mapping[str, int]
    header: bool = True

    @property
    def splits(self) -> tuple[str, ...]:
        """Its splits, dev and dev_mismatched before test."""
        return tuple(self.sizes)


def _task(name: str, folder: str, texts: str, label: str, classes: str, metrics: str, **sizes: int) -> Task:
    columns = tuple(texts.split(","))
    return Task(name, folder, columns, label, tuple(classes.split()), tuple(metrics.split()), sizes, name != "cola")


_ENTAILED = "entailment not_entailment"
TASKS = {
    task.name: task
    for task in (
        _task("cola", "CoLA", "sentence", "label", "0 1", "matthews", train=8551, dev=1043, test=1063),
        _task("sst2", "SST-2", "sentence", "label", "0 1", "accuracy", train=67349, dev=872, test=1821),
        _task("mrpc", "MRPC", "#1 String,#2 String", "Quality", "0 1", "f1 accuracy", train=3668, dev=408, test=1725),
        _task("stsb", "STS-B", "sentence1,sentence2", "score", "", "pearson spearman", train=5749, dev=1500, test=1379),
        _task("qqp", "QQP", "question1,question2", "is_duplicate", "0 1", "f1 accuracy",
              train=363846, dev=40430, test=390965),
        _task("mnli", "MNLI", "sentence1,sentence2", "gold_label", "entailment neutral contradiction", "accuracy",
              train=392702, dev=9815, dev_mismatched=9832, test=9796, test_mismatched=9847),
        _task("qnli", "QNLI", "question,sentence", "label", _ENTAILED, "accuracy", train=104743, dev=5463, test=5463),
        _task("rte", "RTE", "sentence1,sentence2", "label", _ENTAILED, "accuracy", train=2490, dev=277, test=3000),
        _task("wnli", "WNLI", "sentence1,sentence2", "label", "0 1", "accuracy", train=635, dev=71, test=146),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Split:
    """Rows of one split.

    Attributes:
        texts: the one or two texts of each row.
        labels: number of the class, or the score; empty for a test split.
        source: the file, or "hub".
        expected: official number of rows.
        incomplete: rows that were left out because columns are missing.
        repeated: training rows that were left out because they stand in an evaluation split, too.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[float, ...]
    source: str
    expected: int
    incomplete: int = 0
    repeated: int = 0

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def whole(self) -> bool:
        """Whether it has the official number of rows."""
        return len(self) + self.incomplete == self.expected or len(self) == self.expected

    def __str__(self) -> str:
        """The counts in words: a subset is called a subset."""
        words = f"{len(self)} rows" if self.whole else f"{len(self)} rows, a subset of {self.expected}"
        for number, why in ((self.incomplete, "incomplete"), (self.repeated, "also in an evaluation split")):
            words += f", {number} left out ({why})" if number else ""
        return f"{words} [{Path(self.source).name}]"


def chosen(names: str) -> list[Task]:
    """The tasks of a list between commas, or of "all".

    Raises:
        InputError: an unknown name; the nearest one is named.
    """
    words = [word.strip().lower() for word in names.split(",") if word.strip()]
    aliases = {task.folder.lower(): task.name for task in TASKS.values()}
    words = [aliases.get(word, word) for word in words]
    if words == ["all"]:
        return list(TASKS.values())
    for word in words or [names]:
        if word not in TASKS:
            raise InputError(
                f"--tasks {word!r}: unknown, did you mean {nearest(word, TASKS)}? Known: {', '.join(TASKS)}, all."
            )
    return [TASKS[word] for word in dict.fromkeys(words)]


def home(given: str | None) -> str:
    """The folder of GLUE that was given, "hub", or the folder glue in KRONZO_DATA.

    Raises:
        InputError: none of them is there.
    """
    data = os.environ.get("KRONZO_DATA")
    found = given or (str(Path(data).expanduser() / "glue") if data else "")
    if found != HUB and not (found and Path(found).is_dir()):
        was = f"{found}: no such folder" if found else "no --data and no KRONZO_DATA"
        raise InputError(f"{was}; give --data DIR with {_DOWNLOADS}, or --data hub.")
    return found


def read(task: Task, data: str) -> dict[str, Split]:
    """Read the splits of a task: train and dev, and dev_mismatched, test and test_mismatched where they are.

    Where a split is a subset, training rows whose texts stand in an evaluation split as well are left out.

    Args:
        task: which.
        data: a folder of GLUE, or "hub".

    Raises:
        InputError: missing or unreadable files, unknown labels, more rows than there officially are.
    """
    splits = _from_hub(task) if data == HUB else _from_folder(task, Path(data))
    for name, split in splits.items():
        if not len(split):
            raise InputError(f"{split.source}: no rows; download {task.folder} again.")
        if len(split) > split.expected:
            raise InputError(f"{split.source}: {len(split)} rows where {name} officially has {split.expected}.")
    if all(split.whole for split in splits.values()):
        return splits
    seen = {row for name, split in splits.items() if name.startswith("dev") for row in split.texts}
    return splits | {"train": _without(splits["train"], seen)}


def fingerprint(splits: Mapping[str, Split]) -> str:
    """Sixteen hex digits that stand for all texts and labels."""
    content = {name: (split.texts, split.labels) for name, split in splits.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def _without(split: Split, seen: set[tuple[str, ...]]) -> Split:
    kept = [i for i, row in enumerate(split.texts) if row not in seen]
    texts, labels = tuple(split.texts[i] for i in kept), tuple(split.labels[i] for i in kept)
    return Split(texts, labels, split.source, split.expected, split.incomplete, len(split) - len(kept))


def _from_folder(task: Task, root: Path) -> dict[str, Split]:
    place = root / task.folder
    files = {name: found for name in task.splits if (found := _file(place, name)) is not None}
    missing = [name for name in ("train", "dev") if name not in files]
    if missing:
        raise InputError(f"{place}: no {' and no '.join(missing)} split; put {_DOWNLOADS} there.")
    partner = files["dev"].with_name(files["dev"].name.replace("dev", "train"))
    if files["dev"].suffix == ".json" and files["train"].name != "train.tsv" and partner.is_file():
        files["train"] = partner
    return {name: _read_file(task, name, path) for name, path in files.items()}


def _file(place: Path, split: str) -> Path | None:
    """The file of a split: the whole one of the download, else a subset, tsv before json."""
    stem, _, mismatched = split.partition("_")
    names = [f"{split}.tsv"] if mismatched or split == "train" else [f"{split}.tsv", f"{split}_matched.tsv"]
    patterns = [] if mismatched else [f"*{stem}*.tsv", f"*{stem}*.json"]
    found = [place / name for name in names if (place / name).is_file()]
    found += [path for pattern in patterns for path in sorted(place.glob(pattern)) if "mismatched" not in path.name]
    return found[0] if found else None


def _read_file(task: Task, split: str, path: Path) -> Split:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the file.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not UTF-8; download it again.") from error
    rows = _json_rows(task, text, path) if path.suffix == ".json" else _tsv_rows(task, split, text, path)
    wanted = (*task.texts, *(() if split.startswith("test") else (task.label,)))
    complete = [row for row in rows if all(row.get(column) is not None for column in wanted)]
    incomplete = len(rows) - len(complete)
    if incomplete > _MOST_INCOMPLETE * len(rows) + 1:
        raise InputError(
            f"{path}: {incomplete} of {len(rows)} rows lack one of {', '.join(wanted)}; download it again."
        )
    return _split(task, split, complete, str(path), incomplete)


def _tsv_rows(task: Task, split: str, text: str, path: Path) -> list[dict[str, Any]]:
    lines = [line.removesuffix("\r").split("\t") for line in text.split("\n")]
    while lines and lines[-1] == [""]:
        lines.pop()
    if task.header or split.startswith("test"):
        columns, *lines = lines or [[]]
        absent = [column for column in task.texts if column not in columns]
        if absent:
            raise InputError(f"{path}: its header has no column {absent[0]!r} but {', '.join(columns)}.")
    else:
        columns = ["source", task.label, "mark", *task.texts]
    return [dict(zip(columns, line)) for line in lines]


def _json_rows(task: Task, text: str, path: Path) -> list[dict[str, Any]]:
    """Rows of {id: {text_a, text_b, label}} under the names of the task's columns."""
    names = dict(zip(("text_a", "text_b"), task.texts)) | {"label": task.label}
    try:
        return [{name: row.get(key) for key, name in names.items()} for row in json.loads(text).values()]
    except (ValueError, AttributeError) as error:
        raise InputError(f"{path}: not of the form {{id: {{text_a, text_b, label}}}} ({error!r}).") from error


def _split(task: Task, split: str, rows: Sequence[dict[str, Any]], source: str, incomplete: int) -> Split:
    texts = tuple(tuple(str(row[column]) for column in task.texts) for row in rows)
    labels = () if split.startswith("test") else tuple(_labels(task, (row[task.label] for row in rows), source))
    return Split(texts, labels, source, task.sizes[split], incomplete)


def _labels(task: Task, values: Iterable[Any], source: str) -> Iterable[float]:
    numbers = {label: float(i) for i, label in enumerate(task.classes)}
    for value in values:
        try:
            yield numbers[str(value)] if task.classes else float(value)
        except (KeyError, ValueError) as error:
            kinds = ", ".join(task.classes) or "a number from 0 to 5"
            raise InputError(f"{source}: label {value!r}; {task.name} has {kinds}.") from error


def _from_hub(task: Task) -> dict[str, Split]:
    """The splits of nyu-mll/glue, whose labels are numbers, -1 in a test split."""
    hub.require(REPOSITORY, f"give --data DIR with {_DOWNLOADS}")
    import datasets

    loaded = datasets.load_dataset(REPOSITORY, task.name)
    return {split: _hub_split(task, split, loaded[_hub_name(task, split)]) for split in task.splits}


def _hub_name(task: Task, split: str) -> str:
    stem, _, mismatched = split.partition("_")
    matched = "_matched" if "dev_mismatched" in task.sizes and stem != "train" else ""
    return _HUB_SPLITS[stem] + (f"_{mismatched}" if mismatched else matched)


def _hub_split(task: Task, split: str, rows: Any) -> Split:
    columns = [name for name in rows.column_names if name not in ("label", "idx")]
    texts = tuple(zip(*(rows[column] for column in columns), strict=True))
    labels = () if split.startswith("test") else tuple(float(value) for value in rows["label"])
    return Split(texts, labels, HUB, task.sizes[split])
