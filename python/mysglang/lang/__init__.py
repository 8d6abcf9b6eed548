"""The frontend language: programs that write a prompt, generate, decide and fork, in Python.

    import mysglang as sgl

    @sgl.function
    def answer(s, question):
        s += sgl.user(question)
        s += sgl.assistant(sgl.gen("answer", max_tokens=64))

    sgl.set_default_backend(sgl.RuntimeEndpoint("http://127.0.0.1:30000"))
    print(answer.run("What is the capital of France?")["answer"])

The words are those of SGLang's language; docs/lang.md describes them. Nothing of the server is imported, unless a
`Runtime` is made.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from mysglang.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from mysglang.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from mysglang.lang.interpreter import ProgramError
from mysglang.lang.program import SglFunction, function
from mysglang.lang.settings import flush_cache, get_server_info, set_default_backend, settings
from mysglang.lang.state import ProgramState

if TYPE_CHECKING:
    from mysglang.lang.backends.anthropic import Anthropic
    from mysglang.lang.backends.litellm import LiteLLM
    from mysglang.lang.backends.openai import OpenAI
    from mysglang.lang.backends.runtime import Runtime
    from mysglang.lang.backends.runtime_endpoint import RuntimeEndpoint
    from mysglang.lang.backends.vertexai import VertexAI

_BACKENDS = {
    "Anthropic": "anthropic",
    "LiteLLM": "litellm",
    "OpenAI": "openai",
    "Runtime": "runtime",
    "RuntimeEndpoint": "runtime_endpoint",
    "VertexAI": "vertexai",
}
"""Imported when they are first used: each needs a client library, or the whole server."""

__all__ = [
    "Anthropic",
    "LiteLLM",
    "OpenAI",
    "ProgramError",
    "ProgramState",
    "Runtime",
    "RuntimeEndpoint",
    "SglFunction",
    "VertexAI",
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


def __getattr__(name: str) -> object:
    if name not in _BACKENDS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"mysglang.lang.backends.{_BACKENDS[name]}"), name)
