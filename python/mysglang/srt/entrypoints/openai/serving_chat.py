"""/v1/chat/completions: messages to a prompt by the model's chat template, chunks to messages or frames."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass

import msgspec

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.answer_parser import AnswerParser, NoThoughts, ThoughtSplitter
from mysglang.srt.entrypoints.openai.chat_message import chat_message
from mysglang.srt.entrypoints.openai.chat_prompt import THINKING_SWITCHES, render_chat, thinking_kwargs
from mysglang.srt.entrypoints.openai.chat_stream import ChatStream
from mysglang.srt.entrypoints.openai.field_names import CHAT_NAMES
from mysglang.srt.entrypoints.openai.logprobs import chat_logprobs, positions
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.response_format import names_of
from mysglang.srt.entrypoints.openai.sampling import sampling_params
from mysglang.srt.entrypoints.openai.serving_base import Envelope, OpenAIServingBase, ServingOptions, note_usage
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames
from mysglang.srt.entrypoints.openai.thought_counter import NoCounter, ThoughtCounter, TokenCounter
from mysglang.srt.entrypoints.openai.tool_plan import ToolPlan, plan_tools
from mysglang.srt.entrypoints.openai.usage import finish_words
from mysglang.srt.entrypoints.streaming import DONE
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.outputs import FinishReason
from mysglang.srt.sampling.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class _Ask:
    """What becomes of a body: the request, and what takes the answer of each choice apart."""

    obj: GenerateReqInput
    names: Mapping[str, str]
    """What the client calls what the engine may complain of."""
    new_parser: Callable[[], AnswerParser]
    new_counter: Callable[[], TokenCounter]


class OpenAIServingChat(OpenAIServingBase[ChatCompletionRequest]):
    """Needs a tokenizer and a chat template; what is missing is said when a request comes."""

    body_model = ChatCompletionRequest
    names = CHAT_NAMES

    def __init__(
        self, front: Front, models: OpenAIServingModels, options: ServingOptions, formats: AnswerFormats
    ) -> None:
        super().__init__(front, models, options)
        self._formats = formats

    async def _complete(self, body: ChatCompletionRequest, envelope: Envelope) -> dict[str, object]:
        meter = self._meter(body)
        choices: dict[int, dict[str, object]] = {}
        ask = await self._convert(body, envelope)
        async with self._chunks(ask.obj, ask.names) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk, ask.new_counter().count(chunk.token_ids.tolist()))
                choices[chunk.index] = await self._choice(chunk, ask.new_parser())
        return self._answer(envelope.head("chat.completion"), choices, meter)

    async def _stream(self, body: ChatCompletionRequest, envelope: Envelope) -> AsyncGenerator[bytes, None]:
        options, meter = body.stream_options, self._meter(body)
        with_usage = options.include_usage or options.continuous_usage_stats
        frames = StreamFrames(envelope.head("chat.completion.chunk"), usage_key=with_usage)
        ask = await self._convert(body, envelope)
        stream, parsers = ChatStream(frames), defaultdict[int, AnswerParser](ask.new_parser)
        counters = defaultdict[int, TokenCounter](ask.new_counter)
        async with self._chunks(ask.obj, ask.names) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk, counters[chunk.index].count(chunk.token_ids.tolist()))
                usage = meter.of(chunk.index) if options.continuous_usage_stats else None
                if said := self._say(stream, chunk, parsers[chunk.index], usage):
                    yield said
        yield (frames.usage(meter.total()) if options.include_usage else b"") + DONE

    async def _convert(self, body: ChatCompletionRequest, envelope: Envelope) -> _Ask:
        plan = plan_tools(body, self._formats)
        template_kwargs = {**thinking_kwargs(self._front, body, plan.offered), **body.chat_template_kwargs}
        prompt = await render_chat(
            self._front,
            body.messages,
            tools=plan.offered,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=template_kwargs,
        )
        # Without a word from the client: to the end of the context.
        params = sampling_params(body, self._options.defaults, body.max_completion_tokens or body.max_tokens)
        reasoning = self._formats.reasoning
        # A format says only that a model can think: one that was not asked to had better come to the point.
        asked = any(template_kwargs.get(switch) is True for switch in THINKING_SWITCHES)
        think_start = reasoning.may_begin(prompt) if reasoning is not None and asked else None
        thinks = reasoning is not None and (think_start is not None or reasoning.begins_thinking(prompt))
        obj = GenerateReqInput(
            text=prompt,
            add_special_tokens=False,  # the template has written them
            sampling_params=self._with_plan(params, plan, body),
            stream=body.stream,
            rid=envelope.rid,
            return_logprob=body.logprobs,
            top_logprobs_num=body.top_logprobs,
            extra_key=body.extra_key,
            cache_salt=body.cache_salt,
            think_end=reasoning.end if reasoning is not None and thinks else None,
            think_start=think_start,
        )
        names = names_of(body.response_format) | dict.fromkeys(plan.grammar or (), "tools")
        return _Ask(obj, names, lambda: self._new_parser(body, plan, prompt), lambda: self._new_counter(prompt))

    def _with_plan(self, params: SamplingParams, plan: ToolPlan, body: ChatCompletionRequest) -> SamplingParams:
        """What the answer is held to, and whether it is shown with its special tokens."""
        changes: dict[str, object] = dict(plan.grammar or {})
        if changes and params.grammar is not None:
            message = "tool_choice: the tools and another format cannot both say what the answer must be."
            raise InvalidRequest(message, param="tool_choice")
        if plan.calls_are_special or (body.separate_reasoning and self._formats.thoughts_are_special):
            changes["skip_special_tokens"] = False
        return msgspec.structs.replace(params, **changes)

    def _new_parser(self, body: ChatCompletionRequest, plan: ToolPlan, prompt: str) -> AnswerParser:
        thoughts: ThoughtSplitter = NoThoughts()
        if self._formats.reasoning is not None and body.separate_reasoning:
            thoughts = self._formats.reasoning.open(prompt)
        return AnswerParser(
            thoughts,
            plan.find_calls(),
            stream_thoughts=body.stream_reasoning,
            several_calls=body.parallel_tool_calls,
        )

    def _new_counter(self, prompt: str) -> TokenCounter:
        reasoning, ids = self._formats.reasoning, self._formats.thought_ids
        if reasoning is None or ids is None:
            return NoCounter()
        return ThoughtCounter(*ids, thinking=reasoning.begins_thinking(prompt))

    async def _choice(self, chunk: GenerationChunk, parser: AnswerParser) -> dict[str, object]:
        assert chunk.finish_reason is not None, "a request that does not stream has one chunk for each choice"
        parts = await self._front.text_pool.run_if_long(len(chunk.text), lambda: parser.feed(chunk.text, last=True))
        message = chat_message(parts)
        reason, matched = _ending(chunk.finish_reason, parser)
        return {
            "index": chunk.index,
            "message": message,
            "logprobs": self._logprobs(chunk),
            "finish_reason": reason,
            "matched_stop": matched,
        }

    def _say(
        self, stream: ChatStream, chunk: GenerationChunk, parser: AnswerParser, usage: Mapping[str, object] | None
    ) -> bytes:
        """What the client gets to see of a chunk: nothing, while what it brings is incomplete."""
        said = stream.begin(chunk.index)
        parts = parser.feed(chunk.text, last=chunk.finish_reason is not None)
        said += stream.say(chunk.index, parts, self._logprobs(chunk), usage)
        if chunk.finish_reason is not None:
            said += stream.finish(chunk.index, *_ending(chunk.finish_reason, parser))
        return said

    def _logprobs(self, chunk: GenerationChunk) -> dict[str, object] | None:
        if chunk.logprobs is None or not len(chunk.logprobs.output.ids):
            return None
        assert self._front.tokenizer is not None, "there was a prompt"
        return chat_logprobs(self._front.tokenizer, positions(chunk.logprobs.output))


def _ending(reason: FinishReason, parser: AnswerParser) -> tuple[str, int | str | None]:
    """(finish_reason, matched_stop). An answer that stopped after its calls waits for what they give."""
    word, matched = finish_words(reason)
    return ("tool_calls", None) if word == "stop" and parser.called else (word, matched)
