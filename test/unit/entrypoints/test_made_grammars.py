"""Grammars that the server makes out of other fields: an error about one names the field that the client sent, in every
dialect, and also if the scheduler finds it.
"""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from fixtures.dialects import (
    CHAT,
    COMPLETIONS,
    MESSAGES,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OPTIONS,
    RESPONSES,
    TEMPLATE,
    Dialect,
    message_of,
)
from fixtures.grammar_walk import backend_named, compiled, walk
from fixtures.scripted_engine import Step, serve
from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.tool_constraint import list_schema
from mysglang.srt.entrypoints.openai.tool_protocol import FunctionDefinition
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.grammar_spec import MAX_GRAMMAR_BYTES, GrammarSpec

Schema = dict[str, Any]
KINDS = {"json_schema", "regex", "ebnf", "structural_tag"}
"""Names of the grammars inside the server."""


def schema_of(size: int) -> Schema:
    """A schema of about so many bytes."""
    return {"type": "object", "properties": {"a": {"type": "string", "description": "x" * size}}}


def function(schema: Schema, *, strict: bool = True) -> Schema:
    return {"type": "function", "function": {"name": "f", "strict": strict, "parameters": schema}}


def format_of(schema: Schema) -> Schema:
    return {"type": "json_schema", "name": "a", "schema": schema}


NAMES_ALONE = "{% for tool in tools or [] %}{{ tool.function.name }}{% endfor %}{{ messages[0].content }}"
"""A template that leaves the schemas out."""
NAMED = {"type": "function", "function": {"name": "f"}}
MADE: dict[str, tuple[Dialect, str, Any]] = {
    "strict": (CHAT, "tools", lambda schema: {"tools": [function(schema)]}),
    "required": (CHAT, "tools", lambda schema: {"tools": [function(schema, strict=False)], "tool_choice": "required"}),
    "named": (CHAT, "tools", lambda schema: {"tools": [function(schema, strict=False)], "tool_choice": NAMED}),
    "schema": (
        CHAT,
        "response_format",
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
    ),
    "schema of llama.cpp": (
        CHAT,
        "response_format",
        lambda schema: {"response_format": {"type": "json_object", "schema": schema}},
    ),
    "tag": (
        CHAT,
        "response_format",
        lambda schema: {
            "response_format": {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema}}
        },
    ),
    "choice": (CHAT, "guided_choice", lambda schema: {"guided_choice": [str(schema)]}),
    "vLLM's": (CHAT, "structured_outputs", lambda schema: {"structured_outputs": {"json": schema}}),
    "schema of a text": (
        COMPLETIONS,
        "response_format",
        lambda schema: {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}},
    ),
    "strict of responses": (
        RESPONSES,
        "tools",
        lambda schema: {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": schema}]},
    ),
    "required of responses": (
        RESPONSES,
        "tools",
        lambda schema: {
            "tools": [{"type": "function", "name": "f", "parameters": schema}],
            "tool_choice": "required",
        },
    ),
    "schema of responses": (RESPONSES, "text", lambda schema: {"text": {"format": format_of(schema)}}),
    "any of messages": (
        MESSAGES,
        "tools",
        lambda schema: {"tools": [{"name": "f", "input_schema": schema}], "tool_choice": {"type": "any"}},
    ),
    "strict of messages": (
        MESSAGES,
        "tools",
        lambda schema: {"tools": [{"name": "f", "strict": True, "input_schema": schema}]},
    ),
    "schema of messages": (
        MESSAGES,
        "output_config",
        lambda schema: {"output_config": {"format": {"type": "json_schema", "schema": schema}}},
    ),
    "schema of messages in the beta": (
        MESSAGES,
        "output_format",
        lambda schema: {"output_format": {"type": "json_schema", "schema": schema}},
    ),
    "schema of ollama": (OLLAMA_CHAT, "format", lambda schema: {"format": schema}),
    "schema of ollama's text": (OLLAMA_GENERATE, "format", lambda schema: {"format": schema}),
}


