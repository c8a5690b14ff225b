"""What a command line says when it is called without arguments: itself, in one screen of 80 x 24."""

from __future__ import annotations

from typing import Any

WIDTH = 80


def welcome(context: Any, about: str, examples: tuple[str, ...]) -> str:
    """Return one screen: what the command is, what to type first, its commands with a line each.

    Args:
        context: the Typer context of the root command.
        about: one line.
        examples: command lines to start with, each with a remark.
    """
    commands = {name: command for name, command in context.command.commands.items() if not command.hidden}
    indent = max(map(len, commands)) + 4
    rows = [f"  {name:{indent - 2}}{command.get_short_help_str(WIDTH - indent)}" for name, command in commands.items()]
    more = f"{context.info_name} COMMAND --help explains a command."
    return "\n".join([about, "", "Start here:", *(f"  {line}" for line in examples), "", "Commands:", *rows, more])
