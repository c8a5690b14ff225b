"""Runs on disk: the list of them, their models, and samples from those."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kronzo.errors import InputError
from kronzo.pretrain import checkpoint, folder, gpt2
from kronzo.pretrain.config import from_toml
from kronzo.pretrain.log import read_metrics
from kronzo.pretrain.resolve import shape_of
from kronzo.pretrain.tokenizer import Tokenizer

if TYPE_CHECKING:
    import pandas as pd

_COLUMNS = 80


def open_model(run: Path | str) -> tuple[gpt2.GPT2, Tokenizer]:
    """Return the model of a run's newest checkpoint, in evaluation mode, and the run's tokenizer.

    Raises:
        InputError: no run or no usable checkpoint there.
    """
    run = Path(run)
    if not (run / folder.CONFIG).is_file():
        raise InputError(f"{run}: no {folder.CONFIG} there; give the folder of a run.")
    model = gpt2.GPT2(shape_of(from_toml(run).model, 0))
    checkpoint.load_weights(model, checkpoint.initial_weights(run), str(run))
    return model.eval(), Tokenizer.load(run / folder.TOKENIZER)


def sample(run: Path | str, prompt: str = "", *, tokens: int = 100, temperature: float = 1.0, seed: int = 0) -> str:
    """Return the prompt continued by the run's model.

    Args:
        run: the run folder.
        prompt: text to continue; "" starts a document.
        tokens: at most so many new ones; a document's end stops earlier.
        temperature: divides the logits; 0 takes the likeliest token each time.
        seed: of the draws.

    Raises:
        InputError: no usable run, tokens < 1, a negative temperature, or a prompt that is not UTF-8.

    Cost: one forward of at most a context's length a token.
    """
    import torch

    if tokens < 1 or temperature < 0:
        raise InputError(
            f"tokens = {tokens}, temperature = {temperature}: tokens >= 1 and temperature >= 0 are needed."
        )
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InputError(f"character {error.start} of the prompt is not UTF-8; type it in a UTF-8 terminal.") from error
    model, tokenizer = open_model(run)
    generator = torch.Generator().manual_seed(seed)
    ids = [tokenizer.end_of_text, *map(int, tokenizer.encode(prompt))]
    start = 1
    with torch.no_grad():
        for _ in range(tokens):
            logits = model(torch.tensor([ids[-model.config.context :]]))[0, -1, : tokenizer.num_ids]
            if temperature:
                weights = torch.softmax(logits.double() / temperature, dim=-1)
                token = int(torch.multinomial(weights, 1, generator=generator))
            else:
                token = int(logits.argmax())
            if token == tokenizer.end_of_text:
                break
            ids.append(token)
    return tokenizer.decode(ids[start:])


def list_runs(root: Path | str) -> pd.DataFrame:
    """Return a table of all runs under a folder, a row each, by path.

    Returns:
        Columns run, method, parameters, steps, of, token_forwards, val_loss, seconds, state (finished, diverged,
        running, stopped; damaged: a file of it cannot be read, its numbers are missing).

    Raises:
        InputError: the folder does not exist.
    """
    import pandas as pd

    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; give one that holds runs.")
    columns = ["run", "method", "parameters", "steps", "of", "token_forwards", "val_loss", "seconds", "state"]
    return pd.DataFrame([_row_or_damage(run, root) for run in _run_folders(root)], columns=columns)


def as_text(table: pd.DataFrame) -> str:
    """Return the table of `list_runs` in aligned columns, 80 wide; a longer name stands on the line above its row."""
    if table.empty:
        return "no runs here; `kronzo pretrain` makes one."
    shown = table[["method"]].copy()
    shown["params"] = table["parameters"].map("{:,}".format)
    shown["steps"] = table["steps"].astype(str) + "/" + table["of"].astype(str)
    shown["tok-fwds"] = table["token_forwards"].map("{:.2e}".format)
    shown["val loss"] = table["val_loss"].map("{:.4f}".format)
    shown["s"] = table["seconds"].map("{:.0f}".format)
    shown["state"] = table["state"]
    rows, names = shown.to_string(index=False).splitlines(), ["run", *table["run"]]
    wide = min(max(map(len, names)), _COLUMNS - len(rows[0]) - 1)
    fits = [len(name) <= wide for name in names]
    return "\n".join(
        f"{name:{wide}} {row}" if fit else f"{name}\n{'':{wide}} {row}" for name, row, fit in zip(names, rows, fits)
    )


def _run_folders(root: Path) -> Iterator[Path]:
    for manifest in sorted(root.rglob(folder.MANIFEST)):
        if (manifest.parent / folder.CONFIG).is_file():
            yield manifest.parent


def _row_or_damage(run: Path, root: Path) -> dict[str, Any]:
    try:
        return _row(run, root)
    except (InputError, ValueError, KeyError, TypeError):
        unknown = {"method": "?", "parameters": 0, "of": 0, "steps": 0, "token_forwards": 0, "seconds": 0.0}
        return {"run": str(run.relative_to(root)), **unknown, "val_loss": float("nan"), "state": "damaged"}


def _row(run: Path, root: Path) -> dict[str, Any]:
    manifest = json.loads((run / folder.MANIFEST).read_text(encoding="utf-8"))
    row = {
        "run": str(run.relative_to(root)),
        "method": from_toml(run).optimizer.method,
        "parameters": manifest["parameters"],
        "of": manifest["steps"],
        "state": _state(run),
    }
    metrics = read_metrics(run) if (run / "metrics.jsonl").exists() else None
    if metrics is None or metrics.empty:
        return row | {"steps": 0, "token_forwards": 0, "seconds": 0.0, "val_loss": float("nan")}
    last = metrics.iloc[-1]
    evaluated = metrics["val_loss"].dropna() if "val_loss" in metrics else metrics["step"].iloc[:0]
    return row | {
        "steps": int(last["step"]),
        "token_forwards": int(last["token_forwards"]),
        "seconds": float(last["seconds"]),
        "val_loss": float(evaluated.iloc[-1]) if len(evaluated) else float("nan"),
    }


def _state(run: Path) -> str:
    result = run / folder.RESULT
    if result.exists():
        return "diverged" if json.loads(result.read_text(encoding="utf-8"))["diverged"] else "finished"
    lock = run / folder.LOCK
    if not lock.exists():
        return "stopped"
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return "running"
    return "stopped"
