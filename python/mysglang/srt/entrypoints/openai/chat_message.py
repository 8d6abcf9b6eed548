"""An assistant's message out of what its answer was taken apart into, in the shape of the OpenAI API."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from mysglang.srt.entrypoints.openai.answer_parser import AnswerPart, Thought
from mysglang.srt.function_call.base_detector import collect

CALL_ID_BYTES = 12


def new_call_id() -> str:
    """A name for a call that the model gave none."""
    return f"call_{secrets.token_hex(CALL_ID_BYTES)}"


def chat_message(parts: Sequence[AnswerPart]) -> dict[str, object]:
    """`choices[].message`. What there is not is null, but for the text, which is empty."""
    thoughts = "".join(part.text for part in parts if isinstance(part, Thought))
    content, calls = collect([part for part in parts if not isinstance(part, Thought)])
    tool_calls = [
        {
            "id": call.call_id or new_call_id(),
            "index": call.tool_index,
            "type": "function",
            "function": {"name": call.name, "arguments": call.parameters},
        }
        for call in calls
    ]
    return {
        "role": "assistant",
        "content": content,
        "reasoning_content": thoughts or None,
        "tool_calls": tool_calls or None,
    }
