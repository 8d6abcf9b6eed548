"""/v1/completions: prompts as text or ids, several in one request; chunks to choices or frames."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.best_of import likeliest
from mysglang.srt.entrypoints.openai.field_names import COMPLETION_NAMES, own_words
from mysglang.srt.entrypoints.openai.last_states import LastStates
from mysglang.srt.entrypoints.openai.logprobs import CompletionLogprobs, positions
from mysglang.srt.entrypoints.openai.protocol import CompletionRequest
from mysglang.srt.entrypoints.openai.response_format import names_of
from mysglang.srt.entrypoints.openai.sampling import sampling_params
from mysglang.srt.entrypoints.openai.serving_base import Envelope, OpenAIServingBase, ServingOptions, note_usage
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames
from mysglang.srt.entrypoints.openai.usage import UsageMeter, finish_words
from mysglang.srt.entrypoints.streaming import DONE
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.parser.completion_template import choose_completion_template
from mysglang.srt.utils.tokenizer import Tokenizer


class OpenAIServingCompletion(OpenAIServingBase[CompletionRequest]):
    """Serves ids without a tokenizer too; text and log-probabilities, which are told as text, need one."""

    body_model = CompletionRequest
    names = COMPLETION_NAMES

    def __init__(self, front: Front, models: OpenAIServingModels, options: ServingOptions) -> None:
        """Raises ConfigError for a completion template that is not the model's."""
        super().__init__(front, models, options)
        tokenizer = front.tokenizer
        self._fill_in = None
        if tokenizer is not None:
            self._fill_in = choose_completion_template(
                options.completion_template, lambda mark: tokenizer.id_of(mark) is not None
            )

    async def _complete(self, body: CompletionRequest, envelope: Envelope) -> dict[str, object]:
        meter, teller = self._meter(body), await self._teller(body)
        found: dict[int, GenerationChunk] = {}
        names = {**names_of(body.response_format), **({} if body.best_of is None else {"n": "best_of"})}
        async with self._chunks(self._convert(body, envelope), names) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk)
                found[chunk.index] = chunk
        best = likeliest(found, len(body.prompt), body.candidates, body.n)
        choices = {
            index: {**teller.choice(chunk), **teller.states.of(chunk.index), "index": index}
            for index, chunk in best.items()
        }
        return self._answer(envelope.head("text_completion"), choices, meter)

    async def _stream(self, body: CompletionRequest, envelope: Envelope) -> AsyncGenerator[bytes, None]:
        options, meter, teller = body.stream_options, self._meter(body), await self._teller(body)
        with_usage = options.include_usage or options.continuous_usage_stats
        frames = StreamFrames(envelope.head("text_completion"), usage_key=with_usage)
        async with self._chunks(self._convert(body, envelope), names_of(body.response_format)) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk)
                choice = teller.choice(chunk)
                # There may be nothing to tell, while a character or a stop string is incomplete.
                if any(choice.get(name) for name in ("text", "logprobs", "finish_reason", "token_ids")):
                    yield frames.choice(choice, meter.of(chunk.index) if options.continuous_usage_stats else None)
        for index, said in teller.states.all():
            nothing_new = {"text": "", "logprobs": None, "finish_reason": None, "matched_stop": None}
            yield frames.choice({"index": index, **nothing_new, **said})
        yield (frames.usage(meter.total()) if options.include_usage else b"") + DONE

    def _meter(self, body: CompletionRequest) -> UsageMeter:
        return UsageMeter(body.candidates, report_cached=self._options.report_cached_tokens)

    def _convert(self, body: CompletionRequest, envelope: Envelope) -> GenerateReqInput:
        wants_logprobs = body.logprobs is not None
        params = sampling_params(body, self._options.defaults, body.max_tokens)
        texts = [self._with_suffix(prompt, body) for prompt in body.prompt if isinstance(prompt, str)]
        ids: list[int | list[int]] = [prompt for prompt in body.prompt if isinstance(prompt, list)]
        return GenerateReqInput(
            text=texts or None,
            input_ids=ids or None,
            sampling_params=msgspec.structs.replace(params, n=body.candidates),
            clip_max_new_tokens="max_tokens" not in body.model_fields_set,
            stream=body.stream,
            rid=body.rid or envelope.rid,
            # The best are told by their log-probabilities.
            return_logprob=wants_logprobs or body.candidates > body.n,
            logprob_start_len=0 if wants_logprobs and body.echo else -1,
            top_logprobs_num=body.logprobs or 0,
            custom_logit_processor=body.custom_logit_processor,
            return_hidden_states="last" if body.return_hidden_states else False,
            extra_key=body.extra_key,
            cache_salt=body.cache_salt,
            priority=body.priority,
        )

    def _with_suffix(self, prompt: str, body: CompletionRequest) -> str:
        if not body.suffix:
            return prompt
        if self._fill_in is None:
            message = (
                "suffix: nothing is known of how this model is asked for the middle of a text (--completion-template)."
            )
            raise InvalidRequest(message, param="suffix")
        return self._fill_in.render(prompt, body.suffix)

    async def _teller(self, body: CompletionRequest) -> _Teller:
        if body.logprobs is not None and self._front.tokenizer is None:
            message = "logprobs are told as text, and this server runs without a tokenizer."
            raise InvalidRequest(message, param="logprobs")
        echoes = [await self._text_of(prompt, body) for prompt in body.prompt] if body.echo else []
        return _Teller(body, echoes, self._front.tokenizer)

    async def _text_of(self, prompt: str | list[int], body: CompletionRequest) -> str:
        if isinstance(prompt, str):
            return prompt
        coder = self._front.tokenizer_manager.input_tokenizer
        with own_words(self.names):
            return await coder.decode(prompt, skip_special_tokens=body.skip_special_tokens)


