"""/v1/chat/completions: what an answer says (`chat_answers.py`) as OpenAI's messages and frames."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers, ChatNews
from mysglang.srt.entrypoints.openai.chat_message import chat_message
from mysglang.srt.entrypoints.openai.chat_stream import ChatStream
from mysglang.srt.entrypoints.openai.field_names import CHAT_NAMES
from mysglang.srt.entrypoints.openai.last_states import LastStates
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.serving_base import Envelope, OpenAIServingBase, ServingOptions, note_usage
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames
from mysglang.srt.entrypoints.streaming import DONE


class OpenAIServingChat(OpenAIServingBase[ChatCompletionRequest]):
    """Knows the shapes; what a request becomes and how its answer is read is ChatAnswers' business."""

    body_model = ChatCompletionRequest
    names = CHAT_NAMES

    def __init__(
        self, front: Front, models: OpenAIServingModels, options: ServingOptions, answers: ChatAnswers
    ) -> None:
        super().__init__(front, models, options)
        self._answers = answers

    async def _complete(self, body: ChatCompletionRequest, envelope: Envelope) -> dict[str, object]:
        meter = self._meter(body)
        choices: dict[int, dict[str, object]] = {}
        states = LastStates()
        ask = await self._answers.ask(body, envelope.rid)
        async with aclosing(self._answers.read(ask)) as found:
            async for news in found:
                note_usage(meter, news.chunk, news.reasoning_tokens)
                states.note(news.chunk)
                choices[news.chunk.index] = self._choice(news) | states.of(news.chunk.index)
        return self._answer(envelope.head("chat.completion"), choices, meter)

    async def _stream(self, body: ChatCompletionRequest, envelope: Envelope) -> AsyncGenerator[bytes, None]:
        options, meter = body.stream_options, self._meter(body)
        with_usage = options.include_usage or options.continuous_usage_stats
        frames = StreamFrames(envelope.head("chat.completion.chunk"), usage_key=with_usage)
        ask = await self._answers.ask(body, envelope.rid)
        stream, states = ChatStream(frames), LastStates()
        async with aclosing(self._answers.read(ask)) as found:
            async for news in found:
                index = news.chunk.index
                states.note(news.chunk)
                note_usage(meter, news.chunk, news.reasoning_tokens)
                usage = meter.of(index) if options.continuous_usage_stats else None
                said = stream.begin(index) + stream.say(index, news.parts, self._logprobs(news), usage)
                if news.ending is not None:
                    said += stream.finish(index, news.ending.reason, news.ending.matched)
                # Nothing, while what a chunk brings is incomplete.
                if said:
                    yield said
        for index, found_states in states.all():
            yield stream.add(index, found_states)
        yield (frames.usage(meter.total()) if options.include_usage else b"") + DONE

    def _choice(self, news: ChatNews) -> dict[str, object]:
        assert news.ending is not None, "a request that does not stream has one chunk for each choice"
        return {
            "index": news.chunk.index,
            "message": chat_message(news.parts),
            "logprobs": self._logprobs(news),
            "finish_reason": news.ending.reason,
            "matched_stop": news.ending.matched,
        }

    def _logprobs(self, news: ChatNews) -> dict[str, object] | None:
        found = self._answers.logprobs(news.chunk)
        return {"content": found, "refusal": None} if found else None
