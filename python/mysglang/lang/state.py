"""ProgramState: the `s` of a program."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, TypeAlias, overload

from mysglang.lang.chat_format import Message
from mysglang.lang.expressions import (
    AppendForks,
    Expression,
    RoleBegin,
    RoleEnd,
    VarScopeBegin,
    VarScopeEnd,
    expression,
    in_role,
)
from mysglang.lang.interpreter import Interpreter

JoinMode: TypeAlias = Literal["gather_variable", "concate_and_append"]


class ProgramState:
    """Text that grows, and the variables that were generated on the way.

    `s += ...` returns at once; reading a variable, the text or the messages waits for what was added before.
    """

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.ret_value: object = None
        """Return value of the program's function."""

    def __iadd__(self, other: Expression | str) -> ProgramState:
        self.interpreter.submit(expression(other))
        return self

    def __getitem__(self, name: str) -> Any:
        return self.get_var(name)

    def __setitem__(self, name: str, value: object) -> None:
        self.set_var(name, value)

    def __contains__(self, name: str) -> bool:
        """True if the variable has a value, once no expression that was added will set it any more."""
        self.interpreter.wait_for_var(name)
        return name in self.interpreter.variables

    def __repr__(self) -> str:
        return f"ProgramState({self.text()})"

    @overload
    def system(self, expr: Expression | str) -> None: ...
    @overload
    def system(self, expr: None = None) -> AbstractContextManager[None]: ...
    def system(self, expr: Expression | str | None = None) -> AbstractContextManager[None] | None:
        """Add a whole system message. Without `expr`: returns a context manager, and its block adds the content."""
        return self._message("system", expr)

    @overload
    def user(self, expr: Expression | str) -> None: ...
    @overload
    def user(self, expr: None = None) -> AbstractContextManager[None]: ...
    def user(self, expr: Expression | str | None = None) -> AbstractContextManager[None] | None:
        """Add a whole user message. Without `expr`: returns a context manager, and its block adds the content."""
        return self._message("user", expr)

    @overload
    def assistant(self, expr: Expression | str) -> None: ...
    @overload
    def assistant(self, expr: None = None) -> AbstractContextManager[None]: ...
    def assistant(self, expr: Expression | str | None = None) -> AbstractContextManager[None] | None:
        """Add a whole assistant message. Without `expr`: returns a context manager, and its block adds the content."""
        return self._message("assistant", expr)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[None]:
        """Stores everything that is added inside the block as the variable `name`."""
        self.interpreter.submit(VarScopeBegin(name))
        yield
        self.interpreter.submit(VarScopeEnd(name))

    def fork(self, size: int = 1, position_ids_offset: list[int] | None = None) -> ProgramStateGroup:
        """Returns `size` copies of this state, which continue at the same time. They share this state's cached
        prefix.
        """
        if size < 1:
            raise ValueError(f"size must be at least 1; got {size}.")
        if position_ids_offset is not None:
            raise ValueError("position_ids_offset is not supported: a fork's text keeps its usual positions.")
        return ProgramStateGroup([ProgramState(fork) for fork in self.interpreter.fork(size)], self)

    @contextmanager
    def copy(self, position_ids_offset: list[int] | None = None) -> Iterator[ProgramState]:
        """Yields one copy of this state. Afterwards its variables are this state's, as lists of one value."""
        group = self.fork(1, position_ids_offset)
        try:
            yield group[0]
        finally:
            group.join()

    def text(self) -> str:
        """Returns the whole text."""
        self.sync()
        return self.interpreter.text_

    def messages(self) -> list[Message]:
        """Returns the complete messages, as OpenAI's API has them."""
        self.sync()
        return self.interpreter.messages_

    def sync(self) -> None:
        """Wait until everything that was added has run."""
        self.interpreter.sync()

    def error(self) -> Exception | None:
        """Returns the exception that ended the program early, or None."""
        return self.interpreter.error()

    def get_var(self, name: str) -> Any:
        """Returns a variable's final value. Raises KeyError, or ProgramError if the program failed before it was
        set.
        """
        return self.interpreter.get_var(name)

    def set_var(self, name: str, value: object) -> None:
        """Set a variable; the text does not change."""
        self.interpreter.variables[name] = value

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        """Returns the backend's report on the generation `name`: token counts, log-probabilities. None if it says
        nothing. Raises TimeoutError after `timeout` seconds.
        """
        self.interpreter.wait_for_var(name, timeout)
        return self.interpreter.meta_info.get(name)

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Yields the text, or a variable's text, piece by piece as it arrives. Without `stream=True`, there is one
        piece.
        """
        given, over = 0, False
        while not over:
            text, over = self.interpreter.wait_for_progress(var_name, given)
            if len(text) > given:
                yield text[given:]
                given = len(text)
        self._raise_if_failed()

    async def text_async_iter(self, var_name: str | None = None, return_meta_data: bool = False) -> AsyncIterator[Any]:
        """Does what `text_iter` does for an event loop; with `return_meta_data`, yields pairs of a piece and its meta
        information.
        """
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(news.set)

        forget = self.interpreter.listen(wake)
        given, over = 0, False
        try:
            while not over:
                news.clear()
                text, over = self.interpreter.progress(var_name)
                if len(text) > given:
                    piece, given = text[given:], len(text)
                    yield (piece, self.interpreter.meta_info.get(var_name or "")) if return_meta_data else piece
                elif not over:
                    await news.wait()
        finally:
            forget()
        self._raise_if_failed()

    def end(self) -> None:
        """Mark the state as complete: nothing more is added."""
        self.interpreter.close()

    def _message(self, role: str, expr: Expression | str | None) -> AbstractContextManager[None] | None:
        if expr is None:
            return self._open(role)
        self.interpreter.submit(in_role(role, expr))
        return None

    @contextmanager
    def _open(self, role: str) -> Iterator[None]:
        self.interpreter.submit(RoleBegin(role))
        yield
        self.interpreter.submit(RoleEnd(role))

    def _raise_if_failed(self) -> None:
        if (error := self.error()) is not None:
            raise error


class ProgramStateGroup:
    """The states of a fork. `group += x` adds to each state: x itself, its entry of a list, or what a function of its
    index returns.
    """

    def __init__(self, states: list[ProgramState], source: ProgramState) -> None:
        self.states = states
        self.source = source

    def join(self, mode: JoinMode = "gather_variable") -> None:
        """Bring the forks' results into the state that was forked: their new variables, as lists in the forks' order,
        or with "concate_and_append" the text that they added.
        """
        if mode == "gather_variable":
            before = set(self.source.interpreter.variables)
            for state in self.states:
                state.sync()
            for name in self.states[0].interpreter.variables:
                if name not in before:
                    self.source.set_var(name, [state.get_var(name) for state in self.states])
        elif mode == "concate_and_append":
            self.source.interpreter.submit(AppendForks(tuple(state.interpreter for state in self.states)))
        else:
            raise ValueError(f"mode must be gather_variable or concate_and_append; got {mode!r}.")
        for state in self.states:
            state.end()

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, state: ProgramState) -> None:
        # `forks[i] += x` adds to the state and then assigns the same state.
        if state is not self.states[index]:
            raise TypeError("the states of a fork cannot be replaced.")

    def __len__(self) -> int:
        return len(self.states)

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(
        self, other: Expression | str | Sequence[Expression | str] | Callable[[int], Expression | str]
    ) -> ProgramStateGroup:
        for index, state in enumerate(self.states):
            if callable(other):
                state += other(index)
            elif isinstance(other, list | tuple):
                state += other[index]
            else:
                state += expression(other)
        return self
