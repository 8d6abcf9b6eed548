"""Command line -> flat options, and `--help` with one titled part for each group.

Values leave here with their types, or as the text they were if that did not fit: whoever judges values says so, with
all other problems at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NoReturn

from mysglang.srt.args.field import Option, flag_of
from mysglang.srt.args.groups import ArgGroups, group_options, unknown
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.version import __version__


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; --help lists the options.")


def parse(argv: Sequence[str]) -> dict[str, Any]:
    """The options that `argv` gives. Raises ConfigError; exits after --help and --version."""
    found, rest = _parser().parse_known_args(argv)
    if problems := _strangers(rest):
        raise ConfigError(*problems)
    by_name = {option.name: option for members in group_options().values() for option in members}
    return {name: _read(by_name[name], value) for name, value in vars(found).items()}


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="python -m mysglang.launch_server",
        usage="%(prog)s [--model-path DIRECTORY_OR_REPOSITORY] [OPTIONS]",
        description="Serve a language model. Options have the names that they have in SGLang.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=f"mysglang {__version__}")
    defaults = ArgGroups()
    for group, members in group_options().items():
        doc = type(getattr(defaults, group)).__doc__
        part = parser.add_argument_group(group, doc)
        for option in members:
            _add(part, option)
    return parser


def _add(part: argparse._ArgumentGroup, option: Option) -> None:
    flags = [option.flag, *map(flag_of, option.aliases)]
    text = option.help.replace("%", "%%")
    if option.kind is bool:
        part.add_argument(*flags, dest=option.name, action="store_true", help=text)
        return
    if option.default not in (None, "", ()):
        text += f" Default: {option.default}."
    metavar = "{" + ",".join(option.choices) + "}" if option.choices else option.kind.__name__.upper()
    nargs = "+" if option.many else None
    part.add_argument(*flags, dest=option.name, metavar=metavar, nargs=nargs, help=text)


def _strangers(rest: Sequence[str]) -> list[str]:
    """A line for each thing that is no option of ours; the values that follow an unknown flag are part of it."""
    problems: list[str] = []
    for word in rest:
        if word.startswith("--"):
            problems.append(unknown(word.partition("=")[0]))
        elif not problems:
            problems.append(f"{word!r} belongs to no option; a model is named with --model-path {word}")
    return problems


def _read(option: Option, value: Any) -> Any:
    if option.many:
        return tuple(_read_one(option, item) for item in value)
    return _read_one(option, value)


def _read_one(option: Option, text: Any) -> Any:
    if option.kind in (bool, str):
        return text
    try:
        return option.kind(text)
    except ValueError:
        return text
