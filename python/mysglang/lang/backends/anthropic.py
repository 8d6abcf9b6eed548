"""Anthropic: programs on Anthropic's service, or on any server that speaks its API."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

from mysglang.lang.backends.base import Backend, Generated, MetaInfo
from mysglang.lang.backends.foreign import import_client, only
from mysglang.lang.chat_format import ChatFormat, chat_format
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

_NAMES = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
"""Fields of the service that the newest client has no argument for; they travel as `extra_body`."""


class Anthropic(Backend):
    """Answers conversations. A program without roles is one question."""

    is_chat_model = True

    def __init__(self, model_name: str, **client_options: Any) -> None:
        """`client_options` are those of the client, such as `base_url` and `api_key`. Raises ImportError without the
        package anthropic.
        """
        self.client = import_client("anthropic", "Anthropic").Anthropic(**client_options)
        weakref.finalize(self, self.client.close)
        self.model_name = model_name

    def get_chat_template(self) -> ChatFormat:
        return chat_format("claude")

    def generate(self, prompt: Prompt, params: SamplingParams) -> Generated:
        answer = self.client.messages.create(**self._request(prompt, params))
        text = "".join(block.text for block in answer.content if block.type == "text")
        return text, {"finish_reason": answer.stop_reason, "usage": answer.usage.to_dict()}

    def generate_stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[tuple[str, MetaInfo]]:
        with self.client.messages.stream(**self._request(prompt, params)) as stream:
            for text in stream.text_stream:
                yield text, {}

    def _request(self, prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
        only(params, (*_NAMES, "max_new_tokens", "stop"), "Anthropic's API")
        messages = prompt.conversation()
        request: dict[str, Any] = {"model": self.model_name, "max_tokens": params.max_new_tokens}
        if sampling := params.named(_NAMES):
            request["extra_body"] = sampling
        if messages and messages[0]["role"] == "system":
            request["system"] = messages.pop(0)["content"]
        if stops := params.stops():
            request["stop_sequences"] = stops
        return {**request, "messages": messages}
