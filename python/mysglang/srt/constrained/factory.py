"""Names -> grammar backends. A backend's module, and the library that it needs, is imported when it is made."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from mysglang.srt.constrained.backend import GrammarBackend, JsonStyle
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.errors import ConfigError

# In the order of preference: name -> (library, class).
BACKENDS = {
    "xgrammar": ("xgrammar", "mysglang.srt.constrained.xgrammar_backend:XGrammarBackend"),
    "llguidance": ("llguidance", "mysglang.srt.constrained.llguidance_backend:LLGuidanceBackend"),
    "outlines": ("outlines_core", "mysglang.srt.constrained.outlines_backend:OutlinesBackend"),
}
NO_BACKEND = "none"


def choose_backend(asked: str | None) -> str:
    """Returns the backend that was asked for, or the first whose library is installed; "none" if none is.

    Raises ConfigError if what was asked for is not installed.
    """
    if asked is None:
        return next((name for name in BACKENDS if _installed(name)), NO_BACKEND)
    if asked != NO_BACKEND and not _installed(asked):
        library = BACKENDS[asked][0].replace("_", "-")
        raise ConfigError(f"--grammar-backend {asked} needs a package that is not installed: pip install {library}")
    return asked


def make_backend(name: str, vocabulary: Vocabulary, style: JsonStyle) -> GrammarBackend:
    """Loads a backend. Takes a second or two, since libraries are imported and build tables of the vocabulary."""
    module, _, attribute = BACKENDS[name][1].partition(":")
    backend: GrammarBackend = getattr(importlib.import_module(module), attribute)(vocabulary, style)
    return backend


def _installed(name: str) -> bool:
    return find_spec(BACKENDS[name][0]) is not None
