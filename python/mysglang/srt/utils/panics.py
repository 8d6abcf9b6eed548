"""Panics: what libraries in Rust raise where they find a fault of their own. A panic is no Exception, so what catches
those lets it through: a route answers without words, and work in the background never ends.
"""

from __future__ import annotations

_MODULE = "pyo3_runtime"
"""Where every library that is built with PyO3 says that its PanicException lives."""


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust gave up."""
    return type(error).__module__ == _MODULE