class _Teller:
    """Chunks -> choices, each telling what is new in it: its echoed prompt first, then its text."""

    def __init__(self, body: CompletionRequest, echoes: list[str], tokenizer: Tokenizer | None) -> None:
        self._body = body
        self._echoes = echoes
        self._tokenizer = tokenizer
        self._begun: set[int] = set()
        self.states = LastStates()
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def choice(self, chunk: GenerationChunk) -> dict[str, object]:
        reason, matched = (None, None) if chunk.finish_reason is None else finish_words(chunk.finish_reason)
        first = chunk.index not in self._begun
        choice: dict[str, object] = {
            "index": chunk.index,
            "text": self._echo(chunk.index) + chunk.text,
            "logprobs": self._columns(chunk),
            "finish_reason": reason,
            "matched_stop": matched,
        }
        self.states.note(chunk)
        if self._body.return_token_ids:
            choice["token_ids"] = chunk.token_ids.tolist()
            if first and chunk.prompt_ids is not None:
                choice["prompt_token_ids"] = chunk.prompt_ids.tolist()
        return choice

    def _echo(self, index: int) -> str:
        if index in self._begun:
            return ""
        self._begun.add(index)
        return self._echoes[index // self._body.candidates] if self._echoes else ""

    def _columns(self, chunk: GenerationChunk) -> dict[str, list[object]] | None:
        if chunk.logprobs is None or self._body.logprobs is None:
            return None
        columns = self._columns_of(chunk.index)
        prompt = [] if chunk.logprobs.input is None else positions(chunk.logprobs.input)
        output = positions(chunk.logprobs.output)
        if not prompt and not output:
            return None
        told = columns.prompt_columns(prompt) if prompt else {}
        return {name: told.get(name, []) + column for name, column in columns.columns(output).items()}

    def _columns_of(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            assert self._tokenizer is not None, "refused before"
            self._logprobs[index] = CompletionLogprobs(
                self._tokenizer,
                skip_special_tokens=self._body.skip_special_tokens,
                top_num=self._body.logprobs or 0,
            )
        return self._logprobs[index]
