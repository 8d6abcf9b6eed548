"""Helpers that the backends on other services share."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from mysglang.lang.sampling import SamplingParams


def import_client(package: str, user: str) -> Any:
    """Returns a client library that is not installed with us. Raises ImportError that says what to install."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        distribution = {"google.genai": "google-genai", "google.genai.types": "google-genai"}.get(package, package)
        raise ImportError(f"{user} needs a package that is not here: pip install {distribution}") from error


def only(params: SamplingParams, names: Sequence[str], service: str) -> None:
    """Raises ValueError for a parameter that is not in `names`, because the service would not honour it."""
    # These say only how log-probabilities and the end are reported; they change nothing when they are off.
    off = [name for name in params.unknown_to(names) if getattr(params, name) not in (False, 0, -1, [], ())]
    if off:
        raise ValueError(f"{', '.join(off)} cannot be used with {service}.")
