"""Ollama's requests -> the same requests in OpenAI's words, which are what the chat path takes."""

from __future__ import annotations

from typing import Any

from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.ollama.protocol import (
    EmbedOptions,
    OllamaChatRequest,
    OllamaGenerateRequest,
    OllamaMessage,
    OllamaRequest,
    Options,
)
from mysglang.srt.entrypoints.openai.chat_prompt import ThinkingWords
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.sampling_body import in_openai_words, names_on
from mysglang.srt.errors import InvalidRequest

NAMES = {
    **names_on("ollama"),
    "max_tokens": "num_predict",
    "response_format": "format",
    "reasoning_effort": "think",
    "chat_template_kwargs": "think",
    "continue_final_message": "messages",
}
"""OpenAI's name of a field -> Ollama's, where they differ."""

PROMPT_NAMES = {**NAMES, "messages": "prompt"}
"""Names of the fields in a request that is a prompt."""


def chat_request(body: OllamaChatRequest, words: ThinkingWords) -> ChatCompletionRequest:
    """Translates the body to a chat completion request. `words`: how the model's chat template spells thinking."""
    messages = [_message(message) for message in body.messages]
    return _chat(body, messages, words, tools=[tool.model_dump(exclude_unset=True) for tool in body.tools])


def generate_request(body: OllamaGenerateRequest, words: ThinkingWords) -> ChatCompletionRequest:
    """Returns the chat request for an Ollama prompt: the prompt becomes the message of a user."""
    messages = [{"role": "user", "content": body.prompt}]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    return _chat(body, messages, words)


def raw_request(body: OllamaGenerateRequest) -> CompletionRequest:
    """Returns the completion request for a prompt that is complete, without a template. Raises InvalidRequest."""
    fields = _sampling(body)
    if body.logprobs:
        fields["logprobs"] = body.top_logprobs
    return validate(CompletionRequest, {"prompt": body.prompt, "suffix": body.suffix, **fields})


def max_tokens(body: OllamaRequest) -> int | None:
    """Returns the limit on new tokens; None for as many as fit into the context."""
    return body.options.num_predict if body.options.num_predict > 0 else None


def check_context(options: Options | EmbedOptions, context_len: int) -> None:
    """Raises InvalidRequest if a client needs more context than there is."""
    wanted = options.num_ctx
    if wanted is not None and wanted > context_len:
        message = f"options.num_ctx: the model is served with a context of {context_len} tokens, got {wanted}."
        raise InvalidRequest(message, param="options")


def _chat(
    body: OllamaRequest, messages: list[dict[str, Any]], words: ThinkingWords, **more: object
) -> ChatCompletionRequest:
    last = messages[-1]
    if last.get("tool_calls"):
        raise InvalidRequest("messages: the last one calls tools, so that their results must follow.", param="messages")
    fields = {
        "messages": messages,
        "continue_final_message": last["role"] == "assistant",
        "chat_template_kwargs": _thinking(body, words),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        **_sampling(body),
        **more,
    }
    return validate(ChatCompletionRequest, fields)


def _thinking(body: OllamaRequest, words: ThinkingWords) -> dict[str, object]:
    """Translates `think` into variables of the chat template. A level means only "on" if the template has no levels."""
    if body.think is None:
        return {}
    if body.think is not False:
        words.require(field="think")
    kwargs = words.switched(body.think is not False)
    if isinstance(body.think, str) and words.effort:
        kwargs[words.effort] = body.think
    return kwargs


def _sampling(body: OllamaRequest) -> dict[str, Any]:
    """Returns the sampling fields of a chat. It is always a stream, because only then is the duration of the prompt
    known.
    """
    return {
        "stream": True,
        "max_tokens": max_tokens(body),
        "response_format": _response_format(body),
        **in_openai_words(body.options, "ollama"),
    }


def _response_format(body: OllamaRequest) -> dict[str, Any] | None:
    if isinstance(body.format, dict):
        return {"type": "json_schema", "json_schema": {"schema": body.format}}
    return {"type": "json_object"} if body.format else None


def _message(message: OllamaMessage) -> dict[str, Any]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": one.name, "arguments": one.arguments}}
        for call in message.tool_calls
        for one in [call.function]
    ]
    return {
        "role": message.role,
        "content": message.content,
        "reasoning_content": message.thinking,
        "tool_calls": calls or None,
        "tool_call_id": message.tool_call_id,
        "name": message.tool_name,
    }
