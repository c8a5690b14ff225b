"""What a user can cause: one clear sentence, exit code 2 on the command line."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message says what was given, what is needed and what to do.

    The command line prints the message and exits with code 2; nothing is lost.
    """
