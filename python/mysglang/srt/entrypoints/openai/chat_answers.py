"""ChatAnswers: from a conversation to the parts of its answer. Every dialect of chat uses this path.

A dialect turns its body into a ChatCompletionRequest, and what it is told here into its own words. Knows no HTTP.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec

from mysglang.srt.entrypoints.body import BODY_BYTES
from mysglang.srt.entrypoints.error_responses import CLIENT_CLOSED_REQUEST
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.answer_parser import (
    AnswerParser,
    AnswerPart,
    NoCalls,
    NoCounter,
    NoThoughts,
    ThoughtCounter,
    ThoughtSplitter,
    TokenCounter,
)
from mysglang.srt.entrypoints.openai.chat_prompt import (
    PER_MESSAGE,
    ThinkingWords,
    render_chat,
    thinking_kwargs,
    thinking_words,
)
from mysglang.srt.entrypoints.openai.field_names import CHAT_NAMES, own_words
from mysglang.srt.entrypoints.openai.fill_in import FillIn
from mysglang.srt.entrypoints.openai.logprobs import chat_tokens, positions
from mysglang.srt.entrypoints.openai.protocol import THINKING_SWITCHES, ChatCompletionRequest, CompletionRequest
from mysglang.srt.entrypoints.openai.sampling import SamplingDefaults, sampling_params
from mysglang.srt.entrypoints.openai.tool_plan import ToolPlan, plan_tools
from mysglang.srt.entrypoints.openai.usage import finish_words
from mysglang.srt.entrypoints.sampling_body import beside_sampling
from mysglang.srt.errors import Aborted, InvalidRequest
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.messages.codec import list_ids
from mysglang.srt.messages.generate import NO_NAMES, GenerateReqInput
from mysglang.srt.parser.reasoning_parser import MARKED, continued, open_continued
from mysglang.srt.sampling.sampling_params import SamplingParams

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Ending:
    """The reason why a choice ended, as OpenAI spells it."""

    reason: str
    """stop, length, tool_calls or abort."""
    matched: int | str | None
    """The stop string or token that ended it."""


class ChatNews(NamedTuple):
    """New parts of a choice from one chunk."""

    parts: Sequence[AnswerPart]
    chunk: GenerationChunk
    ending: Ending | None
    """Set in the last one of the choice."""
    reasoning_tokens: int | None
    """Number of the choice's tokens that were thought so far; None if that is unknown."""


class ChatCall:
    """One conversation with the model: the request, and the parsers for the answer of each choice."""

    def __init__(
        self,
        obj: GenerateReqInput,
        names: Mapping[str, str],
        dialect_names: Mapping[str, str],
        new_parser: Callable[[], AnswerParser],
        new_counter: Callable[[], TokenCounter],
    ) -> None:
        """`names`: the engine's name of a field -> OpenAI's name. `dialect_names`: OpenAI's name -> the name in the
        client's dialect. Both are for error messages. `new_parser`, `new_counter`: called once for each choice.
        """
        self.obj = obj
        self.names = names
        self.dialect_names = dialect_names
        self._parsers = defaultdict[int, AnswerParser](new_parser)
        self._counters = defaultdict[int, TokenCounter](new_counter)

    def news(self, chunk: GenerationChunk) -> ChatNews:
        """Returns the new parts of the choice from this chunk."""
        parser = self._parsers[chunk.index]
        parts = parser.feed(chunk.text, last=chunk.finish_reason is not None)
        reasoning = self._counters[chunk.index].count(list_ids(chunk.token_bytes))
        return ChatNews(parts, chunk, _ending(chunk, parser), reasoning)

    def passes_text(self, index: int) -> bool:
        """True if all that follows in the choice is text of its answer, in which nothing is looked for. Then `pass_by`
        is enough until its last chunk.
        """
        return self._parsers[index].passes_text

    def pass_by(self, index: int, token_bytes: bytes) -> None:
        """Counts the tokens of such a text. `token_bytes`: int32."""
        self._counters[index].count(list_ids(token_bytes))


