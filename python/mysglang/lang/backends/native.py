"""NativeBackend: runs programs on a mysglang server or engine, with requests in the form of POST /generate."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from mysglang.lang.backends.base import Backend, Generated, MetaInfo
from mysglang.lang.chat_format import ChatFormat, Message, Underivable, chat_format, chat_format_of_model, derive
from mysglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod, Logprobs, Scored, mean_logprob
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

logger = logging.getLogger(__name__)

Body: TypeAlias = dict[str, Any]

_SAMPLING_NAMES = (
    "max_new_tokens",
    "min_new_tokens",
    "n",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "ignore_eos",
    "regex",
    "json_schema",
)
_NAMES_BESIDE = ("return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs")
_SAMPLING = {name: name for name in _SAMPLING_NAMES}
_BESIDE = {name: name for name in _NAMES_BESIDE}
_NOTHING = {"max_new_tokens": 0, "temperature": 0}
"""Sampling parameters of a request that only reads its prompt."""

HEALED = 2
"""`select` asks for log-probabilities from this many tokens before the choices on: the last token of the prompt and the
first characters of a choice may be one token.
"""


class NativeBackend(Backend):
    """The common part of `RuntimeEndpoint` and `Runtime`. Both answer `generate` and render conversations."""

    _chat_template: ChatFormat

    @abstractmethod
    def ask(self, body: Body) -> Any:
        """Returns the answer to a body of POST /generate: a response, or a list of them."""

    @abstractmethod
    def ask_stream(self, body: Body) -> Iterator[Mapping[str, Any]]:
        """Yields the responses to one request; each holds the whole text so far."""

    @abstractmethod
    def render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        """Returns a conversation by the model's chat template, without the tokens that the tokenizer adds to every
        prompt.
        """

    def find_chat_template(self, name: str | None, model_path: str) -> ChatFormat:
        """Returns the format by that name; else the model's own; else one that is known for models of this name."""
        if name is not None:
            return chat_format(name)
        try:
            return derive(self.render)
        except Exception as error:
            found = chat_format_of_model(model_path)
            reason = error if isinstance(error, Underivable) else f"the server cannot render it: {error}"
            logger.warning(
                "The model's chat template has no fixed text around each message (%s); the format %r is used. "
                "chat_template_name= names another.",
                reason,
                found.name,
            )
            return found

    def get_chat_template(self) -> ChatFormat:
        return self._chat_template

    def generate(self, prompt: Prompt, params: SamplingParams) -> Generated:
        if params.max_new_tokens == 0 and params.return_logprob:
            return self._next_token_logprobs(prompt, params)
        answer = self.ask(self._body(prompt, params))
        if isinstance(answer, list):
            return [one["text"] for one in answer], [one["meta_info"] for one in answer]
        return answer["text"], answer["meta_info"]

    def generate_stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[tuple[str, MetaInfo]]:
        if params.n is not None and params.n > 1:
            raise ValueError("n > 1 cannot be streamed; fork the state instead.")
        said = 0
        for answer in self.ask_stream(self._body(prompt, params)):
            piece = answer["text"][said:]
            said += len(piece)
            yield piece, answer["meta_info"]

    def select(
        self, prompt: Prompt, choices: Sequence[str], temperature: float, method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        if temperature > 1e-5:
            raise ValueError(f"select takes the likeliest choice, so its temperature must be 0; got {temperature:g}.")
        self._refuse_media(prompt)
        # The first request puts the prompt into the prefix cache, where all choices find it, and counts its tokens.
        length = self.ask(_reading(prompt.text))["meta_info"]["prompt_tokens"]
        scored = self.ask(
            {
                **_reading([prompt.text + choice for choice in choices]),
                "return_logprob": True,
                "return_text_in_logprobs": True,
                "logprob_start_len": max(length - HEALED, 0),
            }
        )
        given = [_without_prompt(one["meta_info"]["input_token_logprobs"], prompt.text) for one in scored]
        unconditional = None
        if method.requires_unconditional_logprobs:
            alone = self.ask(
                {
                    "input_ids": [[token[1] for token in tokens] for tokens in given],
                    "sampling_params": _NOTHING,
                    "return_logprob": True,
                    "logprob_start_len": 0,
                }
            )
            unconditional = [one["meta_info"]["input_token_logprobs"] for one in alone]
        decision = method.decide(
            Scored(
                choices,
                [mean_logprob(tokens) for tokens in given],
                given,
                [one["meta_info"]["output_token_logprobs"] for one in scored],
                unconditional,
            )
        )
        cached = [one["meta_info"]["cached_tokens"] for one in scored]
        return replace(decision, meta_info={**decision.meta_info, "cached_tokens": cached})

    def cache_prefix(self, prefix: str) -> None:
        self.ask(_reading(prefix))

    def commit(self, prompt: Prompt) -> None:
        self._refuse_media(prompt)
        self.ask(_reading(prompt.text))

    def _body(self, prompt: Prompt, params: SamplingParams) -> Body:
        self._refuse_media(prompt)
        typed = params.typed()
        return {"text": prompt.text, "sampling_params": typed.named(_SAMPLING), **typed.named(_BESIDE)}

    def _next_token_logprobs(self, prompt: Prompt, params: SamplingParams) -> Generated:
        """Returns the log-probability of each possible next token, and no text: `gen(max_tokens=0,
        return_logprob=True)`.

        The server computes nothing after the prompt for a request of 0 tokens, so one token is requested and dropped.
        """
        body = self._body(prompt, params)
        body["sampling_params"]["max_new_tokens"] = 1
        return "", self.ask(body)["meta_info"]

    def _refuse_media(self, prompt: Prompt) -> None:
        if prompt.media:
            raise ValueError("the served model takes text only; image() and video() cannot be used with it.")


def _reading(text: str | list[str]) -> Body:
    return {"text": text, "sampling_params": _NOTHING}


def _without_prompt(tokens: Logprobs, prompt: str) -> Logprobs:
    """Returns the rows of a choice, of rows that begin `HEALED` tokens before it: those of the prompt's own end are
    dropped.
    """
    # If the end of the prompt and the beginning of the choice merged into one token, fewer rows are the prompt's alone.
    for count in range(min(HEALED, len(tokens) - 1), 0, -1):
        if prompt.endswith("".join(str(token[2]) for token in tokens[:count])):
            return tokens[count:]
    return tokens
