"""/v1/chat/completions: what an answer says (`chat_answers.py`) as OpenAI's messages and frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from functools import partial

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.chat_answers import ChatAnswers, ChatCall, ChatNews
from mysglang.srt.entrypoints.openai.chat_stream import ChatStream, chat_message
from mysglang.srt.entrypoints.openai.choice_extras import LastStates, ReturnedIds
from mysglang.srt.entrypoints.openai.field_names import CHAT_NAMES
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.serving_base import Envelope, OpenAIServingBase, ServingOptions, note_usage
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames
from mysglang.srt.entrypoints.openai.usage import UsageMeter
from mysglang.srt.entrypoints.streaming import DONE
from mysglang.srt.entrypoints.talk import Talk
from mysglang.srt.managers.request_state import GenerationChunk


class OpenAIServingChat(OpenAIServingBase[ChatCompletionRequest]):
    """Answers POST /v1/chat/completions. It knows OpenAI's shapes; ChatAnswers makes the request and reads the
    answer.
    """

    body_model = ChatCompletionRequest
    names = CHAT_NAMES

    def __init__(
        self, front: Front, models: OpenAIServingModels, options: ServingOptions, answers: ChatAnswers
    ) -> None:
        super().__init__(front, models, options)
        self._answers = answers

    async def _complete(self, body: ChatCompletionRequest, envelope: Envelope) -> dict[str, object]:
        meter = self._meter(body)
        choices: dict[int, object] = {}
        states, ids = LastStates(), ReturnedIds(body)
        call = await self._answers.ask(body, envelope.rid)
        async with aclosing(self._answers.read(call)) as found:
            async for news in found:
                note_usage(meter, news.chunk, news.reasoning_tokens)
                states.note(news.chunk)
                said = {**states.of(news.chunk.index), **ids.of(news.chunk)}
                choices[news.chunk.index] = await self._in_thread_if_long(news.chunk, partial(self._choice, news, said))
        return self._answer(envelope.head("chat.completion"), choices, meter)

    async def _talk(self, body: ChatCompletionRequest, envelope: Envelope) -> Talk:
        call = await self._answers.ask(body, envelope.rid)
        frames = _Frames(body, envelope, self._meter(body), call, self._logprobs)
        return Talk(self._answers.chunks(call), frames, call.names, self._front.text_pool)

    def _choice(self, news: ChatNews, said: Mapping[str, object]) -> dict[str, object]:
        assert news.ending is not None, "a request that does not stream has one chunk for each choice"
        return {
            "index": news.chunk.index,
            "message": chat_message(news.parts),
            "logprobs": self._logprobs(news),
            "finish_reason": news.ending.reason,
            "matched_stop": news.ending.matched,
            **said,
        }

    def _logprobs(self, news: ChatNews) -> dict[str, object] | None:
        found = self._answers.logprobs(news.chunk)
        return {"content": found, "refusal": None} if found else None


class _Frames:
    """Turns the chunks of an answer into stream frames."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        envelope: Envelope,
        meter: UsageMeter,
        call: ChatCall,
        logprobs: Callable[[ChatNews], dict[str, object] | None],
    ) -> None:
        options = body.stream_options
        self._meter = meter
        self._call = call
        self._logprobs = logprobs
        self._total = options.include_usage
        self._usage_so_far = options.continuous_usage_stats
        head = envelope.head("chat.completion.chunk")
        self._frames = StreamFrames(head, usage_key=self._total or self._usage_so_far)
        self._stream = ChatStream(self._frames)
        self._states = LastStates()
        self._ids = ReturnedIds(body)
        self._ids_with_text = body.return_token_ids
        self.frames_of_text: dict[int, Callable[[str, bytes], bytes]] = {}
        """Choices that send only text until they end -> the frame with a text."""

    def numbers(self, chunk: GenerationChunk) -> int:
        return chunk.numbers

    def render(self, chunk: GenerationChunk) -> bytes:
        index, stream = chunk.index, self._stream
        news = self._call.news(chunk)
        self._states.note(chunk)
        usage = None
        if self._usage_so_far or news.ending is not None:
            note_usage(self._meter, chunk, news.reasoning_tokens)
            usage = self._meter.of(index) if self._usage_so_far else None
        said = stream.begin(index, usage)
        said += stream.say(index, news.parts, self._logprobs(news), usage, self._ids.of(chunk))
        if news.ending is not None:
            said += stream.finish(index, news.ending.reason, news.ending.matched, usage)
        elif not (self._usage_so_far or self._ids_with_text) and self._call.passes_text(index):
            self.frames_of_text[index] = partial(self._pass_on, index)
        # A chunk yields no frame while its content is incomplete.
        return said

    def _pass_on(self, index: int, text: str, token_bytes: bytes) -> bytes:
        self._call.pass_by(index, token_bytes)
        return self._stream.say_text(index, text) if text else b""

    def end(self) -> bytes:
        last = b""
        for index, said in self._states.all():
            last += self._stream.add(index, said, self._meter.of(index) if self._usage_so_far else None)
        return last + (self._frames.usage(self._meter.total()) if self._total else b"") + DONE
