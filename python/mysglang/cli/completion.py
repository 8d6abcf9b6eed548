"""`mysglang completion SHELL`, and what answers when a shell asks for completions.

argcomplete does both: it works on any argparse parser, and knows bash, zsh and fish. A shell runs `mysglang` itself on
each Tab, so only the parser of the command that is being typed is made.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
from collections.abc import Mapping, Sequence

from mysglang.bench.flags import ToolParser
from mysglang.cli.command import Command, Group

SHELLS = ("bash", "zsh", "fish")
ASKED = "_ARGCOMPLETE"
"""Set by the shell's script while it asks: the number of leading words that are the command itself."""


def make_parser(prog: str) -> ToolParser:
    parser = ToolParser(
        prog,
        "Print a script that lets a shell complete commands and options with Tab.",
        examples={
            "{prog} bash >> ~/.bashrc": "bash",
            "{prog} zsh >> ~/.zshrc": "zsh, after a line with `autoload -U compinit; compinit`",
            "{prog} fish > ~/.config/fish/completions/mysglang.fish": "fish",
        },
    )
    parser.add_argument("shell", choices=SHELLS, help="The shell to print the script for.")
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    from argcomplete.shell_integration import shellcode

    options = make_parser(prog).parse_all(argv)
    print(shellcode(["mysglang"], shell=options.shell))
    return 0


def completing() -> bool:
    """True if a shell asks for completions, and no command is to run."""
    return ASKED in os.environ


def complete(commands: Mapping[str, Command | Group]) -> None:
    """Write the completions of COMP_LINE to the shell, and exit."""
    import argcomplete

    parser, words = _parser_of(_typed_words(), commands)
    os.environ[ASKED] = str(int(os.environ[ASKED]) + words)
    argcomplete.autocomplete(parser, always_complete_options="long")


def _typed_words() -> list[str]:
    """Returns the words before the cursor that are complete, without the command itself."""
    line = os.environ.get("COMP_LINE", "")
    before = line.encode()[: int(os.environ.get("COMP_POINT", len(line)))].decode(errors="ignore")
    try:
        words = shlex.split(before)
    except ValueError:  # an open quote: the last word is not complete
        words = before.split()
    complete_words = words if before.endswith((" ", "\t")) else words[:-1]
    return complete_words[int(os.environ[ASKED]) :]


def _parser_of(
    words: Sequence[str], commands: Mapping[str, Command | Group], prog: str = "mysglang"
) -> tuple[argparse.ArgumentParser, int]:
    """Returns the parser of the command that `words` begin with, and how many of the words name it."""
    if not words or words[0] not in commands:
        names = ToolParser(prog, "")
        names.add_argument("command", choices=list(commands))
        return names, 0
    command, prog = commands[words[0]], f"{prog} {words[0]}"
    if isinstance(command, Group):
        parser, used = _parser_of(words[1:], command.commands, prog)
        return parser, used + 1
    made: argparse.ArgumentParser = importlib.import_module(command.module_name).make_parser(prog)
    return made, 1
