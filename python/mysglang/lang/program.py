"""SglFunction: a program, made of a Python function by `@function`."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from threading import Thread
from typing import Any, Literal, overload

from tqdm import tqdm

from mysglang.lang.backends.base import Backend
from mysglang.lang.expressions import Argument
from mysglang.lang.interpreter import Interpreter
from mysglang.lang.sampling import DEFAULTS, SamplingParams
from mysglang.lang.settings import backend_or_default, settings
from mysglang.lang.state import ProgramState
from mysglang.lang.tracer import MIN_PREFIX, TracedState, common_prefix, trace, tracing

_SAMPLING = frozenset(one.name for one in dataclasses.fields(SamplingParams))


class SglFunction:
    """A program. `run` gives it values for its arguments, which come after `s`, and sampling parameters by name, which
    are the defaults of every `gen` in it. If an argument has the name of a sampling parameter, the value goes to the
    argument.
    """

    def __init__(
        self,
        func: Callable[..., object],
        num_api_spec_tokens: int | None = None,
        bind_arguments: Mapping[str, object] | None = None,
    ) -> None:
        """Raises TypeError if the first argument of `func` is not `s`, ValueError if `num_api_spec_tokens` is less than
        one.
        """
        if num_api_spec_tokens is not None and num_api_spec_tokens < 1:
            raise ValueError(f"num_api_spec_tokens must be at least 1; got {num_api_spec_tokens}.")
        parameters = list(inspect.signature(func).parameters.values())
        if not parameters or parameters[0].name != "s":
            raise TypeError(f'the first argument of the program {func.__name__} must be "s".')
        self.func = func
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bind_arguments = dict(bind_arguments or {})
        self.arg_names = [parameter.name for parameter in parameters[1:]]
        self._required = [one.name for one in parameters[1:] if one.default is inspect.Parameter.empty]
        self.__doc__ = func.__doc__
        self.__name__ = func.__name__

    def bind(self, **arguments: object) -> SglFunction:
        """Returns this program with some arguments given. Raises TypeError for a name that is not an argument."""
        self._refuse_unknown(arguments)
        return SglFunction(self.func, self.num_api_spec_tokens, {**self.bind_arguments, **arguments})

    def run(self, *args: object, stream: bool = False, backend: Backend | None = None, **named: Any) -> ProgramState:
        """Run the program once, and return its state.

        The state is returned when the function has returned; what it added may still run, and is waited for when the
        state is read. With `stream`, the state is returned at once and the function runs in a thread of its own.
        Raises TypeError for arguments that do not fit, and whatever the function raises.
        """
        arguments, defaults = self._split(dict(zip(self.arg_names, args, strict=False)), named, extra=len(args))
        state = self._open(backend_or_default(backend), defaults, stream=stream)
        if stream:
            Thread(target=self._stream, args=(state, arguments), name="mysglang program", daemon=True).start()
        else:
            self._call(state, arguments)
        return state

    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend | None = ...,
        num_threads: int | Literal["auto"] = ...,
        progress_bar: bool = ...,
        generator_style: Literal[False] = ...,
        **sampling: Any,
    ) -> list[ProgramState]: ...
    @overload
    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend | None = ...,
        num_threads: int | Literal["auto"] = ...,
        progress_bar: bool = ...,
        generator_style: Literal[True],
        **sampling: Any,
    ) -> Iterator[ProgramState]: ...
    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Backend | None = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        **sampling: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run the program once for each set of arguments, many at a time; the finished states in their order.

        A set is a dict, or a list of values in the order of the arguments. The text that all runs begin with is found
        by tracing, and cached first. `generator_style` yields the states one by one instead of collecting them.
        Raises TypeError before anything runs if one of the sets does not fit.
        """
        if isinstance(batch_kwargs, Mapping) or not isinstance(batch_kwargs, Sequence):
            raise TypeError("batch_kwargs must be a list of dicts, or of lists, of arguments.")
        runs = [self._one_of_batch(place, values, sampling) for place, values in enumerate(batch_kwargs)]
        if num_threads != "auto" and num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, or 'auto'; got {num_threads}.")
        states = self._batch(runs, backend_or_default(backend), num_threads, progress_bar)
        return states if generator_style else list(states)

    def trace(self, *, backend: Backend | None = None, **arguments: object) -> TracedState:
        """Returns the additions of the program to its state, found without running a model. Arguments without a value
        are placeholders.
        """
        self._refuse_unknown(arguments)
        given = {**{name: Argument(name) for name in self.arg_names}, **self.bind_arguments, **arguments}
        return trace(self.func, given, backend_or_default(backend).get_chat_template())

    def cache(self, backend: Backend | None = None) -> None:
        """Asks the backend to cache the text that all runs begin with, if it is long enough to be worth a request."""
        found = backend_or_default(backend)
        placeholders = {name: Argument(name) for name in self.arg_names}
        prefix = common_prefix(self.func, {**placeholders, **self.bind_arguments}, found.get_chat_template())
        if len(prefix) > MIN_PREFIX:
            found.cache_prefix(prefix)

    def __call__(self, *args: object, **named: Any) -> ProgramState | TracedState:
        """Runs the program; inside a program that is being traced, traces it."""
        around = tracing()
        if around is None:
            return self.run(*args, **named)
        return trace(self.func, {**dict(zip(self.arg_names, args, strict=False)), **named}, around.chat_template)

    def _open(self, backend: Backend, defaults: SamplingParams, *, stream: bool) -> ProgramState:
        return ProgramState(Interpreter(backend, defaults, stream=stream, num_api_spec_tokens=self.num_api_spec_tokens))

    def _call(self, state: ProgramState, arguments: Mapping[str, object]) -> None:
        try:
            state.ret_value = self.func(state, **arguments)
        except Exception as error:
            # Before the end: a stream that is complete by then has no error to raise.
            state.interpreter.fail(error)
            raise
        finally:
            state.end()

    def _stream(self, state: ProgramState, arguments: Mapping[str, object]) -> None:
        with suppress(Exception):  # the state holds it for the readers of its stream
            self._call(state, arguments)

    def _batch(
        self,
        runs: Sequence[tuple[dict[str, Any], SamplingParams]],
        backend: Backend,
        num_threads: int | Literal["auto"],
        progress_bar: bool,
    ) -> Iterator[ProgramState]:
        if settings.enable_precache_with_tracing and len(runs) > 1:
            self.cache(backend)
        # A thread only waits for answers, so there may be many more than cores; the server forms the batches.
        threads = max(96, (os.cpu_count() or 1) * 16) if num_threads == "auto" else num_threads
        threads = min(threads, max(len(runs), 1))

        def run_whole(arguments: dict[str, Any], defaults: SamplingParams) -> ProgramState:
            state = self._open(backend, defaults, stream=False)
            self._call(state, arguments)
            state.sync()
            return state

        with (
            tqdm(total=len(runs), disable=not progress_bar) as bar,
            ThreadPoolExecutor(threads, thread_name_prefix="mysglang batch") as pool,
        ):
            # Results are handed out in order while later runs go on. Few are started ahead, so that a caller who stops
            # reading does not have all of them run.
            waiting: deque[Future[ProgramState]] = deque()
            try:
                for arguments, defaults in runs:
                    if len(waiting) >= 2 * threads:
                        yield waiting.popleft().result()
                    future = pool.submit(run_whole, arguments, defaults)
                    future.add_done_callback(lambda _: bar.update())
                    waiting.append(future)
                while waiting:
                    yield waiting.popleft().result()
            finally:
                for future in waiting:
                    future.cancel()

    def _one_of_batch(
        self, place: int, values: Mapping[str, Any] | Sequence[Any], sampling: Mapping[str, Any]
    ) -> tuple[dict[str, Any], SamplingParams]:
        if isinstance(values, Mapping):
            given, count = dict(values), 0
        elif isinstance(values, list | tuple):
            given, count = dict(zip(self.arg_names, values, strict=False)), len(values)
        else:
            raise TypeError(f"batch_kwargs[{place}] must be a dict or a list of arguments.")
        self._refuse_unknown(given)
        shadowed = sorted(set(sampling) & set(self.arg_names))
        if shadowed:
            raise TypeError(f"{shadowed[0]} is an argument of {self.__name__}; give it in each set of arguments.")
        try:
            return self._split(given, sampling, extra=count)
        except TypeError as error:
            raise TypeError(f"batch_kwargs[{place}]: {error}") from None

    def _split(
        self, positional: dict[str, Any], named: Mapping[str, Any], *, extra: int
    ) -> tuple[dict[str, Any], SamplingParams]:
        """Returns the program's arguments, and the sampling parameters. Raises TypeError."""
        if extra > len(self.arg_names):
            raise TypeError(f"{self.__name__} takes {len(self.arg_names)} arguments; got {extra}.")
        arguments, sampling = dict(self.bind_arguments), {}
        arguments.update(positional)
        for name, value in named.items():
            if name in self.arg_names:
                arguments[name] = value
            elif name in _SAMPLING:
                sampling[name] = value
            else:
                raise TypeError(f"{self.__name__} has no argument {name!r}, and it is no sampling parameter.")
        missing = [name for name in self._required if name not in arguments]
        if missing:
            raise TypeError(f"{self.__name__} needs a value for {', '.join(missing)}.")
        return arguments, SamplingParams(**sampling).over(DEFAULTS)

    def _refuse_unknown(self, arguments: Mapping[str, object]) -> None:
        for name in arguments:
            if name not in self.arg_names:
                raise TypeError(f"{self.__name__} has no argument {name!r}; it has {', '.join(self.arg_names)}.")


@overload
def function(func: Callable[..., object], num_api_spec_tokens: int | None = None) -> SglFunction: ...
@overload
def function(
    func: None = None, num_api_spec_tokens: int | None = None
) -> Callable[[Callable[..., object]], SglFunction]: ...
def function(
    func: Callable[..., object] | None = None, num_api_spec_tokens: int | None = None
) -> SglFunction | Callable[[Callable[..., object]], SglFunction]:
    """Make a program of a function whose first argument is `s`, the state of a run.

    With `num_api_spec_tokens`, generations that are close together are asked for in one request of so many tokens;
    see `mysglang.lang.speculation`.
    """
    if func is not None:
        return SglFunction(func, num_api_spec_tokens)
    return lambda decorated: SglFunction(decorated, num_api_spec_tokens)
