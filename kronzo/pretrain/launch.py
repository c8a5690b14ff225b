"""From the options of `kronzo pretrain` to a config and a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from kronzo.pretrain import folder
from kronzo.pretrain.config import Config, from_dict, override, read_tables, to_dict, to_toml
from kronzo.pretrain.plan import row_of


def compose(
    given: Path | None = None,
    *,
    model: str | None = None,
    method: str | None = None,
    data: str | None = None,
    tokenizer: str | None = None,
    init: str | None = None,
    settings: Sequence[str] = (),
) -> Config:
    """Return the config of a TOML file or run folder, or the default one, with options and then settings applied.

    `PRESET:ROW`, e.g. paper:kronzo-directional, is a row of a preset of `kronzo reproduce`.
    A run or Hugging Face folder named by `init` gives the model and the tokenizer where neither the file nor an option
    does.

    Raises:
        InputError: what cannot be read or is no config.
    """
    tables = _given(given) if given else _of_run(init) if init and not model else {}
    options = {"model.name": model, "optimizer.method": method, "data.source": data, "data.tokenizer": tokenizer}
    for key, value in (options | {"init": init}).items():
        if value is not None:
            section, _, name = key.rpartition(".")
            table = tables.setdefault(section, {}) if section else tables
            table[name] = value
    return from_dict(override(tables, settings))


def _given(source: Path) -> dict[str, Any]:
    if ":" in str(source) and source.suffix != ".toml" and not source.exists():
        return to_dict(row_of(str(source)))
    return read_tables(source)


def _of_run(init: str) -> dict[str, Any]:
    """Return [model] and [data] tokenizer of the run or Hugging Face folder with these weights, nothing otherwise."""
    path = Path(init)
    if folder.is_transformers_folder(path):
        from kronzo.integrations.hf_weights import starting_point

        return starting_point(path)
    for run in (path, *path.resolve().parents[:3]):
        if (run / folder.CONFIG).is_file():
            stored = read_tables(run)
            name = stored["data"]["tokenizer"]
            tokenizer = str(run / folder.TOKENIZER) if name.startswith("bpe:") else name
            return {"model": stored["model"], "data": {"tokenizer": tokenizer}}
    return {}


def default_out(config: Config, given: Path | None) -> Path:
    """Return the folder to write when none is named.

    A run folder given instead of a TOML file goes on in place; otherwise runs/METHOD-HASH, the same for the same
    config, so that the same command goes on where it stopped.
    """
    if given is not None and given.is_dir():
        return given
    digest = hashlib.sha256(to_toml(config).encode()).hexdigest()[:8]
    return Path("runs") / f"{config.optimizer.method}-{digest}"


def run(config: Config, out: Path, *, fresh: bool = False, progress: bool = True, tensorboard: bool = False) -> str:
    """Train in this process, with the number of threads of the config; the first one returns the outcome in a line."""
    import torch

    from kronzo.pretrain.loop import pretrain
    from kronzo.pretrain.resolve import check
    from kronzo.pretrain.torchrun import place

    check(config)
    if config.threads:
        torch.set_num_threads(config.threads)
    first = place()[0] == 0
    with ExitStack() as stack:
        watch = None
        if tensorboard and first:
            from kronzo.integrations.tensorboard import Board

            watch = stack.enter_context(closing(Board(out))).update
        result = pretrain(config, out, fresh=fresh, progress=progress, watch=watch)
    if not first:
        return ""
    ending = " (diverged)" if result.diverged else ""
    return (
        f"{result.folder}: {result.steps} steps, {result.tokens} tokens, {result.token_forwards} token_forwards, "
        f"validation loss {result.val_loss:.4f} (best {result.best_val_loss:.4f} at step {result.best_step}), "
        f"{result.seconds:.1f} s{ending}"
    )
