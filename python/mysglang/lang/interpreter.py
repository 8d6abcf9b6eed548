"""Interpreter: runs the expressions of one program state in the order in which they were added, in the background.

A state has no thread of its own while it has nothing to do: the first expression of an idle state starts a thread,
which ends when no expression is left. So a program may fork hundreds of states and forget them.
"""

from __future__ import annotations

import contextvars
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from mysglang.lang.backends.base import Backend
from mysglang.lang.chat_format import ChatFormat, Message
from mysglang.lang.expressions import (
    REASONING_SUFFIX,
    Argument,
    Commit,
    Expression,
    Gen,
    Media,
    Select,
    Source,
    Variable,
)
from mysglang.lang.media import content_part
from mysglang.lang.prompt import Prompt
from mysglang.lang.reasoning import split_reasoning
from mysglang.lang.sampling import SamplingParams
from mysglang.lang.speculation import Speculation, speculation_for


class ProgramError(RuntimeError):
    """A variable has no value because its program failed. The cause is in `__cause__`."""


class Interpreter:
    """Runs the expressions of one program (an `expressions.Visitor`). Other threads read the results through the
    methods in its second half.
    """

    def __init__(
        self,
        backend: Backend,
        defaults: SamplingParams,
        *,
        stream: bool = False,
        num_api_spec_tokens: int | None = None,
        chat_template: ChatFormat | None = None,
    ) -> None:
        self.backend = backend
        self.defaults = defaults
        self.stream = stream
        self.chat_template = chat_template or backend.get_chat_template()
        self.text_ = ""
        self.messages_: list[Message] = []
        self.variables: dict[str, Any] = {}
        self.meta_info: dict[str, Any] = {}
        self.fork_start = 0
        """Length of the text that this state had from the state that it was forked from."""
        self.role: str | None = None
        """Role of the open message."""
        self._role_start = 0
        self._scopes: dict[str, int] = {}
        self._media: list[Media] = []
        self._role_media = 0
        self._speculation: Speculation = speculation_for(num_api_spec_tokens, backend)
        self._context = contextvars.copy_context()
        self._changed = threading.Condition()
        self._queue: deque[Expression] = deque()
        self._running = False
        self._closed = False
        self._error: Exception | None = None
        self._awaited: Counter[str] = Counter()
        """Variables that expressions in the queue will set."""
        self._listeners: list[Callable[[], None]] = []

    # -- running, in the thread of this state ------------------------------------------------------------------------

    def fill(self, value: str) -> None:
        if not self._speculation.fill(self, value):
            self.append(value)

    def append(self, value: str) -> None:
        """Add text, and wake the readers that stream it."""
        with self._changed:
            self.text_ += value
            self._notify()

    def gen(self, expression: Gen) -> None:
        params = expression.params.over(self.defaults).with_stops(self.chat_template.stop_str)
        if self._speculation.gen(self, expression.name, params):
            return
        if not self.stream:
            generated, meta = self.backend.generate(self.prompt(), params)
            self.append(generated if isinstance(generated, str) else generated[0])
            self.set_result(expression.name, generated, meta)
            return
        said = ""
        for piece, meta in self.backend.generate_stream(self.prompt(), params):
            said += piece
            with self._changed:
                self.text_ += piece
                if expression.name is not None:
                    self.variables[expression.name], self.meta_info[expression.name] = said, meta
                self._notify()
        self._settle(expression.name)

    def select(self, expression: Select) -> None:
        decision = self.backend.select(self.prompt(), expression.choices, expression.temperature, expression.method)
        self.append(decision.decision)
        self.set_result(expression.name, decision.decision, decision.meta_info)

    def role_begin(self, role: str) -> None:
        if self.role is not None:
            raise ValueError(f"a message of {role!r} cannot begin inside a message of {self.role!r}.")
        if not self.messages_ and role != "system" and self.chat_template.default_system_prompt:
            self.role_begin("system")
            self.append(self.chat_template.default_system_prompt)
            self.role_end("system")
        prefix, _ = self.chat_template.around(role, self.messages_)
        self.append(prefix)
        self.role, self._role_start, self._role_media = role, len(self.text_), len(self._media)

    def role_end(self, role: str) -> None:
        if self.role != role:
            raise ValueError(f"a message of {role!r} ends, but the open message is of {self.role!r}.")
        self._speculation.role_end(self)
        _, suffix = self.chat_template.around(role, self.messages_)
        self.messages_.append({"role": role, "content": self._content()})
        self.role = None
        self.append(suffix)

    def media(self, expression: Media) -> None:
        self._media.append(expression)

    def variable(self, expression: Variable) -> None:
        self.fill(str(expression.source.get_var(expression.name)))

    def argument(self, expression: Argument) -> None:
        raise TypeError(f"the argument {expression.name!r} stands for a value, and has none outside of tracing.")

    def var_scope_begin(self, name: str) -> None:
        self._scopes[name] = len(self.text_)

    def var_scope_end(self, name: str) -> None:
        self.set_result(name, self.text_[self._scopes.pop(name) :], None)

    def commit(self) -> None:
        self.backend.commit(self.prompt())

    def append_forks(self, forks: Sequence[Source]) -> None:
        for fork in forks:
            self.append(fork.added_text())

    def separate_reasoning(self, name: str, model_type: str | None) -> None:
        self._speculation.role_end(self)
        answer = str(self.variables[name])
        thoughts, rest = split_reasoning(answer, model_type)
        if self.text_.endswith(answer):
            # The thoughts leave the conversation: chat templates drop the thoughts of earlier answers, too.
            self.text_ = self.text_[: len(self.text_) - len(answer)] + rest
        self.set_result(name, rest, self.meta_info.get(name))
        self.set_result(name + REASONING_SUFFIX, thoughts, None)

    def prompt(self) -> Prompt:
        """Returns the prompt that the next generation continues."""
        partial = self.text_[self._role_start :] if self.role is not None else ""
        return Prompt(self.text_, tuple(self.messages_), self.role, partial, tuple(self._media))

    def set_result(self, name: str | None, value: object, meta: Any) -> None:
        """Sets the value of a variable, which is final."""
        with self._changed:
            if name is not None:
                self.variables[name] = value
                if meta is not None:
                    self.meta_info[name] = meta
        self._settle(name)

    # -- asking, from any thread ---------------------------------------------------------------------------------------

    def submit(self, expression: Expression) -> None:
        """Run `expression` after all that was submitted before. After an error nothing is run any more."""
        with self._changed:
            if self._error is not None:
                return
            self._queue.append(expression)
            self._awaited.update(expression.names())
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._context.run, args=(self._drain,), name="mysglang program", daemon=True).start()

    def fork(self, count: int) -> list[Interpreter]:
        """Returns `count` copies of this state, which continue independently. They share what the backend caches of the
        text so far.
        """
        if count > 1 and self.text_:
            self.submit(Commit())
        self.sync()
        forks = []
        for _ in range(count):
            fork = Interpreter(self.backend, self.defaults, stream=self.stream, chat_template=self.chat_template)
            fork.text_, fork.messages_ = self.text_, [dict(message) for message in self.messages_]
            fork.variables, fork.meta_info = dict(self.variables), dict(self.meta_info)
            fork.role, fork._role_start = self.role, self._role_start
            fork._media, fork._role_media = list(self._media), self._role_media
            fork.fork_start = len(self.text_)
            fork._error = self._error
            forks.append(fork)
        return forks

    def sync(self) -> None:
        """Wait until everything that was submitted has run."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)

    def close(self) -> None:
        """Mark the state as complete, so that streams may end."""
        with self._changed:
            self._closed = True
            self._notify()

    def fail(self, error: Exception) -> None:
        """Stops execution, because the program's own function raised `error`."""
        with self._changed:
            self._error = self._error or error
            self._queue.clear()
            self._awaited.clear()
            self._notify()

    def error(self) -> Exception | None:
        """Returns the exception that ended the program early, or None."""
        self.sync()
        return self._error

    def wait_for_var(self, name: str, timeout: float | None = None) -> None:
        """Wait until no expression that was submitted will set `name` any more. Raises TimeoutError."""
        with self._changed:
            if not self._changed.wait_for(lambda: not self._awaited[name], timeout):
                raise TimeoutError(f"the variable {name!r} had no value after {timeout:g} s.")

    def get_var(self, name: str) -> Any:
        """Returns the value of a variable, when it is final. Raises KeyError for a name that nothing sets, ProgramError
        if the program failed before.
        """
        self.wait_for_var(name)
        if name in self.variables:
            return self.variables[name]
        if self._error is not None:
            raise ProgramError(f"{name!r} has no value: {self._error}") from self._error
        raise KeyError(name)

    def added_text(self) -> str:
        """Returns the text that was added since this state was forked. Raises ProgramError if the program failed."""
        self.sync()
        if self._error is not None:
            raise ProgramError(f"a fork failed: {self._error}") from self._error
        return self.text_[self.fork_start :]

    def progress(self, name: str | None) -> tuple[str, bool]:
        """Returns the text so far, or that of a variable, and whether it is whole. Never waits."""
        with self._changed:
            over = self._closed and not self._running
            if name is None:
                return self.text_, over
            known = name in self.variables
            return str(self.variables.get(name, "")), over or (known and not self._awaited[name])

    def wait_for_progress(self, name: str | None, length: int) -> tuple[str, bool]:
        """Waits until `progress` has more than `length` characters, or the text is complete. Returns what `progress`
        returns.
        """
        with self._changed:
            self._changed.wait_for(lambda: len((now := self.progress(name))[0]) > length or now[1])
            return self.progress(name)

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener`, in any thread, whenever something has changed; returns how to stop that."""
        with self._changed:
            self._listeners.append(listener)

        def forget() -> None:
            with self._changed:
                self._listeners.remove(listener)

        return forget

    # -- inside --------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        while True:
            with self._changed:
                if not self._queue:
                    self._running = False
                    self._notify()
                    return
                expression = self._queue.popleft()
            try:
                expression.visit(self)
            except Exception as error:
                self.fail(error)

    def _settle(self, name: str | None) -> None:
        """Notes that one of the expressions that set `name` is done."""
        with self._changed:
            if name is not None and self._awaited[name] > 0:
                self._awaited[name] -= 1
            self._notify()

    def _content(self) -> str | list[dict[str, Any]]:
        """Returns the content of the message that ends, in OpenAI's form."""
        text = self.text_[self._role_start :].lstrip()
        media = self._media[self._role_media :]
        return [{"type": "text", "text": text}, *map(content_part, media)] if media else text

    def _notify(self) -> None:
        self._changed.notify_all()
        for listener in self._listeners:
            listener()
