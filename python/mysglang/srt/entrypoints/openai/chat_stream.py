"""The frames of a chat stream: what each choice has said so far decides which frame comes next.

For each choice: one frame with the role, then its text, then one with the finish reason. Knows neither sampling nor
where text comes from; what will split a text into kinds (thinking, tool calls) has its place here.
"""

from __future__ import annotations

from collections.abc import Mapping

from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames


class ChatStream:
    """Renders one request's choices. Those of several choices may alternate, in the order of the calls."""

    def __init__(self, frames: StreamFrames) -> None:
        self._frames = frames
        self._begun: set[int] = set()

    def begin(self, index: int) -> bytes:
        """The frame with the role, the first time that `index` is heard of; after that nothing."""
        if index in self._begun:
            return b""
        self._begun.add(index)
        return self._frame(index, {"role": "assistant", "content": "", "reasoning_content": None})

    def text(self, index: int, text: str, logprobs: object = None, usage: Mapping[str, object] | None = None) -> bytes:
        """What `index` has newly said. Tokens whose text is still held back have logprobs all the same."""
        return self._frame(index, {"content": text, "reasoning_content": None}, logprobs, usage=usage)

    def finish(self, index: int, reason: str, matched: int | str | None) -> bytes:
        """The last frame of `index`."""
        return self._frame(index, {"reasoning_content": None}, None, reason, matched)

    def _frame(
        self,
        index: int,
        delta: Mapping[str, object],
        logprobs: object = None,
        reason: str | None = None,
        matched: int | str | None = None,
        usage: Mapping[str, object] | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": reason,
            "matched_stop": matched,
        }
        return self._frames.choice(choice, usage)
