"""`mysglang serve [MODEL] [OPTIONS]`: the same server as `python -m mysglang.launch_server`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from argcomplete.completers import ChoicesCompleter

from mysglang.srt.args.cli import Usage, parse
from mysglang.srt.args.cli import make_parser as server_parser
from mysglang.srt.args.groups import group_options
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.log_output import open_standard_files


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Returns the parser of the server, with the values that a shell may complete: argparse itself judges no value
    here.
    """
    parser = server_parser(Usage(prog, positional_model=True))
    actions = parser._option_string_actions
    for members in group_options().values():
        for option in members:
            actions[option.flag].completer = ChoicesCompleter(dict.fromkeys(option.choices, ""))  # type: ignore[attr-defined]
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Starts the server. Returns the exit codes of `launch_server`."""
    open_standard_files()
    server_args = ServerArgs.from_kwargs(None, **parse(argv, Usage(prog, positional_model=True)))
    # Imported here: a wrong option is reported before anything else is loaded.
    from mysglang.srt.entrypoints.http_server import launch_server

    return launch_server(server_args)
