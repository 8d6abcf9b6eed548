"""/parse_function_call and /separate_reasoning."""

from typing import Any

import pytest

from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.app_options import AppOptions

TOOLS = [{"type": "function", "function": {"name": "f"}}]
CALL = 'Yes. <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
SERVED = AppOptions(tool_call_parser="hermes", reasoning_parser="deepseek-r1")


@pytest.mark.parametrize("parser", ["qwen25", None])
async def test_calls(parser: str | None) -> None:
    async with serve(options=SERVED) as served:
        body = {"text": CALL, "tools": TOOLS, "tool_call_parser": parser}
        answer = (await served.post("/parse_function_call", body)).json()
    assert answer == {"normal_text": "Yes.", "calls": [{"tool_index": 0, "name": "f", "parameters": '{"a": 1}'}]}


async def test_a_long_text() -> None:
    async with serve(options=SERVED) as served:
        answer = (await served.post("/parse_function_call", {"text": "x " * 40_000 + CALL, "tools": TOOLS})).json()
    assert len(answer["normal_text"]) == 80_004
    assert len(answer["calls"]) == 1


@pytest.mark.parametrize("parser", ["qwen3-thinking", None, "<a>...</think>"])
async def test_thoughts(parser: str | None) -> None:
    text = "<a>Hm.</think> Yes." if parser and parser.startswith("<") else "Hm.</think> Yes."
    async with serve(options=SERVED) as served:
        answer = (await served.post("/separate_reasoning", {"text": text, "reasoning_parser": parser})).json()
    assert answer == {"reasoning_text": "Hm.", "text": "Yes."}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/parse_function_call", {"text": "a", "tools": TOOLS, "tool_call_parser": "x"}, "tool_call_parser"),
        ("/parse_function_call", {"text": "a", "tools": TOOLS}, "tool_call_parser"),
        ("/parse_function_call", {"text": "a", "tools": []}, "tools"),
        ("/parse_function_call", {"tools": TOOLS}, "text"),
        ("/separate_reasoning", {"text": "a", "reasoning_parser": "x"}, "reasoning_parser"),
        ("/separate_reasoning", {"text": "a"}, "reasoning_parser"),
        ("/separate_reasoning", {"text": "a", "reasoning_parser": "qwen3", "return_blocks": True}, "return_blocks"),
    ],
)
async def test_refusals(path: str, body: dict[str, Any], param: str) -> None:
    async with serve() as served:
        response = await served.post(path, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