def options(backend: str) -> AppOptions:
    return AppOptions(
        served_model_name="tiny",
        reasoning_parser=OPTIONS.reasoning_parser,
        tool_call_parser=OPTIONS.tool_call_parser,
        grammar_backend=backend,
    )


@pytest.mark.parametrize("backend", ["xgrammar", "llguidance"])
@pytest.mark.parametrize("case", MADE)
async def test_a_grammar_that_is_too_long(case: str, backend: str) -> None:
    dialect, field, fields = MADE[case]
    async with serve(options=options(backend), template=TEMPLATE) as served:
        for stream in (False, True):
            asked = dialect.asked(stream=stream, **fields(schema_of(MAX_GRAMMAR_BYTES)))
            response = await served.post(dialect.path, asked)
            message = message_of(response.json())
            assert response.status_code == 400
            assert message.startswith((f"{field}: ", f"{field} "))
            assert str(MAX_GRAMMAR_BYTES) in message
            assert not KINDS & set(message.split())
            assert f"got {MAX_GRAMMAR_BYTES // 1000}" in message  # and a few hundred bytes around it
            error = response.json()["error"]
            assert isinstance(error, str) or error.get("param", field) == field
        assert not served.engine.sent


@pytest.mark.parametrize("status", [400, 500, 503])
@pytest.mark.parametrize("case", MADE)
async def test_a_grammar_that_the_scheduler_refuses(case: str, status: int) -> None:
    """Behind the check of its length it is known by its own name."""
    dialect, field, fields = MADE[case]

    def refuses(request: TokenizedGenerateReqInput) -> list[Step]:
        spec = request.sampling_params.grammar
        assert spec is not None
        return [Step("", [], Abort(f"{spec.kind}: it is too large.", status=status, param=spec.kind))]

    async with serve(refuses, options("xgrammar"), template=TEMPLATE) as served:
        for stream in (False, True):
            response = await served.post(dialect.path, dialect.asked(stream=stream, **fields(schema_of(10))))
            answer = dialect.read(response.content)[-1] if response.status_code == 200 else response.json()
            assert message_of(answer) == f"{field}: it is too large."


@pytest.mark.parametrize("library", ["llguidance", "outlines"])
def test_a_list_of_calls_names_its_functions(library: str) -> None:
    """They are where errors of its schema look for them, whatever their names are."""
    pytest.importorskip(library if library == "llguidance" else "outlines_core")
    backend = backend_named(library)
    place = {"type": "integer"}
    taken = {"properties": {"a": {"$ref": "#/$defs/P"}}, "$defs": {"P": place}, "required": ["a"]}
    functions = [FunctionDefinition(name=name, parameters=taken) for name in ("f", "w/e~ 20%é")]
    grammar = compiled(backend, "json_schema", list_schema(functions, several=True))
    for seed in range(3):
        for call in json.loads(walk(backend, grammar.matcher(), random.Random(seed))):
            assert call["name"] in ("f", "w/e~ 20%é")
            assert isinstance(call["parameters"]["a"], int)
    wrong = FunctionDefinition(name="g", parameters={"properties": {"a": {"$dynamicRef": "#x"}}})
    with pytest.raises(GrammarError, match=r"'\$dynamicRef' at #/functions/g/properties/a"):
        backend.compile(GrammarSpec("json_schema", list_schema([*functions, wrong], several=True)))


@pytest.mark.parametrize("parser", ["gpt-oss", "llama3", "mistral", "qwen3_coder"])
async def test_a_schema_counts_once(parser: str) -> None:
    """However many forms calls have in the model's format."""
    schema = {**schema_of(100), "$defs": {"A": {"description": "x" * (MAX_GRAMMAR_BYTES - 8000)}}}
    schema["properties"]["b"] = {"type": "object", "additionalProperties": {"$ref": "#/$defs/A"}}
    async with serve(options=AppOptions(tool_call_parser=parser), template=NAMES_ALONE) as served:
        response = await served.post(CHAT.path, CHAT.asked(tools=[function(schema)]))
        assert response.status_code == 200, response.text
        assert len(served.engine.requests[-1].sampling_params.structural_tag or "") < MAX_GRAMMAR_BYTES
