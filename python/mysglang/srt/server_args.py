"""ServerArgs: all options of a server, groups side by side, and PortArgs: where its processes meet.

Read by the processes' entry points and by `managers.scheduler_builder`; what lies below is given its group, or values.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mysglang.srt.args.cli import parse
from mysglang.srt.args.groups import ArgGroups, from_flat
from mysglang.srt.args.resolve import resolve
from mysglang.srt.args.validate import validate
from mysglang.srt.utils.hardware import Hardware, detect_hardware


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerArgs(ArgGroups):
    """The options of one server. `from_cli` and `from_kwargs` return resolved ones: no "auto" is left, and all are
    valid.
    """

    @classmethod
    def from_cli(cls, argv: Sequence[str], hardware: Hardware | None = None) -> ServerArgs:
        """Parses a command line. Raises ConfigError with every problem found; exits after --help and --version."""
        return cls.from_kwargs(hardware, **parse(argv))

    @classmethod
    def from_kwargs(cls, hardware: Hardware | None = None, /, **options: Any) -> ServerArgs:
        """Builds ServerArgs from options by SGLang's names, as `Engine(...)` takes them. Raises ConfigError for invalid
        ones.
        """
        given = from_flat(cls, options)
        hardware = hardware or detect_hardware()
        if not any(given.bad_values()):
            given = resolve(given, hardware, seed=secrets.randbelow(1 << 30))
        asked = [name for name, value in options.items() if value is not None and value is not False]
        validate(given, hardware, asked)
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class PortArgs:
    """The addresses of the sockets between the processes of one server. The reader of each binds it."""

    scheduler_input_ipc_name: str
    detokenizer_ipc_names: tuple[str, ...]
    tokenizer_ipc_names: tuple[str, ...]
    """Addresses of the fronts; the first is the main process's."""
    board: str
    """File of the numbers that fronts share."""
    turn_ipc_names: tuple[str, ...] = ()
    """Addresses of the schedulers that follow the first one, in the order of their ranks."""
    report_ipc_name: str = ""
    """Address of the first scheduler, for what the others report; empty if there is one rank."""
    meeting_file: str = ""
    """File through which ranks find one another; empty if there is one rank."""


def prepare_server_args(argv: Sequence[str]) -> ServerArgs:
    """Parses a command line. SGLang's name for `ServerArgs.from_cli`."""
    return ServerArgs.from_cli(argv)
