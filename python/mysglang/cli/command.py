"""Command and Group: rows of the table of subcommands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. Its module is imported when it runs.

    The module has `main(argv, prog) -> int`, which returns the exit status and raises Refused, and
    `make_parser(prog) -> ArgumentParser`, from which shells complete.
    """

    summary: str
    module: str
    """Within `mysglang.cli`, or a full name."""

    @property
    def module_name(self) -> str:
        return self.module if "." in self.module else f"mysglang.cli.{self.module}"


@dataclass(frozen=True, slots=True)
class Group:
    """A word with subcommands of its own."""

    summary: str
    commands: Mapping[str, Command]
