"""Tracing: running a program's function without a model, to see what it adds to its state.

`run_batch` traces a program to find the text that all its runs begin with, and has the backend cache it once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from mysglang.lang.chat_format import ChatFormat, Message
from mysglang.lang.expressions import Argument, Expression, Gen, Media, Select, Source, Text, Variable, expression

MIN_PREFIX = 64
"""Shorter common texts, in characters, are not worth a request of their own."""

_current: ContextVar[TracedState | None] = ContextVar("traced program", default=None)


class PrefixKnown(Exception):
    """Raised if the rest of the program depends on an argument or on the model, so that no more of the prefix is
    known.
    """


@dataclass(eq=False)
class TracedState:
    """A stand-in for `ProgramState`, and the `Visitor` of what is added to it."""

    chat_template: ChatFormat
    only_prefix: bool = False
    nodes: list[Expression] = field(default_factory=list)
    """Additions to the state, with messages turned into their text."""
    children: list[TracedState] = field(default_factory=list)
    """States that were forked off, and those of programs that were called."""
    _messages: list[Message] = field(default_factory=list)

    @property
    def prefix(self) -> str:
        """The text before the first generation and the first argument."""
        text = ""
        for node in self.nodes:
            if not isinstance(node, Text):
                break
            text += node.value
        return text

    def __iadd__(self, other: Expression | str) -> TracedState:
        expression(other).visit(self)
        return self

    def __getitem__(self, name: str) -> Argument:
        return Argument(name)

    get_var = __getitem__

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> list[TracedState]:
        self._stop()
        forks = [TracedState(self.chat_template, _messages=list(self._messages)) for _ in range(size)]
        self.children += forks
        return forks

    def fill(self, value: str) -> None:
        self.nodes.append(Text(value))

    def gen(self, expression: Gen) -> None:
        self._add(expression)

    def select(self, expression: Select) -> None:
        self._add(expression)

    def media(self, expression: Media) -> None:
        self._add(expression)

    def variable(self, expression: Variable) -> None:
        self._add(expression)

    def argument(self, expression: Argument) -> None:
        self._add(expression)

    def role_begin(self, role: str) -> None:
        if not self._messages and role != "system" and self.chat_template.default_system_prompt:
            self.role_begin("system")
            self.fill(self.chat_template.default_system_prompt)
            self.role_end("system")
        self.fill(self.chat_template.around(role, self._messages)[0])

    def role_end(self, role: str) -> None:
        self.fill(self.chat_template.around(role, self._messages)[1])
        self._messages.append({"role": role, "content": ""})

    def var_scope_begin(self, name: str) -> None:
        return None

    def var_scope_end(self, name: str) -> None:
        return None

    def commit(self) -> None:
        return None

    def append_forks(self, forks: Sequence[Source]) -> None:
        self._stop()

    def separate_reasoning(self, name: str, model_type: str | None) -> None:
        return None

    def _add(self, node: Expression) -> None:
        self._stop()
        self.nodes.append(node)

    def _stop(self) -> None:
        if self.only_prefix:
            raise PrefixKnown


def tracing() -> TracedState | None:
    """Returns the state of the program that is being traced around the caller."""
    return _current.get()


def trace(function: Callable[..., object], arguments: dict[str, Any], chat_template: ChatFormat) -> TracedState:
    """Returns the additions of `function` to its state. Each of `arguments` is a value or an `Argument`."""
    state = TracedState(chat_template)
    if (around := _current.get()) is not None:
        around.children.append(state)
    token = _current.set(state)
    try:
        function(state, **arguments)
    finally:
        _current.reset(token)
    return state


def common_prefix(function: Callable[..., object], arguments: dict[str, Any], chat_template: ChatFormat) -> str:
    """Returns the text with which every run of `function` begins: all text before an argument's value is first used."""
    state = TracedState(chat_template, only_prefix=True)
    token = _current.set(state)
    try:
        function(state, **arguments)
    except Exception:
        # PrefixKnown, or any error of the program when it uses a placeholder as a value, ends the common prefix.
        pass
    finally:
        _current.reset(token)
    return state.prefix
