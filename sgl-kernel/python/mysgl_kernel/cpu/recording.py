"""Recording: the calls of a step on the CPU, replayed without the Python between them. The CPU's counterpart of CUDA
graphs.

    recorded      our kernels, with their arguments; torch's ops, with the tensors that they read and write;
                  functions that look at values by themselves, whole
    left out      what makes no values: views, and tensors that are not filled yet. They are there already
    refused       what looks at values, since the next step has others

All tensors of the step live as long as its recording. A replay reads and writes them where they are, so it computes
from whatever they hold by then, and what it leaves is good until the next one. What was recorded in inference mode is
replayed in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial, wraps
from typing import Any, ParamSpec

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from mysgl_kernel.compiled import Launch

UNFILLED = ("aten::empty", "aten::new_empty")
"""Beginnings of the names of ops whose results are not filled."""

COPIES = ("aten::clone", "aten::contiguous", "aten::to", "aten::_to_copy")
"""Names of ops whose result is a copy of their first argument, perhaps of another dtype or layout."""

P = ParamSpec("P")

_threads = threading.local()


class CannotRecord(Exception):
    """Raised for a step whose work depends on values."""


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what this thread does inside `with`; `replay` does it again, in any thread."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not, since that imports torch's compiler, which takes longer than all else that is imported."""
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self._kept: list[Tensor] = []
        self.nbytes = 0
        """Bytes of the tensors that the step made."""

    def __enter__(self) -> Recording:
        _threads.recording = self
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *raised: Any) -> None:
        _threads.recording = None
        super().__exit__(*raised)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self._calls)

    def replay(self) -> None:
        for function, arguments in self._calls:
            function(*arguments)

    def add(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self._calls.append((function, arguments))

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Raises CannotRecord."""
        named = dict(kwargs or {})
        if getattr(_threads, "recording", None) is not self:
            return func(*args, **named)  # inside of a function that is recorded whole
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise CannotRecord(f"{func} looks at values")
        result = func(*args, **named)
        results = list(tensors_in(result))
        self._kept += results
        if func._schema.is_mutable:
            self.add(partial(func, *args, **named), ())
        elif not shares_memory(results, (args, named)):
            self.nbytes += sum(tensor.nbytes for tensor in results)
            if not func._schema.name.startswith(UNFILLED):
                self._recompute(func, args, named, result)
        return result

    def _recompute(
        self, func: torch._ops.OpOverload, args: tuple[Any, ...], named: dict[str, Any], result: Any
    ) -> None:
        """Records an op whose results are new tensors: replays compute them where they are, or copy them there."""
        if func._schema.name in COPIES:
            self.add(partial(torch.ops.aten.copy_.default, result, args[0]), ())
        elif isinstance(result, Tensor) and (writes := writing_overload(func)) is not None:
            self.add(partial(writes, *args, **named, out=result), ())
        else:
            self.add(_into, (list(tensors_in(result)), partial(func, *args, **named)))


@cache
def writing_overload(func: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Returns the overload of an op with one result that computes the same into a given tensor, `out`; None if there is
    none for the CPU.

    An overload without a CPU kernel of its own makes a new tensor and copies it, so it saves nothing.
    """
    packet = func.overloadpacket
    wanted = [(each.name, str(each.type)) for each in func._schema.arguments]
    for name in packet.overloads():
        found: torch._ops.OpOverload = getattr(packet, name)
        given = [(each.name, str(each.type)) for each in found._schema.arguments if not each.is_out]
        outs = [each.name for each in found._schema.arguments if each.is_out]
        if outs == ["out"] and given == wanted and _on_cpu(found):
            return found
    return None


def _on_cpu(overload: torch._ops.OpOverload) -> bool:
    schema = overload._schema
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"{schema.name}.{schema.overload_name}", "CPU"))


def recorded(function: Launch) -> Launch:
    """Returns the function as a kernel that recordings know of."""

    def launch(*arguments: Any) -> None:
        function(*arguments)
        recording: Recording | None = getattr(_threads, "recording", None)
        if recording is not None:
            recording.add(function, arguments)

    return launch


def recorded_whole(function: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Returns the function as one call of recordings, which a replay makes again. It may look at values; a recording of
    what it does would look at those of the recorded step.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        recording: Recording | None = getattr(_threads, "recording", None)
        if recording is None:
            return function(*args, **kwargs)
        _threads.recording = None
        try:
            result = function(*args, **kwargs)
        finally:
            _threads.recording = recording
        recording.nbytes += result.nbytes
        recording.add(_into, ([result], partial(function, *args, **kwargs)))
        return result

    return call


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in arguments or results, at any depth."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))


def shares_memory(results: Sequence[Tensor], given: Any) -> bool:
    """True if a result is a view of one of the given tensors."""
    return not memory_of(results).isdisjoint(memory_of(tensors_in(given)))


def memory_of(tensors: Iterable[Tensor]) -> set[int]:
    """Start addresses of the tensors' memory. Tensors without addresses, such as oneDNN's packed weights, are left
    out.
    """
    return {tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.layout is torch.strided} - {0}


def _into(results: list[Tensor], call: Callable[[], Any]) -> None:
    for old, new in zip(results, tensors_in(call()), strict=True):
        old.copy_(new)
