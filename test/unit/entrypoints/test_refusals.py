"""Refusals of each dialect: the error names field and limit and has the form of the dialect, and nothing runs."""

from typing import Any

import pytest

from fixtures.dialects import (
    CHAT,
    COMPLETIONS,
    DIALECTS,
    MESSAGES,
    NATIVE,
    OLLAMA_CHAT,
    OLLAMA_GENERATE,
    OPTIONS,
    RESPONSES,
    TEMPLATE,
    USER,
    Dialect,
    message_of,
)
from fixtures.scripted_engine import CONTEXT_LEN, endless, serve

CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]

REFUSALS: list[tuple[Dialect, dict[str, Any], str | None, str]] = [
    (CHAT, {"messages": []}, "messages", "at least 1"),
    (CHAT, {"messages": "Hi"}, "messages", "list"),
    (CHAT, {"messages": [{"role": "boss", "content": "Hi"}]}, "messages.0.role", "'system', 'developer'"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages.0", "content is required"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages.0.content", "a string or a list"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages.0.content",
        "'image_url'",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x" * 4000}]},
        "messages",
        f"context length ({CONTEXT_LEN} tokens)",
    ),
    (CHAT, {"max_tokens": 0}, "max_tokens", "greater than or equal to 1"),
    (CHAT, {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "differ"),
    (CHAT, {"min_tokens": 9, "max_tokens": 3}, "min_tokens", "at most max_tokens (3)"),
    (CHAT, {"temperature": -1}, "temperature", "finite number >= 0"),
    (CHAT, {"temperature": "hot"}, "temperature", "valid number"),
    (CHAT, {"top_p": 0}, "top_p", "greater than 0"),
    (CHAT, {"n": 0}, "n", "between 1 and"),
    (CHAT, {"n": 5_000_000}, "n", "more than the"),
    (CHAT, {"seed": 1 << 63}, "seed", "64-bit"),
    (CHAT, {"stop": [""]}, "stop", "1 to"),
    (CHAT, {"stop": ["a"] * 33}, "stop", "at most 32"),
    (CHAT, {"stop": 3}, "stop", "a string or a list of strings"),
    (CHAT, {"logit_bias": {"600": 1}}, "logit_bias", "out-of-vocabulary"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias", "'a' is not a token id"),
    (CHAT, {"logit_bias": {"-1": 1}}, "logit_bias", "'-1' is not a token id"),
    (CHAT, {"top_logprobs": 1}, "top_logprobs", "only with logprobs=true"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
    (CHAT, {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs", "less than or equal to 20"),
    (CHAT, {"logprobs": 1}, "logprobs", "valid boolean"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools.0.function", "required"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "--tool-call-parser"),
    (CHAT, {"tool_choice": "required"}, "tool_choice", "no tools"),
    (CHAT, {"reasoning_effort": "high"}, "reasoning_effort", "no way to ask for 'high'"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format", "json_object"),
    (CHAT, {"response_format": {"type": "json_object"}, "regex": "a"}, "response_format", "only one of them"),
    (
        CHAT,
        {"messages": [*USER, {"role": "assistant", "content": "a", "refusal": "b"}]},
        "messages.1.refusal",
        "messages.1.refusal: not supported by this server, except []",
    ),
    (CHAT, {"guided_choice": [""]}, "guided_choice", "guided_choice must have 1 to"),
    (CHAT, {"structured_outputs": {"regex": ""}}, "structured_outputs", "structured_outputs must have 1 to"),
    (
        CHAT,
        {"structured_outputs": {"regex": "a", "choice": ["b"]}},
        "structured_outputs",
        "only one of regex and choice",
    ),
    (
        CHAT,
        {"structured_outputs": {"json": {}, "json_object": True}},
        "structured_outputs",
        "only one of json and json_object",
    ),
    (CHAT, {"thinking": False, "enable_thinking": True}, "enable_thinking", "on, and thinking switches it off"),
    (CHAT, {"thinking": {"type": "enabled"}, "enable_thinking": False}, "thinking", "and enable_thinking switches"),
    (CHAT, {"reasoning_effort": "none", "thinking": True}, "thinking", "on, and reasoning_effort switches it off"),
    (CHAT, {"reasoning": {"enabled": False}, "thinking": True}, "thinking", "on, and reasoning switches it off"),
    (
        CHAT,
        {"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True},
        "enable_thinking",
        "on, and chat_template_kwargs.enable_thinking switches it off",
    ),
    (
        CHAT,
        {
            "messages": [*USER, {"role": "assistant", "content": "a", "tool_calls": CALLS}],
            "continue_final_message": True,
        },
        "messages",
        "needs a final message without tool_calls",
    ),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "may not hold"),
    (CHAT, {"continue_final_message": True}, "messages", "final message of the assistant"),
    (CHAT, {"rid": ""}, "rid", "1 to"),
    # Under the name of another server, if the client used that.
    (CHAT, {"request_id": ""}, "request_id", "request_id must have 1 to"),
    (CHAT, {"repeat_penalty": -1}, "repeat_penalty", "repeat_penalty"),
    (CHAT, {"guided_regex": ""}, "guided_regex", "guided_regex must have 1 to"),
    (CHAT, {"thinking_token_budget": -1}, "thinking_token_budget", "thinking_token_budget"),
    (CHAT, {"priority": 1}, "priority", "start it with --enable-priority-scheduling"),
    (COMPLETIONS, {"prompt": None}, "prompt", "required"),
    (COMPLETIONS, {"prompt": ""}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": []}, "prompt", "must not be empty"),
    (COMPLETIONS, {"prompt": [[]]}, "prompt", "empty"),
    (COMPLETIONS, {"prompt": ["a", 5]}, "prompt", "must be a string, a list of strings"),
    (COMPLETIONS, {"prompt": [5, True]}, "prompt", "must be a string, a list of strings"),
    (COMPLETIONS, {"prompt": [5, None]}, "prompt", "must be a string, a list of strings"),
    (COMPLETIONS, {"prompt": {"text": "a"}}, "prompt", "must be a string, a list of strings"),
    (COMPLETIONS, {"prompt": [600]}, "prompt", "token id 600 is out-of-vocabulary (0 to 599)"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt", "out-of-vocabulary"),
    (COMPLETIONS, {"prompt": [600], "echo": True}, "prompt", "prompt: token id 600 is out-of-vocabulary (0 to 599)"),
    (
        COMPLETIONS,
        {"stop": ["x" * 9] * 40},
        "stop",
        "a list of at most 32 strings, got ['xxxxxxxxx', 'xxxxxxxxx', 'xxxxxxxxx', 'xx",
    ),
    (COMPLETIONS, {"prompt": [1 << 40]}, "prompt", "out-of-vocabulary"),
    (
        COMPLETIONS,
        {"prompt": [5] * CONTEXT_LEN},
        "prompt",
        f"({CONTEXT_LEN} tokens) leaves no room for an answer",
    ),
    (COMPLETIONS, {"guided_choice": [""]}, "guided_choice", "guided_choice must have 1 to"),
    (COMPLETIONS, {"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs", "less than or equal to 20"),
    (COMPLETIONS, {"logprobs": True}, "logprobs", "valid integer"),
    (COMPLETIONS, {"best_of": 3, "stream": True}, "best_of", "in a stream it is n (1)"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of", "must be at least n (2)"),
    (COMPLETIONS, {"best_of": 500, "stream": False}, "best_of", "more than the 72 requests"),
    (COMPLETIONS, {"suffix": "x"}, "suffix", "--completion-template"),
    (COMPLETIONS, {"rid": ["a", "b"]}, "rid", "2 entries for 1 prompts"),
    (COMPLETIONS, {"request_id": ["a", "b"]}, "request_id", "request_id has 2 entries for 1 prompts"),
    (COMPLETIONS, {"repeat_penalty": -1}, "repeat_penalty", "repeat_penalty"),
    (COMPLETIONS, {"grammar": ""}, "grammar", "grammar must have 1 to"),
    (NATIVE, {"text": None}, "text", "Exactly one of text, input_ids and input_embeds"),
    (NATIVE, {"text": "a", "input_ids": [5]}, "text", "Exactly one"),
    (NATIVE, {"text": 5}, "text", "Expected"),
    (
        NATIVE,
        {"text": "a", "sampling_params": {"temprature": 0}},
        "temprature",
        "unknown field `sampling_params.temprature`",
    ),
    (NATIVE, {"text": "a", "sampling_params": {"temperature": "0"}}, "temperature", "Expected"),
    (NATIVE, {"text": "a", "sampling_params": {"top_p": 2}}, "top_p", "at most 1"),
    (NATIVE, {"text": "a", "sampling_params": []}, "sampling_params", "may be a list only for a batch"),
    (NATIVE, {"text": "a" * 4000}, "text", "context length"),
    (NATIVE, {"text": ""}, "text", "empty"),
    (NATIVE, {"text": None, "input_ids": [600]}, "input_ids", "out-of-vocabulary"),
    (NATIVE, {"text": None, "input_embeds": [1, 1]}, "input_embeds[0]", "Expected `array`, got `int`"),
    (NATIVE, {"text": "a", "lora_path": "x"}, "lora_path", "not supported"),
    (NATIVE, {"text": "a", "return_logprob": True, "top_logprobs_num": 10**9}, "top_logprobs_num", "between 0 and"),
    (NATIVE, {"text": "a", "rid": "r" * 300}, "rid", "characters"),
    (RESPONSES, {"input": []}, None, "input"),
    (RESPONSES, {"input": None}, None, "input"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None, "input.0 .. content.0"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "x"}]}, None, "input.0"),
    (RESPONSES, {"input": [{"type": "function_call", "call_id": "c9", "name": "f", "arguments": "{}"}]}, None, "c9"),
    (RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "?"}]}, None, "encrypted_content"),
    (RESPONSES, {"input": [{"type": "reasoning", "encrypted_content": "é"}]}, None, "encrypted_content"),
    (RESPONSES, {"input": [{"type": "reasoning"}]}, "input.0", "input.0"),
    (RESPONSES, {"max_output_tokens": 0}, None, "max_output_tokens"),
    (RESPONSES, {"temperature": -1}, None, "temperature"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, None, "tools.0"),
    (
        RESPONSES,
        {"tools": [{"type": "function", "name": "f", "parameters": {"type": "array"}}]},
        None,
        "tools.0.parameters",
    ),
    (RESPONSES, {"tool_choice": {"type": "function", "name": "f"}}, None, "tool_choice"),
    (RESPONSES, {"include": ["file_search_call.results"]}, None, "include.0"),
    (RESPONSES, {"top_logprobs": 2}, None, "top_logprobs"),
    (RESPONSES, {"reasoning": {"summary": "detailed"}}, "reasoning.summary", "reasoning.summary: not supp"),
    (RESPONSES, {"background": True, "store": False}, None, "background"),
    (RESPONSES, {"model": None, "conversation": "c"}, None, "conversation"),
    (MESSAGES, {"max_tokens": 0}, None, "max_tokens"),
    (MESSAGES, {"max_tokens": None}, None, "max_tokens"),
    (MESSAGES, {"temperature": -1}, None, "temperature"),
    (MESSAGES, {"stop_sequences": [""]}, None, "stop_sequences"),
    (MESSAGES, {"container": "c"}, None, "containe"),
    (MESSAGES, {"messages": []}, None, "messages"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image"}]}]}, None, "messages.0.content.0"),
    (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, None, "messages.0.content.0"),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "t"}]}]},
        None,
        "messages.0: content.0: a message of the user has no block of type 'thinking'",
    ),
    (
        MESSAGES,
        {"messages": [*USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": ""}]}]},
        None,
        "messages",
    ),
    (MESSAGES, {"thinking": {"type": "enabled"}}, None, "budget_tokens"),
    (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 50}}, None, "budget_tokens"),
    (MESSAGES, {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, None, "context_management"),
    (MESSAGES, {"tools": [{"name": "f", "input_schema": {"type": "array"}}]}, None, "tools.0.input_schema"),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, None, "tools.0"),
    (MESSAGES, {"tool_choice": {"type": "tool", "name": "f"}}, None, "tool_choice"),
    (MESSAGES, {"tool_choice": {"type": "tool"}}, None, "tool_choice"),
    (OLLAMA_CHAT, {"options": {"mirostat": 2}}, None, "options.mirostat"),
    (OLLAMA_CHAT, {"options": {"typical_p": 0.5}}, None, "typical_p"),
    (OLLAMA_CHAT, {"options": {"num_ctx": CONTEXT_LEN + 1}}, None, f"num_ctx .. {CONTEXT_LEN}"),
    (OLLAMA_CHAT, {"options": {"num_predict": 0}}, None, "options.num_predict"),
    (OLLAMA_CHAT, {"options": {"temperature": -1}}, None, "temperature"),
    (OLLAMA_CHAT, {"options": {"repeat_penalty": -1}}, None, "repeat_penalty"),
    (OLLAMA_CHAT, {"keep_alive": 0}, None, "keep_alive"),
    (OLLAMA_CHAT, {"keep_alive": "0s"}, None, "keep_alive"),
    (OLLAMA_CHAT, {"keep_alive": "0h0m"}, None, "keep_alive .. cannot unload"),
    (OLLAMA_CHAT, {"keep_alive": "soon"}, None, "keep_alive .. 1h30m"),
    (OLLAMA_CHAT, {"format": "yaml"}, None, "format"),
    (OLLAMA_CHAT, {"messages": [{"role": "user", "images": ["x"]}]}, None, "messages.0.images"),
    (OLLAMA_CHAT, {"messages": [{"role": "robot"}]}, None, "messages.0.role"),
    (OLLAMA_CHAT, {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]}, None, "messages"),
    (OLLAMA_CHAT, {"top_logprobs": 2}, None, "top_logprobs"),
    (OLLAMA_GENERATE, {"suffix": "x"}, None, "suffix"),
    (OLLAMA_GENERATE, {"context": [1, 2]}, None, "context"),
    (OLLAMA_GENERATE, {"raw": True, "system": "s"}, None, "system"),
    (OLLAMA_GENERATE, {"suffix": "x", "system": "s"}, None, "system: not with a suffix"),
]
"""A dialect, fields, the `param` that the error names (None: it names none of its own), and words of its message; where
`..` stands between them, any others may.
"""

