"""ToldIds: the token ids that the choices of a chat tell, if they were asked for."""

from __future__ import annotations

from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.managers.request_state import GenerationChunk


class ToldIds:
    """Fed every chunk of a request."""

    def __init__(self, body: ChatCompletionRequest) -> None:
        self._output = body.return_token_ids
        self._prompt = body.return_token_ids or body.return_prompt_token_ids
        self._begun: set[int] = set()

    def of(self, chunk: GenerationChunk) -> dict[str, object]:
        """The ids of a chunk, and in the choice's first chunk the prompt's."""
        told: dict[str, object] = {}
        if self._output and len(chunk.token_ids):
            told["token_ids"] = chunk.token_ids.tolist()
        if self._prompt and chunk.index not in self._begun and chunk.prompt_ids is not None:
            told["prompt_token_ids"] = chunk.prompt_ids.tolist()
        self._begun.add(chunk.index)
        return told
