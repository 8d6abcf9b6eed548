"""/v1/chat/completions: messages to a prompt by the model's chat template, chunks to messages or frames."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping

from mysglang.srt.entrypoints.openai.chat_prompt import render_chat
from mysglang.srt.entrypoints.openai.chat_stream import ChatStream
from mysglang.srt.entrypoints.openai.field_names import CHAT_NAMES
from mysglang.srt.entrypoints.openai.logprobs import chat_logprobs, positions
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.openai.sampling import sampling_params
from mysglang.srt.entrypoints.openai.serving_base import Envelope, OpenAIServingBase, note_usage
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames
from mysglang.srt.entrypoints.openai.usage import finish_words
from mysglang.srt.entrypoints.streaming import DONE
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput


class OpenAIServingChat(OpenAIServingBase[ChatCompletionRequest]):
    """Needs a tokenizer and a chat template; what is missing is said when a request comes."""

    body_model = ChatCompletionRequest
    names = CHAT_NAMES

    async def _complete(self, body: ChatCompletionRequest, envelope: Envelope) -> dict[str, object]:
        meter = self._meter(body)
        choices: dict[int, dict[str, object]] = {}
        async with self._chunks(await self._convert(body, envelope)) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk)
                choices[chunk.index] = self._choice(chunk)
        return self._answer(envelope.head("chat.completion"), choices, meter)

    async def _stream(self, body: ChatCompletionRequest, envelope: Envelope) -> AsyncGenerator[bytes, None]:
        options, meter = body.stream_options, self._meter(body)
        with_usage = options.include_usage or options.continuous_usage_stats
        frames = StreamFrames(envelope.head("chat.completion.chunk"), usage_key=with_usage)
        stream = ChatStream(frames)
        async with self._chunks(await self._convert(body, envelope)) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk)
                usage = meter.of(chunk.index) if options.continuous_usage_stats else None
                if said := self._say(stream, chunk, usage):
                    yield said
        yield (frames.usage(meter.total()) if options.include_usage else b"") + DONE

    async def _convert(self, body: ChatCompletionRequest, envelope: Envelope) -> GenerateReqInput:
        prompt = await render_chat(
            self._front,
            body.messages,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=body.chat_template_kwargs,
        )
        return GenerateReqInput(
            text=prompt,
            add_special_tokens=False,  # the template has written them
            # Without a word from the client: to the end of the context.
            sampling_params=sampling_params(
                body, self._options.defaults, body.max_completion_tokens or body.max_tokens
            ),
            stream=body.stream,
            rid=envelope.rid,
            return_logprob=body.logprobs,
            top_logprobs_num=body.top_logprobs,
            extra_key=body.extra_key,
            cache_salt=body.cache_salt,
        )

    def _choice(self, chunk: GenerationChunk) -> dict[str, object]:
        assert chunk.finish_reason is not None, "a request that does not stream has one chunk for each choice"
        reason, matched = finish_words(chunk.finish_reason)
        return {
            "index": chunk.index,
            "message": {"role": "assistant", "content": chunk.text, "reasoning_content": None, "tool_calls": None},
            "logprobs": self._logprobs(chunk),
            "finish_reason": reason,
            "matched_stop": matched,
        }

    def _say(self, stream: ChatStream, chunk: GenerationChunk, usage: Mapping[str, object] | None) -> bytes:
        """What the client gets to see of a chunk: nothing, while a character or a stop string is incomplete."""
        said = stream.begin(chunk.index)
        logprobs = self._logprobs(chunk)
        if chunk.text or logprobs is not None:
            said += stream.text(chunk.index, chunk.text, logprobs, usage)
        if chunk.finish_reason is not None:
            said += stream.finish(chunk.index, *finish_words(chunk.finish_reason))
        return said

    def _logprobs(self, chunk: GenerationChunk) -> dict[str, object] | None:
        if chunk.logprobs is None or not len(chunk.logprobs.output.ids):
            return None
        assert self._front.tokenizer is not None, "there was a prompt"
        return chat_logprobs(self._front.tokenizer, positions(chunk.logprobs.output))
