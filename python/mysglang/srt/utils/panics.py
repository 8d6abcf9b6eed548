"""Panics: what libraries in Rust raise where they find a fault of their own. A panic is no Exception, so what catches
those lets it through: a route answers without words, and work in the background never ends.
"""

from __future__ import annotations

_MODULE = "pyo3_runtime"
"""Module of the PanicException of every library that is built with PyO3."""


def is_panic(error: BaseException) -> bool:
    """True if a library in Rust panicked."""
    return type(error).__module__ == _MODULE
