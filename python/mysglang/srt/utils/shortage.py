"""Recognizes errors which mean that the machine has no more open files, processes, threads or memory for the moment, or
that a library in Rust panicked. A panic is no Exception, so what catches those lets it through: a route answers without
words, and work in the background never ends.
"""

from __future__ import annotations

import errno
import os

_NUMBERS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOBUFS})
_WORDS = (
    "can't start new thread",
    "Too many open files",
    "Cannot allocate memory",
    "Resource temporarily unavailable",
)
"""Texts of errors without a number: `threading` raises RuntimeError, and the loader of libraries ImportError."""


def shortage_in(error: BaseException | None) -> str | None:
    """Returns the missing resource, in the system's words, if that is why `error` or its cause was raised; otherwise
    None.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError):
            return "Cannot allocate memory"
        # OSError is not the only one with an errno: ZMQ's errors have one too.
        number = getattr(error, "errno", None)
        if number in _NUMBERS:
            return os.strerror(number)
        if isinstance(error, (RuntimeError, ImportError)) and (
            words := next((words for words in _WORDS if words in str(error)), None)
        ):
            return words
        error = error.__cause__ or error.__context__
    return None


_MODULE = "pyo3_runtime"
"""Module of the PanicException of every library that is built with PyO3."""


def is_panic(error: BaseException) -> bool:
    """True if a library in Rust panicked."""
    return type(error).__module__ == _MODULE
