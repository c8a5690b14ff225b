"""What a user can cause: one clear sentence, exit code 2 on the command line."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input: the message says what was given, what is needed and what to do.

    The command line prints the message and exits with code 2; nothing is lost.
    """


class UnknownKeyword(InputError, TypeError):
    """A keyword that an optimizer does not have; a TypeError as well, which is what Python raises for one."""


class Collapse(InputError):
    """A zeroth-order run whose probes destroy the model in its first steps: eps is too large for it."""


def install(extra: str) -> str:
    """Return the command that installs an extra: the package is used from a clone, not from an index."""
    return f'pip install -e ".[{extra}]"'
