"""What torchrun tells the processes that it starts; torch is not imported for it."""

from __future__ import annotations

import os

from kronzo.errors import InputError

_SHARED = ("pretrain",)
"""Commands whose work processes share."""


def place() -> tuple[int, int]:
    """Return (rank, number of processes), (0, 1) without torchrun."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    return (int(os.environ["RANK"]) if ranks > 1 else 0), ranks


def check_command(command: str | None) -> None:
    """Refuse a command that would do everything once in every process.

    Raises:
        InputError: several processes, and a command other than `kronzo pretrain`.
    """
    ranks = place()[1]
    if ranks > 1 and command is not None and command not in _SHARED:
        raise InputError(
            f"kronzo {command} in {ranks} processes of torchrun: only kronzo pretrain shares its work among them; "
            "start it once, without torchrun."
        )