BARE = (CHAT, COMPLETIONS, NATIVE)
"""Asked without a parser of tool calls, whose absence is one of the reasons."""


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.path)
async def test_refusals_name_the_field_and_the_limit(dialect: Dialect) -> None:
    wrong = []
    server: dict[str, Any] = {} if dialect in BARE else {"options": OPTIONS, "template": TEMPLATE}
    async with serve(endless, **server) as served:
        for fields, param, words in [row[1:] for row in REFUSALS if row[0] is dialect]:
            for stream in (False, True):
                response = await served.post(dialect.path, dialect.asked(**({"stream": stream} | fields)))
                message = message_of(response.json()) if response.status_code == 400 else ""
                if not all(part in message for part in words.split(" .. ")) or not message:
                    wrong.append((fields, words, response.text))
                elif not _in_shape(dialect, response.json(), response.headers, param):
                    wrong.append((fields, param, response.text))
        assert not served.engine.sent
    assert not wrong


def _in_shape(dialect: Dialect, body: Any, headers: Any, param: str | None) -> bool:
    match body:
        case {"type": "error", "error": {"type": "invalid_request_error"}, "request_id": request_id}:
            return dialect is MESSAGES and request_id == headers["request-id"]
        case {"error": str()}:
            return dialect in (OLLAMA_CHAT, OLLAMA_GENERATE)
        case {"error": {"param": found, "code": 400}}:
            return param is None or found == param
    return False
