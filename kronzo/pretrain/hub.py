"""OpenWebText from the Hugging Face hub, streamed by `datasets` (extra hub); the hub refused at once out of reach."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from kronzo.errors import InputError, install
from kronzo.pretrain.textfiles import TextSource

REPOSITORY = "Skylion007/openwebtext"
_CONVERTED = "refs/convert/parquet"
_HOST = ("huggingface.co", 443)
_WAIT_SECONDS = 1.5
_LOCAL = "give a local copy: kronzo data build openwebtext --from FOLDER --out DIR"


def openwebtext() -> TextSource:
    """The 8 million documents of OpenWebText in the hub's order.

    `datasets` 4 and later run no loading scripts, so the repository's own files are tried first and then the hub's
    parquet conversion of them.

    Raises:
        InputError: as `require`.
    """
    require("openwebtext", _LOCAL)
    return TextSource("openwebtext", {"hub": REPOSITORY}, _documents)


def require(what: str, instead: str) -> None:
    """Refuse `what` at once where the hub cannot be used, and say what to do `instead`.

    Raises:
        InputError: `datasets` is not installed, or the hub does not answer within two seconds.
    """
    if find_spec("datasets") is None:
        raise InputError(f"{what} from the hub needs datasets; run {install('hub')} or {instead}.")
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise InputError(f"{what} is on the hub and HF_HUB_OFFLINE is set; unset it or {instead}.")
    if not _reachable():
        raise InputError(f"{what}: {_HOST[0]} does not answer; connect to the internet or {instead}.")


def _reachable() -> bool:
    """Whether the hub accepts a connection; in a thread of its own, because looking up a name knows no time limit."""
    answered = threading.Event()

    def knock() -> None:
        try:
            socket.create_connection(_HOST, timeout=_WAIT_SECONDS).close()
        except OSError:
            return
        answered.set()

    thread = threading.Thread(target=knock, daemon=True)
    thread.start()
    thread.join(_WAIT_SECONDS)
    return answered.is_set()


def _documents() -> Iterator[str]:
    for row in _load():
        yield row["text"]


def _load() -> Any:
    import datasets

    try:
        return datasets.load_dataset(REPOSITORY, split="train", streaming=True)
    except (RuntimeError, ValueError, FileNotFoundError):
        return datasets.load_dataset(REPOSITORY, revision=_CONVERTED, split="train", streaming=True)
