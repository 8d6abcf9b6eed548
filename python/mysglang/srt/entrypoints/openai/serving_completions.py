"""/v1/completions: prompts as text or ids, several in one request; chunks to choices or frames."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from mysglang.srt.entrypoints.body import BODY_BYTES
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.choice_extras import LastStates
from mysglang.srt.entrypoints.openai.field_names import COMPLETION_NAMES, own_words
from mysglang.srt.entrypoints.openai.fill_in import FillIn
from mysglang.srt.entrypoints.openai.logprobs import CompletionLogprobs, Echo, positions
from mysglang.srt.entrypoints.openai.protocol import CompletionRequest
from mysglang.srt.entrypoints.openai.sampling import sampling_params
from mysglang.srt.entrypoints.openai.serving_base import Envelope, OpenAIServingBase, ServingOptions, note_usage
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.entrypoints.openai.stream_frames import StreamFrames, TextFrame
from mysglang.srt.entrypoints.openai.usage import UsageMeter, finish_words
from mysglang.srt.entrypoints.sampling_body import beside_sampling
from mysglang.srt.entrypoints.streaming import DONE
from mysglang.srt.entrypoints.talk import Talk
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.utils.fair_turns import Breather
from mysglang.srt.utils.tokenizer import Tokenizer


class OpenAIServingCompletion(OpenAIServingBase[CompletionRequest]):
    """Answers POST /v1/completions. It serves token ids without a tokenizer too; text and log-probabilities, which
    contain text, need one.
    """

    body_model = CompletionRequest
    names = COMPLETION_NAMES

    def __init__(self, front: Front, models: OpenAIServingModels, options: ServingOptions) -> None:
        """Raises ConfigError if the completion template does not fit the model."""
        super().__init__(front, models, options)
        self._fill_in = FillIn.choose(options.completion_template, front.tokenizer)

    async def _complete(self, body: CompletionRequest, envelope: Envelope) -> dict[str, object]:
        meter, builder = self._meter(body), await self._choice_builder(body)
        found: dict[int, GenerationChunk] = {}
        names = {**body.grammar_names, **({} if body.best_of is None else {"n": "best_of"})}
        async with self._chunks(await self._converted(body, envelope), names) as chunks:
            async for chunk in chunks:
                note_usage(meter, chunk)
                found[chunk.index] = chunk
        best = likeliest(found, len(body.prompt), body.candidates, body.n)
        choices: dict[int, object] = {}
        breather = Breather()
        for index, chunk in best.items():
            await breather.rest()
            choices[index] = await self._in_thread_if_long(chunk, partial(builder.whole, index, chunk))
        return self._answer(envelope.head("text_completion"), choices, meter)

    async def _talk(self, body: CompletionRequest, envelope: Envelope) -> Talk:
        frames = _Frames(body, envelope, self._meter(body), await self._choice_builder(body))
        chunks = self._front.tokenizer_manager.generate_request(await self._converted(body, envelope))
        names = {**self.names, **own} if (own := body.grammar_names) else self.names
        return Talk(chunks, frames, names, self._front.text_pool)

    def _meter(self, body: CompletionRequest) -> UsageMeter:
        return UsageMeter(body.candidates, report_cached=self._options.report_cached_tokens)

    async def _converted(self, body: CompletionRequest, envelope: Envelope) -> GenerateReqInput:
        """Converts the body to a request. A long body is converted in a thread."""
        return await self._front.text_pool.run_if_long(BODY_BYTES.get(), lambda: self._convert(body, envelope))

    def _convert(self, body: CompletionRequest, envelope: Envelope) -> GenerateReqInput:
        wants_logprobs, candidates = body.logprobs is not None, body.candidates
        params = sampling_params(body, self._options.defaults, body.max_tokens, candidates)
        texts = [self._fill_in.prompt(prompt, body.suffix) for prompt in body.prompt if isinstance(prompt, str)]
        ids: list[int | list[int]] = [prompt for prompt in body.prompt if isinstance(prompt, list)]
        return GenerateReqInput(
            text=texts or None,
            input_ids=ids or None,
            sampling_params=params,
            clip_max_new_tokens="max_tokens" not in body.model_fields_set,
            stream=body.stream,
            rid=body.rid or envelope.rid,
            # The best answers are chosen by their log-probabilities.
            return_logprob=wants_logprobs or candidates > body.n,
            logprob_start_len=0 if wants_logprobs and body.echo else -1,
            top_logprobs_num=body.logprobs or 0,
            custom_logit_processor=body.custom_logit_processor,
            return_hidden_states="last" if body.return_hidden_states else False,
            cache_salt=body.cache_salt,
            **beside_sampling(body),
        )

    async def _choice_builder(self, body: CompletionRequest) -> _ChoiceBuilder:
        if self._front.tokenizer is None:
            for field, wanted in (("logprobs", body.logprobs is not None), ("echo", body.echo)):
                if wanted:
                    message = f"{field}: contains text, and this server runs without a tokenizer."
                    raise InvalidRequest(message, param=field)
        echoes = [await self._echo_of(prompt, body) for prompt in body.prompt] if body.echo else []
        return _ChoiceBuilder(body, echoes, self._front.tokenizer)

    async def _echo_of(self, prompt: str | list[int], body: CompletionRequest) -> Echo:
        coder = self._front.tokenizer_manager.input_tokenizer
        with own_words(self.names):
            if isinstance(prompt, str):
                return Echo(prompt, None if body.logprobs is None else await coder.starts(prompt))
            return Echo(await coder.decode(prompt, skip_special_tokens=body.skip_special_tokens))


class _Frames:
    """Turns the chunks of an answer into stream frames."""

    def __init__(self, body: CompletionRequest, envelope: Envelope, meter: UsageMeter, builder: _ChoiceBuilder) -> None:
        options = body.stream_options
        self._meter = meter
        self._choice_builder = builder
        self._total = options.include_usage
        self._usage_so_far = options.continuous_usage_stats
        self._has_usage = self._total or self._usage_so_far
        self._frames = StreamFrames(envelope.head("text_completion"), usage_key=self._has_usage)
        self.frames_of_text: dict[int, Callable[[str, bytes], bytes]] = {}
        """Choices that send only text until they end -> the frame with a text."""

    def numbers(self, chunk: GenerationChunk) -> int:
        return chunk.numbers

    def render(self, chunk: GenerationChunk) -> bytes:
        of_text = self.frames_of_text.get(chunk.index)
        if of_text is not None and chunk.finish_reason is None:
            return of_text(chunk.text, chunk.token_bytes)
        if self._has_usage:
            note_usage(self._meter, chunk)
        choice = self._choice_builder.choice(chunk)
        if chunk.finish_reason is None and self._choice_builder.has_only_text and not self._usage_so_far:
            frame = TextFrame(lambda text: self._frames.choice(_text_choice(chunk.index, text)))
            self.frames_of_text[chunk.index] = frame.of_chunk
            return frame.of_chunk(str(choice["text"]), chunk.token_bytes)
        # There may be nothing to send, while a character or a stop string is incomplete.
        if chunk.finish_reason is None and not any(choice.get(name) for name in ("text", "logprobs", "token_ids")):
            return b""
        return self._frames.choice(choice, self._meter.of(chunk.index) if self._usage_so_far else None)

    def end(self) -> bytes:
        last = b""
        for index, said in self._choice_builder.states.all():
            usage = self._meter.of(index) if self._usage_so_far else None
            last += self._frames.choice(_text_choice(index, "") | said, usage)
        return last + (self._frames.usage(self._meter.total()) if self._total else b"") + DONE


def _text_choice(
    index: int, text: str, logprobs: object = None, reason: str | None = None, matched: int | str | None = None
) -> dict[str, object]:
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, "matched_stop": matched}


class _ChoiceBuilder:
    """Turns chunks into choices with what is new: the echoed prompt first, then the text."""

    def __init__(self, body: CompletionRequest, echoes: list[Echo], tokenizer: Tokenizer | None) -> None:
        self._body = body
        self._echoes = echoes
        self._tokenizer = tokenizer
        self._begun: set[int] = set()
        self.states = LastStates()
        self._logprobs: dict[int, CompletionLogprobs] = {}

    @property
    def has_only_text(self) -> bool:
        """True if later chunks differ only in their text, except the last."""
        body = self._body
        return body.logprobs is None and not body.return_token_ids and not body.return_hidden_states

    def whole(self, index: int, chunk: GenerationChunk) -> dict[str, object]:
        """Returns an answer that comes in one chunk, as the choice of that number."""
        return {**self.choice(chunk), **self.states.of(chunk.index), "index": index}

    def choice(self, chunk: GenerationChunk) -> dict[str, object]:
        reason, matched = (None, None) if chunk.finish_reason is None else finish_words(chunk.finish_reason)
        first = chunk.index not in self._begun
        text = self._echo(chunk.index) + chunk.text
        choice = _text_choice(chunk.index, text, self._columns(chunk), reason, matched)
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
        return self._echoes[index // self._body.candidates].text if self._echoes else ""

    def _columns(self, chunk: GenerationChunk) -> dict[str, list[object]] | None:
        if chunk.logprobs is None or self._body.logprobs is None:
            return None
        columns = self._columns_of(chunk.index)
        prompt = [] if chunk.logprobs.input is None else positions(chunk.logprobs.input)
        output = positions(chunk.logprobs.output)
        if not prompt and not output:
            return None
        found: dict[str, list[object]] = {}
        if prompt:
            found = columns.prompt_columns(prompt, self._echoes[chunk.index // self._body.candidates])
        return {name: found.get(name, []) + column for name, column in columns.columns(output).items()}

    def _columns_of(self, index: int) -> CompletionLogprobs:
        if index not in self._logprobs:
            assert self._tokenizer is not None, "refused before"
            self._logprobs[index] = CompletionLogprobs(
                self._tokenizer,
                skip_special_tokens=self._body.skip_special_tokens,
                top_num=self._body.logprobs or 0,
            )
        return self._logprobs[index]


def likeliest(
    answers: Mapping[int, GenerationChunk], prompts: int, candidates: int, n: int
) -> dict[int, GenerationChunk]:
    """Returns the `n` best answers of each prompt by their choice's index, the best first.

    `answers`: whole ones, those of prompt p at p * candidates and after it; with their log-probabilities if there are
    more than `n` for each. Better is the larger mean log-probability of a token, as OpenAI defines it.
    """
    best: dict[int, GenerationChunk] = {}
    for prompt in range(prompts):
        found = [answers[prompt * candidates + number] for number in range(candidates)]
        if candidates > n:
            found = sorted(found, key=mean_logprob, reverse=True)[:n]
        best.update({prompt * n + rank: answer for rank, answer in enumerate(found)})
    return best


def mean_logprob(answer: GenerationChunk) -> float:
    """Returns the mean log-probability of the answer's tokens, in nats; minus infinity for an answer without tokens."""
    assert answer.logprobs is not None, "asked for"
    values = answer.logprobs.output.vals
    return float(values.mean()) if len(values) else float("-inf")
