"""Extra parts of choices, if they were requested: token ids, and the last hidden state."""

from __future__ import annotations

from collections.abc import Iterator

from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.managers.request_state import GenerationChunk


class ReturnedIds:
    """Adds token ids to the choices of a request, if the client wants them. It must get every chunk."""

    def __init__(self, body: ChatCompletionRequest) -> None:
        self._output = body.return_token_ids
        self._prompt = body.return_token_ids or body.return_prompt_token_ids
        self._begun: set[int] = set()

    def of(self, chunk: GenerationChunk) -> dict[str, object]:
        """Returns the token ids of a chunk, and in the choice's first chunk those of the prompt."""
        told: dict[str, object] = {}
        if self._output and len(chunk.token_ids):
            told["token_ids"] = chunk.token_ids.tolist()
        if self._prompt and chunk.index not in self._begun and chunk.prompt_ids is not None:
            told["prompt_token_ids"] = chunk.prompt_ids.tolist()
        self._begun.add(chunk.index)
        return told


class LastStates:
    """Keeps the newest hidden state of each choice. It is called with every chunk; choices that did not ask have
    none.
    """

    def __init__(self) -> None:
        self._last: dict[int, list[float]] = {}

    def note(self, chunk: GenerationChunk) -> None:
        states = chunk.hidden_states
        if states is not None and len(states):
            self._last[chunk.index] = states[-1].tolist()

    def of(self, index: int) -> dict[str, object]:
        """Returns the fields with the hidden states of a complete choice; empty if they were not requested."""
        return {"hidden_states": self._last[index]} if index in self._last else {}

    def all(self) -> Iterator[tuple[int, dict[str, object]]]:
        """Yields (choice, fields of `of`) for the end of a stream."""
        for index in sorted(self._last):
            yield index, self.of(index)
