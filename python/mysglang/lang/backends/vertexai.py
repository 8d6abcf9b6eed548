"""VertexAI: programs on Google's Gemini models."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from mysglang.lang.backends.base import Backend, Generated, MetaInfo
from mysglang.lang.backends.foreign import import_client, only
from mysglang.lang.chat_format import ChatFormat, chat_format
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

_NAMES = {"max_new_tokens": "max_output_tokens", "temperature": "temperature", "top_p": "top_p", "top_k": "top_k"}
_ROLES = {"user": "user", "assistant": "model"}


class VertexAI(Backend):
    """Answers conversations. A program without roles is one question."""

    is_chat_model = True

    def __init__(self, model_name: str, safety_settings: Any = None, **client_options: Any) -> None:
        """Project and location are taken from GCP_PROJECT_ID and GCP_LOCATION, as in SGLang. `client_options`: more
        arguments of `genai.Client`. Raises ImportError without the package google-genai, KeyError without a project.
        """
        genai = import_client("google.genai", "VertexAI")
        self._types = import_client("google.genai.types", "VertexAI")
        project = {"project": os.environ["GCP_PROJECT_ID"], "location": os.environ.get("GCP_LOCATION")}
        self._client = genai.Client(**({"vertexai": True, **project} | client_options))
        self.model_name = model_name
        self.safety_settings = safety_settings

    def get_chat_template(self) -> ChatFormat:
        return chat_format("default")

    def generate(self, prompt: Prompt, params: SamplingParams) -> Generated:
        answer = self._client.models.generate_content(**self._request(prompt, params))
        return answer.text or "", {}

    def generate_stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[tuple[str, MetaInfo]]:
        for answer in self._client.models.generate_content_stream(**self._request(prompt, params)):
            yield answer.text or "", {}

    def _request(self, prompt: Prompt, params: SamplingParams) -> dict[str, Any]:
        only(params, (*_NAMES, "stop"), "Vertex AI")
        messages = prompt.conversation()
        config: dict[str, Any] = params.named(_NAMES)
        if config.get("top_k", 1) < 1:
            del config["top_k"]
        if messages and messages[0]["role"] == "system":
            config["system_instruction"] = messages.pop(0)["content"]
        if stops := params.stops():
            config["stop_sequences"] = stops
        if self.safety_settings is not None:
            config["safety_settings"] = self.safety_settings
        return {
            "model": self.model_name,
            "contents": [
                {"role": _ROLES[message["role"]], "parts": [{"text": message["content"]}]} for message in messages
            ],
            "config": self._types.GenerateContentConfig(**config),
        }
