"""What a user can cause: one clear sentence, exit code 2 on the command line."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """Bad input: the message says what was given, what is needed and what to do.

    The command line prints the message and exits with code 2; nothing is lost.
    """


def nearest(given: str, valid: Iterable[str]) -> str:
    """Return the half sentence that helps after an unknown name: the nearest valid one, or all of them."""
    names = sorted(valid)
    close = get_close_matches(given, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from {', '.join(names) or '(none)'}"
