"""OpenAI: programs on OpenAI's service, on Azure's, or on any server that speaks its API."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mysglang.lang.backends.base import Backend, Generated, MetaInfo
from mysglang.lang.backends.foreign import import_client, only
from mysglang.lang.chat_format import ChatFormat, chat_format_of_model
from mysglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod, token_length_normalized
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams, type_name

_NAMES = {
    "max_new_tokens": "max_tokens",
    "n": "n",
    "temperature": "temperature",
    "top_p": "top_p",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
}
_INSTRUCT_MODELS = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
"""Models of OpenAI that complete text."""

_SURE = 100
"""The greatest logit bias: the model takes one of the tokens that have it."""

_MAX_BIASED = 300
"""OpenAI's limit on the entries of `logit_bias`."""


class TextTokenizer(Protocol):
    """The tokenizer of the service's model: tiktoken's, or any other with these methods."""

    def encode(self, text: str) -> Sequence[int]: ...
    def decode(self, tokens: list[int]) -> str: ...


@dataclass
class TokenUsage:
    """Tokens that were used since the last `reset`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0

    def reset(self) -> None:
        """Count from 0 again."""
        self.prompt_tokens = self.completion_tokens = 0

    def add(self, usage: Any) -> None:
        """Adds the tokens that an answer reports; an answer may report none."""
        if usage is not None:
            self.prompt_tokens += usage.prompt_tokens
            self.completion_tokens += usage.completion_tokens


class OpenAI(Backend):
    """Chat models answer conversations; others complete text, and only these can `select` and use `dtype`."""

    def __init__(
        self,
        model_name: str,
        is_chat_model: bool | None = None,
        chat_template: ChatFormat | None = None,
        is_azure: bool = False,
        tokenizer: TextTokenizer | None = None,
        **client_options: Any,
    ) -> None:
        """`client_options` are those of the client, such as `base_url` and `api_key`. `tokenizer` is for `select` and
        numbers; by default tiktoken's for this model. Raises ImportError without the package openai.
        """
        openai = import_client("openai", "OpenAI")
        self.client = openai.AzureOpenAI(**client_options) if is_azure else openai.OpenAI(**client_options)
        weakref.finalize(self, self.client.close)
        self.model_name = model_name
        self.is_chat_model = model_name not in _INSTRUCT_MODELS if is_chat_model is None else is_chat_model
        self.token_usage = TokenUsage()
        self._chat_template = chat_template or chat_format_of_model(model_name)
        self._tokenizer = tokenizer

    def get_chat_template(self) -> ChatFormat:
        return self._chat_template

    def generate(self, prompt: Prompt, params: SamplingParams) -> Generated:
        answer = self._create(prompt, params)
        self.token_usage.add(answer.usage)
        texts = [self._text(choice) for choice in answer.choices]
        texts = [_quoted(text) for text in texts] if _is_string(params) else texts
        return (texts[0] if len(texts) == 1 else texts), {}

    def generate_stream(self, prompt: Prompt, params: SamplingParams) -> Iterator[tuple[str, MetaInfo]]:
        if params.dtype is not None:
            raise ValueError("dtype cannot be streamed from OpenAI's API.")
        for chunk in self._create(prompt, params, stream=True, stream_options={"include_usage": True}):
            self.token_usage.add(chunk.usage)
            for choice in chunk.choices:
                yield (choice.delta.content if self.is_chat_model else choice.text) or "", {}

    def select(
        self, prompt: Prompt, choices: Sequence[str], temperature: float, method: ChoicesSamplingMethod
    ) -> ChoicesDecision:
        """Returns the choice that the model writes if it may write nothing else, token by token. The API reports no
        log-probabilities of given texts, so no other method than the default can be used.
        """
        if self.is_chat_model:
            raise NotImplementedError("a chat model of OpenAI cannot select(); a model that completes text can.")
        if method is not token_length_normalized:
            raise ValueError("OpenAI's API decides token by token; choices_method must be the default.")
        tokenizer = self._find_tokenizer()
        left = {choice: list(tokenizer.encode(choice)) for choice in choices}
        written: list[int] = list(tokenizer.encode(prompt.text))
        scores = dict.fromkeys(choices, 0)
        place = 0
        while len(left) > 1:
            bias = {str(tokens[place]): _SURE for tokens in left.values()}
            answer = self.client.completions.create(
                model=self.model_name, prompt=written, logit_bias=bias, max_tokens=1, temperature=temperature
            )
            self.token_usage.add(answer.usage)
            # The text of a token need not be tokenized to this token again, so texts are compared.
            text = answer.choices[0].text
            agreeing = {choice: tokens for choice, tokens in left.items() if tokenizer.decode([tokens[place]]) == text}
            if not agreeing:
                raise RuntimeError(f"the model wrote {text!r}, which continues none of {list(left)}.")
            for choice in agreeing:
                scores[choice] += 1
            written.append(next(iter(agreeing.values()))[place])
            place += 1
            # A choice that is complete may also be the beginning of a longer one. The longer one is then preferred.
            left = {choice: tokens for choice, tokens in agreeing.items() if len(tokens) > place} or {
                next(iter(agreeing)): []
            }
        return ChoicesDecision(next(iter(left)), {"scores": list(scores.values())})

    def _create(self, prompt: Prompt, params: SamplingParams, **more: Any) -> Any:
        options = self._options(params) | more
        if self.is_chat_model:
            return self.client.chat.completions.create(model=self.model_name, messages=prompt.conversation(), **options)
        text = prompt.text + ('"' if _is_string(params) else "")
        return self.client.completions.create(model=self.model_name, prompt=text, **options)

    def _options(self, params: SamplingParams) -> dict[str, Any]:
        only(params, (*_NAMES, "stop", "dtype"), "OpenAI's API")
        options = params.named(_NAMES)
        if stops := params.stops():
            options["stop"] = stops
        if params.dtype is None:
            return options
        if self.is_chat_model:
            raise ValueError("dtype cannot be used with chat models of OpenAI; a model that completes text can.")
        kind = type_name(params.dtype)
        if kind == "str":
            return {**options, "stop": ['"']}
        if kind == "int":
            return {**options, "stop": [" "], "logit_bias": self._digits()}
        raise ValueError(f"dtype must be int or str for OpenAI's API; got {kind}.")

    def _digits(self) -> dict[str, int]:
        """Returns the tokens of numbers, at least those of one or two digits."""
        tokenizer = self._find_tokenizer()
        numbers = [" ", *map(str, range(10)), *(f"{number:02}" for number in range(100)), *map(str, range(100, 1000))]
        tokens = [tokens[0] for number in numbers if len(tokens := tokenizer.encode(number)) == 1]
        return {str(token): _SURE for token in tokens[:_MAX_BIASED]}

    def _find_tokenizer(self) -> TextTokenizer:
        if self._tokenizer is None:
            tiktoken = import_client("tiktoken", "select() and dtype on OpenAI")
            try:
                self._tokenizer = tiktoken.encoding_for_model(self.model_name)
            except KeyError:
                self._tokenizer = tiktoken.get_encoding("cl100k_base")
        assert self._tokenizer is not None
        return self._tokenizer

    def _text(self, choice: Any) -> str:
        return (choice.message.content if self.is_chat_model else choice.text) or ""


def _is_string(params: SamplingParams) -> bool:
    return params.dtype is not None and type_name(params.dtype) == "str"


def _quoted(text: str) -> str:
    return f'"{text}"'