class ChatAnswers:
    """Answers chats for all dialects. It needs a tokenizer and a chat template; if one is missing, each request is
    refused with that reason.
    """

    def __init__(self, front: Front, formats: AnswerFormats, defaults: SamplingDefaults, fill_in: FillIn) -> None:
        self._front = front
        self._formats = formats
        self._defaults = defaults
        self._fill_in = fill_in

    async def read(self, call: ChatCall) -> AsyncGenerator[ChatNews, None]:
        """Yields the parts of the answer: as they arrive, or, without `stream`, each choice in one piece.

        Closing it ends the request. Raises at any point.
        """
        with own_words(call.dialect_names), own_words(call.names):
            async with aclosing(self.chunks(call)) as chunks:
                async for chunk in chunks:
                    if call.obj.stream:
                        yield call.news(chunk)
                    else:
                        yield await self._front.text_pool.run_if_long(len(chunk.text), partial(call.news, chunk))

    def chunks(self, call: ChatCall) -> AsyncGenerator[GenerationChunk, None]:
        """Yields the chunks of the answer, for `ChatCall.news`."""
        return self._front.tokenizer_manager.generate_request(call.obj)

    async def translated(
        self,
        translate: Callable[[ThinkingWords], ChatCompletionRequest],
        rid: str,
        names: Mapping[str, str],
        *,
        with_tools: bool,
    ) -> ChatCall:
        """Returns the call for the body of another dialect.

        `translate`: gets the words that the model's template has for thinking; `with_tools`: in conversations with
        tools. `names`: OpenAI's names of fields -> the dialect's.

        Raises InvalidRequest in the dialect's words.
        """
        with own_words(names):
            words = self.thinking_words(with_tools=with_tools)
            body = await self.prepare(lambda: translate(words))
            return await self.ask(body, rid, names)

    async def ask(self, body: ChatCompletionRequest, rid: str, names: Mapping[str, str] = NO_NAMES) -> ChatCall:
        """Returns the call that a conversation asks for. Raises InvalidRequest, in OpenAI's words.

        `names`: OpenAI's names of fields -> those in which `read` reports errors.
        """
        plan, params, template_kwargs = await self.prepare(lambda: self._planned(body))
        prompt = await render_chat(
            self._front,
            body.messages,
            tools=plan.offered,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template_kwargs=template_kwargs,
        )
        reasoning = self._formats.reasoning
        said = body.messages[-1].text if body.continue_final_message else ""
        place = continued(reasoning or MARKED, prompt, said)
        # A format says only that a model can think: one that was not asked to had better come to the point.
        asked = any(template_kwargs.get(switch) is True for switch in THINKING_SWITCHES)
        think_start = reasoning.may_begin(place) if reasoning is not None and asked else None
        thinks = reasoning is not None and (think_start is not None or reasoning.begins_thinking(place))
        obj = GenerateReqInput(
            text=prompt,
            add_special_tokens=False,  # the template has written them
            sampling_params=params,
            stream=body.stream,
            rid=rid,
            return_logprob=body.logprobs,
            top_logprobs_num=body.top_logprobs,
            custom_logit_processor=body.custom_logit_processor,
            max_thinking_tokens=body.max_thinking_tokens,
            return_hidden_states="last" if body.return_hidden_states else False,
            cache_salt=body.cache_salt,
            **beside_sampling(body),
            think_end=reasoning.end if reasoning is not None and thinks else None,
            think_start=think_start,
            begins_thinking=(reasoning or MARKED).begins_thinking(place),
        )
        own_names = (
            CHAT_NAMES | body.own_names | body.grammar_names | dict.fromkeys(plan.grammar or (), plan.schema_field)
        )
        return ChatCall(
            obj,
            own_names,
            names,
            lambda: self._new_parser(body, plan, place, said),
            lambda: self._new_counter(place),
        )

    async def prepare(self, work: Callable[[], Result], beside: int = 0) -> Result:
        """Returns the result of `work` for the request's body. A long body is processed in a thread, until its client
        leaves.

        `beside`: how many messages from elsewhere, such as stored ones, are translated too.
        """
        return await self._front.text_pool.run_if_long(BODY_BYTES.get() + beside * PER_MESSAGE, work)

    def _planned(self, body: ChatCompletionRequest) -> tuple[ToolPlan, SamplingParams, dict[str, object]]:
        """Returns the tool plan, the sampling parameters, and further variables of the chat template."""
        # If the client sets no limit: to the end of the context.
        params = sampling_params(body, self._defaults, body.max_completion_tokens or body.max_tokens)
        plan = plan_tools(body, self._formats, params.grammar)
        template_kwargs = {**thinking_kwargs(self._front, body, plan.offered), **body.chat_template_kwargs}
        return plan, self._with_plan(params, plan, body), template_kwargs

    def ask_plain(
        self, body: CompletionRequest, rid: str, max_tokens: int | None, names: Mapping[str, str] = NO_NAMES
    ) -> ChatCall:
        """Returns the call for one text that is a prompt already, whose answer is plain text.

        `max_tokens`: None for as many as fit. `names`: as for `ask`.
        """
        (prompt,) = body.prompt
        assert isinstance(prompt, str), "made by a dialect, out of a text"
        prompt = self._fill_in.prompt(prompt, body.suffix)
        obj = GenerateReqInput(
            text=prompt,
            sampling_params=sampling_params(body, self._defaults, max_tokens),
            stream=body.stream,
            rid=rid,
            return_logprob=body.logprobs is not None,
            top_logprobs_num=body.logprobs or 0,
        )
        own_names = CHAT_NAMES | body.grammar_names | {"text": "prompt"}
        return ChatCall(obj, own_names, names, lambda: AnswerParser(NoThoughts(), NoCalls()), NoCounter)

    def thinking_words(self, *, with_tools: bool) -> ThinkingWords:
        """Returns how the model can be asked to think. Raises InvalidRequest."""
        return thinking_words(
            self._front, with_tools=with_tools, separates_thoughts=self._formats.reasoning is not None
        )

    async def count_tokens(self, call: ChatCall) -> int:
        """Returns how many tokens the prompt has. Raises InvalidRequest in the dialect's words."""
        assert isinstance(call.obj.text, str), "one conversation is one prompt"
        coder = self._front.tokenizer_manager.input_tokenizer
        with own_words(call.dialect_names):
            return len(await coder.encode(call.obj.text, add_special_tokens=call.obj.add_special_tokens))

    def logprobs(self, chunk: GenerationChunk) -> list[dict[str, object]]:
        """Returns the log-probabilities of a chunk, in OpenAI's form for a token; empty if they were not requested."""
        if chunk.logprobs is None:
            return []
        assert self._front.tokenizer is not None, "there was a prompt"
        return chat_tokens(self._front.tokenizer, positions(chunk.logprobs.output))

    def _with_plan(self, params: SamplingParams, plan: ToolPlan, body: ChatCompletionRequest) -> SamplingParams:
        """Returns the sampling parameters with the answer's grammar, and with special tokens shown if the plan needs
        them.
        """
        changes: dict[str, object] = dict(plan.grammar or {})
        if plan.holds_format and params.grammar is not None:
            changes[params.grammar.kind] = None
        elif changes and params.grammar is not None:
            other = body.grammar_field(params.grammar.kind)
            both = f"{plan.grammar_words} and {other} cannot both say what the answer must be"
            raise InvalidRequest(f"{plan.grammar_field}: {both}.", param=plan.grammar_field)
        if plan.calls_are_special or (body.separate_reasoning and self._formats.thoughts_are_special):
            changes["skip_special_tokens"] = False
        return msgspec.structs.replace(params, **changes)

    def _new_parser(self, body: ChatCompletionRequest, plan: ToolPlan, place: str, said: str) -> AnswerParser:
        thoughts: ThoughtSplitter = NoThoughts()
        reasoning = self._formats.reasoning
        if reasoning is not None and body.separate_reasoning:
            thoughts = open_continued(reasoning, place, said)
        return AnswerParser(
            thoughts,
            plan.find_calls(),
            new_call_id=self._formats.call_ids(sum(len(message.tool_calls) for message in body.messages)),
            stream_thoughts=body.stream_reasoning,
            several_calls=body.parallel_tool_calls,
        )

    def _new_counter(self, prompt: str) -> TokenCounter:
        reasoning, ids = self._formats.reasoning, self._formats.thought_ids
        if reasoning is None or ids is None:
            return NoCounter()
        return ThoughtCounter(*ids, thinking=reasoning.begins_thinking(prompt))


def aborted() -> Aborted:
    """Returns the error for dialects that have no finish reason for an aborted answer, which is not complete."""
    return Aborted("The request was aborted.", status=CLIENT_CLOSED_REQUEST)


def _ending(chunk: GenerationChunk, parser: AnswerParser) -> Ending | None:
    """Returns the finish reason of the choice. It is `tool_calls` for an answer that stopped after its tool calls."""
    if chunk.finish_reason is None:
        return None
    word, matched = finish_words(chunk.finish_reason)
    return Ending("tool_calls", None) if word == "stop" and parser.called else Ending(word, matched)
