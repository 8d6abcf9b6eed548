"""API speculation: one request for several generations that follow each other closely.

A program `"Name:" + gen("name", stop="\\n") + "\\nJob:" + gen("job", stop="\\n")` needs two requests. A service that is
paid for each request, and each time reads the whole prompt again, is asked once for a longer text instead. If that text
goes on as the program does, both variables are cut out of it. `@function(num_api_spec_tokens=N)` switches this on.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mysglang.lang.backends.base import Backend
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

TRIES = 3
"""How often a service is asked for an answer that has the program's form."""


class GrowingState(Protocol):
    """The functions of the interpreter that a speculation calls."""

    backend: Backend
    stream: bool
    role: str | None

    def prompt(self) -> Prompt: ...
    def append(self, value: str) -> None: ...
    def set_result(self, name: str | None, value: object, meta: Any) -> None: ...


class Speculation(Protocol):
    """The interpreter calls this before it adds text or generates."""

    def fill(self, state: GrowingState, value: str) -> bool:
        """True if `value` was taken by the speculation; the interpreter must not add it to the text now."""
        ...

    def gen(self, state: GrowingState, name: str | None, params: SamplingParams) -> bool:
        """True if the speculation handles the generation."""
        ...

    def role_end(self, state: GrowingState) -> None:
        """Ends a message: everything that the speculation has collected must be executed now."""
        ...


class NoSpeculation:
    """A null object: each `gen` sends a request of its own."""

    def fill(self, state: GrowingState, value: str) -> bool:
        return False

    def gen(self, state: GrowingState, name: str | None, params: SamplingParams) -> bool:
        return False

    def role_end(self, state: GrowingState) -> None:
        return None


class TextSpeculation:
    """Speculation for backends that complete text: one generation asks for more text than it needs, and the rest may
    serve the next one.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._ahead = ""
        """Text that the model wrote after the end of the last generation."""

    def fill(self, state: GrowingState, value: str) -> bool:
        # The program goes on as the model did, or the model's text is of no use.
        self._ahead = self._ahead[len(value) :] if self._ahead.startswith(value) else ""
        return False

    def gen(self, state: GrowingState, name: str | None, params: SamplingParams) -> bool:
        stops = params.stops()
        if not stops:
            return False  # nothing says where in a longer text this generation would end
        meta: object = {}
        if not self._ahead:
            longer = replace(params, stop=None, max_new_tokens=max(params.max_new_tokens or 0, self._tokens))
            generated, meta = state.backend.generate(state.prompt(), longer)
            self._ahead = generated if isinstance(generated, str) else generated[0]
        end = _first(self._ahead, stops)
        end = len(self._ahead) if end is None else end
        said, self._ahead = self._ahead[:end], self._ahead[end:]
        state.append(said)
        state.set_result(name, said, meta)
        return True

    def role_end(self, state: GrowingState) -> None:
        self._ahead = ""


@dataclass(slots=True)
class _Term:
    """A part of an assistant's message: constant text, or a generation that ends at one of `stops`."""

    text: str
    generated: bool = False
    name: str | None = None
    stops: Sequence[str] = ()


class ChatSpeculation:
    """Speculation for backends that answer whole conversations: the parts of an assistant message are collected until
    it ends.
    """

    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._terms: list[_Term] = []
        self._params: SamplingParams | None = None

    def fill(self, state: GrowingState, value: str) -> bool:
        if state.role != "assistant":
            return False
        self._terms.append(_Term(value))
        return True

    def gen(self, state: GrowingState, name: str | None, params: SamplingParams) -> bool:
        if state.stream:
            raise ValueError("num_api_spec_tokens cannot be used with stream=True: nothing is known until the end.")
        if state.role != "assistant":
            raise ValueError("with num_api_spec_tokens, gen() must stand inside assistant(...).")
        asked = replace(params, stop=None, max_new_tokens=self._tokens)
        if self._params is not None and self._params != asked:
            raise ValueError("with num_api_spec_tokens, all gen() of a message must have equal sampling parameters.")
        self._params = asked
        self._terms.append(_Term("", True, name, params.stops()))
        return True

    def role_end(self, state: GrowingState) -> None:
        terms, params, self._terms, self._params = self._terms, self._params, [], None
        if params is not None:
            self._ask(state, terms, params)
        for term in terms:
            state.append(term.text)
            if term.generated:
                state.set_result(term.name, term.text, {})

    def _ask(self, state: GrowingState, terms: list[_Term], params: SamplingParams) -> None:
        prompt = replace(state.prompt(), partial="")
        for _ in range(TRIES):
            generated, _meta = state.backend.generate(prompt, params)
            if _match(terms, generated if isinstance(generated, str) else generated[0]):
                return
        warnings.warn(f"{TRIES} answers did not have the form of the program; some variables are empty.", stacklevel=2)


def speculation_for(tokens: int | None, backend: Backend) -> Speculation:
    if tokens is None:
        return NoSpeculation()
    return ChatSpeculation(tokens) if backend.is_chat_model else TextSpeculation(tokens)


def _match(terms: list[_Term], answer: str) -> bool:
    """Cut `answer` into the terms. False, with what was found so far, where it does not have their form."""
    for place, term in enumerate(terms):
        if not term.generated:
            if not answer.startswith(term.text):
                return False
            answer = answer[len(term.text) :]
            continue
        end = _first(answer, term.stops)
        if end is None:
            if place != len(terms) - 1:
                return False
            end = len(answer)
        term.text, answer = answer[:end], answer[end:]
    return True


def _first(text: str, stops: Sequence[str]) -> int | None:
    """Returns the index of the first occurrence of any of `stops`."""
    return min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
