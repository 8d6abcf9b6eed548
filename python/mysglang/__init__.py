"""mysglang: an inference server for large language models. Public names are imported when they are first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mysglang.srt.utils.version import __version__

if TYPE_CHECKING:
    from mysglang.lang import (
        Anthropic,
        LiteLLM,
        OpenAI,
        ProgramError,
        ProgramState,
        Runtime,
        RuntimeEndpoint,
        SglFunction,
        VertexAI,
        assistant,
        assistant_begin,
        assistant_end,
        flush_cache,
        function,
        gen,
        gen_int,
        gen_string,
        get_server_info,
        greedy_token_selection,
        image,
        select,
        separate_reasoning,
        set_default_backend,
        settings,
        system,
        system_begin,
        system_end,
        token_length_normalized,
        unconditional_likelihood_normalized,
        user,
        user_begin,
        user_end,
        video,
    )
    from mysglang.srt.entrypoints.engine import Engine
    from mysglang.srt.server_args import ServerArgs

__all__ = [
    "Anthropic",
    "Engine",
    "LiteLLM",
    "OpenAI",
    "ProgramError",
    "ProgramState",
    "Runtime",
    "RuntimeEndpoint",
    "ServerArgs",
    "SglFunction",
    "VertexAI",
    "__version__",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "settings",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]

_HOMES = {"Engine": "mysglang.srt.entrypoints.engine", "ServerArgs": "mysglang.srt.server_args"}
_LANGUAGE = "mysglang.lang"
"""Home of all other names."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES.get(name, _LANGUAGE)), name)


def __dir__() -> list[str]:
    return sorted(__all__)
