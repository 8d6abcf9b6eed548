"""LastStates: the last hidden state of each choice, which is what OpenAI's routes tell, as SGLang's do."""

from __future__ import annotations

from collections.abc import Iterator

from mysglang.srt.managers.request_state import GenerationChunk


class LastStates:
    """Fed every chunk, it remembers the newest state of each choice. Knows nothing of choices that did not ask."""

    def __init__(self) -> None:
        self._last: dict[int, list[float]] = {}

    def note(self, chunk: GenerationChunk) -> None:
        states = chunk.hidden_states
        if states is not None and len(states):
            self._last[chunk.index] = states[-1].tolist()

    def of(self, index: int) -> dict[str, object]:
        """Fields of a whole choice with its hidden states; empty if they were not requested."""
        return {"hidden_states": self._last[index]} if index in self._last else {}

    def all(self) -> Iterator[tuple[int, dict[str, object]]]:
        """(choice, what it says) for the end of a stream."""
        for index in sorted(self._last):
            yield index, self.of(index)
