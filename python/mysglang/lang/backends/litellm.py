"""LiteLLM: programs on any of the services that the package litellm knows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mysglang.lang.backends.base import Backend, Generated, MetaInfo
from mysglang.lang.backends.foreign import import_client, only
from mysglang.lang.chat_format import ChatFormat, chat_format_of_model
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

_NAMES = {
    "max_new_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}


class LiteLLM(Backend):
    """Answers conversations. A program without roles is one question."""

    is_chat_model = True

    def __init__(self, model_name: str, chat_template: ChatFormat | None = None, **client_options: Any) -> None:
        """`model_name`: a name that litellm knows, such as "openai/gpt-4o". `client_options`: arguments of
        `litellm.completion`, such as `api_key`, `base_url`, `timeout`. Raises ImportError without the package litellm.
        """
        self._litellm = import_client("litellm", "LiteLLM")
        self.model_name = model_name
        self.client_params = client_options
        self._chat_template = chat_template or chat_format_of_model(model_name)

    def get_chat_template(self) -> ChatFormat:
        return self._chat_template

    def generate(self, prompt: Prompt, params: SamplingParams) -> Generated:
        answer = self._complete(prompt, params)
        return answer.choices[0].message.content or "", {}

    def generate_stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[tuple[str, MetaInfo]]:
        for chunk in self._complete(prompt, params, stream=True):
            if text := chunk.choices[0].delta.content:
                yield text, {}

    def _complete(self, prompt: Prompt, params: SamplingParams, **more: Any) -> Any:
        only(params, (*_NAMES, "stop"), "LiteLLM")
        options = params.named(_NAMES) | more
        if stops := params.stops():
            options["stop"] = stops
        return self._litellm.completion(
            model=self.model_name, messages=prompt.conversation(), **self.client_params, **options
        )
