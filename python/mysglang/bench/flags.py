"""Command lines of the tools, under SGLang's names. What is not supported is refused by name; nothing is ignored."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import orjson

from mysglang.bench.refused import Refused
from mysglang.srt.utils.disk import try_folder
from mysglang.srt.utils.help_text import HelpFormatter

PROFILING = """
profile profile-activities profile-by-stage profile-filename-prefix profile-num-steps profile-output-dir
profile-prefill-url profile-decode-url profile-prefix profile-record-shapes profile-stage profile-stages
profile-start-step profile-steps
"""
"""SGLang's flags for traces, of all tools."""


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, HelpFormatter):
    """Shows a default only if it says something, and leaves the lines of the examples as they are."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        silent = action.default in (None, "", False, [], {}) or "Default:" in (action.help or "")
        return action.help if silent else super()._get_help_string(action)


class ToolParser(argparse.ArgumentParser):
    """argparse that raises Refused and takes no abbreviations."""

    def __init__(self, prog: str, description: str, examples: Mapping[str, str] | None = None) -> None:
        """`prog`: the words that start the tool. `examples`: command -> what it does, with "{prog}" for `prog`."""
        lines = [f"  {line.replace('{prog}', prog)}\n      {what}" for line, what in (examples or {}).items()]
        super().__init__(
            prog=prog,
            description=description,
            epilog="\n".join(["examples:", *lines]) if lines else None,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        raise Refused(f"{message}; --help lists the options.")

    def parse_all(self, argv: Sequence[str], sglang_only: str = "") -> argparse.Namespace:
        """Parses the command line and refuses unknown words. `sglang_only`: flags of SGLang's tool that this one does
        not have.
        """
        found, rest = self.parse_known_args(argv)
        if rest:
            raise Refused(*self._strangers(rest, frozenset(sglang_only.split())))
        return found

    def parse_before_server(self, argv: Sequence[str], sglang_only: str = "") -> tuple[argparse.Namespace, list[str]]:
        """Returns the tool's own options, and the words that are left for the server's."""
        found, rest = self.parse_known_args(argv)
        names = frozenset(sglang_only.split())
        if problems := [_unsupported(name) for name in _names(rest) if name in names]:
            raise Refused(*problems)
        return found, rest

    def _strangers(self, rest: Sequence[str], sglang_only: Collection[str]) -> list[str]:
        problems = [
            _unsupported(name) if name in sglang_only else f"--{name} is not an option{self._hint(name)}"
            for name in _names(rest)
        ]
        return problems or [f"{rest[0]!r} belongs to no option."]

    def _hint(self, name: str) -> str:
        close = difflib.get_close_matches(f"--{name}", self._option_string_actions, n=2)
        return f"; did you mean {' or '.join(close)}?" if close else "; --help lists the options."


def json_object(text: str) -> dict[str, Any]:
    """Parses a JSON object, as the type of an option."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("not a JSON object")
    return value


def result_file(text: str) -> str:
    """Checks the path of a file for results, as the type of an option: a run may take hours, and its results come last.
    Nothing stays there. An empty text, the default of such an option, passes.
    """
    if not text:
        return text
    file = Path(text)
    folder = file.absolute().parent
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory")
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"there is no directory {folder}")
    try:
        if file.exists():
            file.open("ab").close()
        else:
            try_folder(folder)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be written: {error.strerror}") from None
    return text


def result_path(text: str) -> Path:
    """Checks a file like `result_file`, and returns its path."""
    return Path(result_file(text))


def positive(text: str) -> int:
    """Parses an integer that is at least 1, as the type of an option."""
    return _at_least(text, 1)


def natural(text: str) -> int:
    """Parses an integer that is at least 0, as the type of an option."""
    return _at_least(text, 0)


def share(text: str) -> float:
    """Parses a number between 0 and 1, as the type of an option."""
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def _at_least(text: str, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return value


def _names(rest: Sequence[str]) -> list[str]:
    return [word[2:].partition("=")[0] for word in rest if word.startswith("--") and word != "--"]


def _unsupported(name: str) -> str:
    return f"--{name} is an option of SGLang's tool that this version of mysglang does not support."
