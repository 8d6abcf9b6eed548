"""mysglang: an inference server for large language models. Public names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mysglang.srt.utils.version import __version__

if TYPE_CHECKING:
    from mysglang.srt.entrypoints.engine import Engine
    from mysglang.srt.server_args import ServerArgs

__all__ = ["Engine", "ServerArgs", "__version__"]

_HOMES = {"Engine": "mysglang.srt.entrypoints.engine", "ServerArgs": "mysglang.srt.server_args"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
