"""Colours of a terminal. None where the output is a file or a pipe, where NO_COLOR is set, or where TERM is dumb."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from typing import TextIO

RESET = "\x1b[0m"
CONTROL = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160))) | {9: "    "}
"""Characters that steer a terminal -> nothing; a tab becomes spaces."""


@dataclass(frozen=True, slots=True)
class Style:
    """Adds ANSI colours to a text, or returns it unchanged if `colours` is false."""

    colours: bool

    def bold(self, text: str) -> str:
        return self._in("\x1b[1m", text)

    def dim(self, text: str) -> str:
        return self._in("\x1b[2m", text)

    def cyan(self, text: str) -> str:
        return self._in("\x1b[36m", text)

    def red(self, text: str) -> str:
        return self._in("\x1b[31m", text)

    def _in(self, code: str, text: str) -> str:
        return f"{code}{text}{RESET}" if self.colours and text else text


def take_any_bytes() -> None:
    """Lets stdin give bytes that are not UTF-8 as the command line does, so that the request with them is refused."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")


def style_of(stream: TextIO) -> Style:
    """Returns the style for what is written to `stream`."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return Style(stream.isatty() and not plain)


def harmless(text: str) -> str:
    """Returns `text` without control characters, by which a model's answer could steer the terminal."""
    return text.translate(CONTROL)
