"""Every environment variable that mysglang reads: name, type, default and why. For debugging and tuning only; whatever
a user should decide is an option (`args/`). The standard ones of CUDA, Hugging Face and OpenMP keep their own meaning,
and the package of CUDA kernels has one of its own (`mysgl_kernel.environ`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from mysglang.srt.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EnvVar(Generic[T]):
    """One environment variable. It is read at each use, so tests can set it."""

    name: str
    default: T
    parse: Callable[[str], T]
    """Text -> value; raises ValueError."""
    why: str
    secret: bool = False
    """True if the value must not appear in a bug report."""

    def get(self) -> T:
        """Returns the value, or the default if it is unset or empty. Raises ConfigError for text that does not
        parse.
        """
        text = os.environ.get(self.name, "")
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError as error:
            raise ConfigError(f"{self.name}={text!r}: {error}.") from None


def _truth(text: str) -> bool:
    values = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in values:
        raise ValueError("give 1 or 0")
    return values[text.lower()]


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise ValueError("give a number of seconds greater than 0")
    return value


REFERENCE_OPS = EnvVar(
    "MYSGLANG_REFERENCE_OPS", False, _truth, "Run the torch reference of every op: tells kernel bugs from model bugs."
)
START_TIMEOUT = EnvVar(
    "MYSGLANG_START_TIMEOUT", 1800.0, _seconds, "Seconds that a child process gets to load and report ready."
)
API_KEY = EnvVar(
    "MYSGLANG_API_KEY",
    "",
    str,
    "The key that the commands of `mysglang` send to a server; on a command line everybody could read it.",
    secret=True,
)

ADMIN_API_KEY = EnvVar(
    "MYSGLANG_ADMIN_API_KEY",
    "",
    str,
    "The key of the server's owner, for commands that change or record something.",
    secret=True,
)
BASE_URL = EnvVar(
    "MYSGLANG_BASE_URL",
    "http://127.0.0.1:30000",
    str,
    "The server that the commands of `mysglang` ask, where --base-url does not name one.",
)

VARIABLES: tuple[EnvVar[bool] | EnvVar[float] | EnvVar[str], ...] = (
    REFERENCE_OPS,
    START_TIMEOUT,
    API_KEY,
    ADMIN_API_KEY,
    BASE_URL,
)
"""All of them, for check_env and the documentation."""

READ_ELSEWHERE = ("MYSGLANG_KERNEL_CACHE", "MYSGLANG_LOG_ON_TERMINAL")
"""Variables of the package of kernels, and of this program's own children."""


def unknown_variables() -> Iterator[str]:
    """Yields a sentence for each variable that is set, has our prefix, and is read nowhere: most likely a typo."""
    known = [*(variable.name for variable in VARIABLES), *READ_ELSEWHERE]
    for name in sorted(os.environ):
        if name.startswith("MYSGLANG_") and name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
            hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known[:-1])}."
            yield f"The environment variable {name} has no effect. {hint}"
