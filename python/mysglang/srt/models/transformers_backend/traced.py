"""Tracer: passes of a transformers module as graphs of torch's ops, with calls of our layers and of attention in them.

    a pass over tensors without numbers ─> a graph that compiled.py compiles, and described.py reads

Each of our layers, each attention call and each rotation by our kernel is one op that the tracer does not look into. It
runs the model's Python as it is, so nothing in transformers' code breaks the graph. No compiler is imported here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from mysglang.srt.layers.rotary_embedding import turn_heads
from mysglang.srt.models.dense_decoder import DensePart
from mysglang.srt.models.transformers_backend.interface import NoCache, Rotate, attending, current
from mysglang.srt.models.transformers_backend.probe import CausalMask

FIRST_ROWS = 5
"""Rows of the pass that is traced for any number of rows. The number is not kept."""

Call: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""Calls a module with keyword arguments."""


@runtime_checkable
class OwnLayer(Protocol):
    """A layer of ours in a transformers model. Its result has the dtype and the leading dimensions of its first
    argument.
    """

    def out_width(self, x: Tensor) -> int:
        """Returns the last dimension of the result for x."""
        ...

    def described(self) -> DensePart:
        """Returns what the layer computes of its first argument alone. Raises CannotDescribe."""
        ...


class AnswersCompiled(Protocol):
    """Computes what compiled code leaves to us. `attending` sets it for a step."""

    def layer(self, number: int, x: Tensor, others: Sequence[Tensor]) -> Tensor:
        """Returns the result of our layer of that number, which is not a view of an argument."""
        ...

    def sum_and_norm(self, number: int, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """Returns x + residual, and the result of our layer of that number for it, a norm; both are new."""
        ...

    def attend_call(self, number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attends as `Attends.attend` does, in the call of that number. The result is contiguous."""
        ...


def _answers() -> AnswersCompiled:
    return cast(AnswersCompiled, current())


def _layer(x: Tensor, others: list[Tensor], number: int, width: int) -> Tensor:
    return _answers().layer(number, x, others).contiguous()


def _sum_and_norm(x: Tensor, residual: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return _answers().sum_and_norm(number, x, residual)


def _sum_and_norm_without_numbers(x: Tensor, residual: Tensor, number: int) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape), x.new_empty(x.shape)


def _attend(q: Tensor, k: Tensor, v: Tensor, number: int) -> Tensor:
    return _answers().attend_call(number, q, k, v)


def _turn(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned_q, turned_k = turn_heads(q, k, cos, sin)
    return _by_token(turned_q), _by_token(turned_k)


def _by_token(x: Tensor) -> Tensor:
    """Returns [1, heads, T, dim] with the heads of a token side by side in memory."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def _turn_without_numbers(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    turned_q, turned_k = (x.new_empty(1, x.shape[2], x.shape[1], x.shape[3]).transpose(1, 2) for x in (q, k))
    return turned_q, turned_k


def _layer_without_numbers(x: Tensor, others: list[Tensor], number: int, width: int) -> Tensor:
    return x.new_empty((*x.shape[:-1], width))


def _attend_without_numbers(q: Tensor, k: Tensor, v: Tensor, number: int) -> Tensor:
    return q.new_empty((1, q.shape[2], q.shape[1], v.shape[3]))


_library: Any = torch.library  # its functions have no types
_ops = _library.Library("mysglang_compiled", "DEF")
_ops.define("layer(Tensor x, Tensor[] others, int number, SymInt width) -> Tensor")
_ops.define("attend(Tensor q, Tensor k, Tensor v, int number) -> Tensor")
_ops.define("sum_and_norm(Tensor x, Tensor residual, int number) -> (Tensor, Tensor)")
_ops.define("turn(Tensor q, Tensor k, Tensor cos, Tensor sin) -> (Tensor, Tensor)")
_ops.define("keep(Tensor x) -> Tensor")
_ops.impl("keep", torch.clone, "CompositeExplicitAutograd")
_library.register_fake("mysglang_compiled::keep", torch.empty_like, lib=_ops)
_ops.impl("layer", _layer, "CompositeExplicitAutograd")
_ops.impl("attend", _attend, "CompositeExplicitAutograd")
_ops.impl("sum_and_norm", _sum_and_norm, "CompositeExplicitAutograd")
_library.register_fake("mysglang_compiled::sum_and_norm", _sum_and_norm_without_numbers, lib=_ops)
_ops.impl("turn", _turn, "CompositeExplicitAutograd")
_library.register_fake("mysglang_compiled::turn", _turn_without_numbers, lib=_ops)
_library.register_fake("mysglang_compiled::layer", _layer_without_numbers, lib=_ops)
_library.register_fake("mysglang_compiled::attend", _attend_without_numbers, lib=_ops)


@dataclass(frozen=True, slots=True)
class Trace:
    """A pass as a graph. Its inputs: tensors of the step, then the module's parameters and buffers."""

    graph: torch.fx.GraphModule
    inputs: Sequence[Tensor]
    """The inputs without numbers, of a FakeTensorMode."""
    guards: Sequence[Any]
    """Conditions on the number of rows under which the graph is right, as expressions of `sympy`."""
    rows: Collection[Any]
    """Symbols of the number of rows in these and in sizes; empty for a single row."""

    def size(self, value: object, rows: int) -> int:
        """Returns a size that occurs in the graph, for so many rows. Raises ValueError if it is none, or depends on
        values.
        """
        if isinstance(value, torch.SymInt):
            return int(self._with_rows(value.node.expr, rows))
        if not isinstance(value, int):
            raise ValueError(f"{type(value).__name__} is no size")
        return value

    def holds(self, rows: int) -> bool:
        """True if the graph is right for so many rows."""
        return all(bool(self._with_rows(guard, rows)) for guard in self.guards)

    def _with_rows(self, expression: Any, rows: int) -> Any:
        found = expression.subs(dict.fromkeys(self.rows, rows))
        if found.free_symbols:
            raise ValueError(f"{expression} is no matter of the number of rows")
        return found


class Tracer:
    """Traces passes of one module."""

    def __init__(self, module: nn.Module) -> None:
        self.layers: list[nn.Module] = []
        """Our layers in the module, by number."""
        self._module = module
        with _calls_in_place(module, self.layers):
            named = [*module.named_parameters(), *module.named_buffers()]
        self._names = [name for name, _ in named]
        self.tensors = [tensor for _, tensor in named]
        """Parameters and buffers outside of our layers."""

    @torch.no_grad()
    def trace(
        self, given: Sequence[Tensor], run: Callable[[Call, Sequence[Tensor]], Tensor], *, one_row: bool
    ) -> Trace:
        """Traces `run`, which calls the module for the given tensors and returns one tensor.

        given: examples of the step's tensors, each [FIRST_ROWS, …]. The graph is for a single row (`one_row`), or for
        any other number of rows.
        """

        def computed(*inputs: Tensor) -> tuple[Tensor]:
            first, tensors = inputs[: len(given)], inputs[len(given) :]
            named = dict(zip(self._names, tensors, strict=True))

            def call(arguments: Mapping[str, Any]) -> Any:
                return functional_call(self._module, named, (), dict(arguments))

            with attending(_Tracing()):
                return (run(call, first),)

        shapes = ShapeEnv()
        mode = FakeTensorMode(shape_env=shapes)
        open_size = DimDynamic.STATIC if one_row else DimDynamic.DYNAMIC
        inputs: list[Tensor] = []
        for example in given:
            dims: Any = StatelessSymbolicContext(
                dynamic_sizes=[open_size, *(DimDynamic.STATIC for _ in example.shape[1:])],
            )
            inputs.append(mode.from_tensor(example[: 1 if one_row else None].clone(), symbolic_context=dims))
        # Read now, because a symbol that turns out to equal another one is replaced by it.
        sizes: list[Any] = [each.shape[0] for each in inputs]
        rows = {size.node.expr for size in sizes if isinstance(size, torch.SymInt)}
        inputs += [mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in self.tensors]
        # Without the Python dispatcher, torch 2.11's matmul would take the number of rows for a fixed one.
        with _calls_in_place(self._module, self.layers), mode, enable_python_dispatcher():
            graph: torch.fx.GraphModule = make_fx(computed)(*inputs)
        return Trace(graph, inputs, [guard.expr for guard in shapes.guards], rows)


def trace_body(tracer: Tracer, *, one_row: bool) -> Trace:
    """Traces the body of a model: (ids, positions, …) -> hidden states [rows, hidden_size] after the last norm."""

    def run(call: Call, given: Sequence[Tensor]) -> Tensor:
        ids, positions = given
        tokens = {"input_ids": ids[None], "position_ids": positions[None]}
        found = call({**tokens, "past_key_values": NoCache(), "use_cache": True})
        return cast(Tensor, found[0][0])

    token = torch.zeros(FIRST_ROWS, dtype=torch.int64, device=tracer.tensors[0].device)
    return tracer.trace([token, token], run, one_row=one_row)


def trace_head(tracer: Tracer, hand_over: Callable[[Tensor], None], hidden: Tensor, *, one_row: bool) -> Trace:
    """Traces the projection to logits of a model whose body returns what is handed over: [rows, hidden_size], … ->
    [rows, vocab_size].

    hidden: [FIRST_ROWS, hidden_size], of the right dtype and device.
    """

    def run(call: Call, given: Sequence[Tensor]) -> Tensor:
        hand_over(given[0][None])
        return cast(Tensor, call({}).logits[0])

    return tracer.trace([hidden], run, one_row=one_row)


def alike(one: torch.fx.Node, other: torch.fx.Node) -> bool:
    """True if the values of two nodes have the same shape and dtype."""
    first, second = one.meta.get("val"), other.meta.get("val")
    if not isinstance(first, Tensor) or not isinstance(second, Tensor):
        return False
    return first.dtype == second.dtype and [*map(str, first.shape)] == [*map(str, second.shape)]


class _Tracing:
    """Answers the calls of the pass that is traced: each attention call becomes an op."""

    def __init__(self) -> None:
        self._calls = 0

    def mask(self, sees: Callable[..., Tensor], width: int | None) -> object:
        return CausalMask(None)

    def turn(self, theirs: Rotate, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        out: tuple[Tensor, Tensor] = torch.ops.mysglang_compiled.turn(q, k, cos, sin)
        return out

    def embedded(self, x: Tensor) -> Tensor:
        return x

    def attend(
        self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: object, arguments: Mapping[str, Any]
    ) -> Tensor:
        self._calls += 1
        out: Tensor = torch.ops.mysglang_compiled.attend(q, k, v, self._calls - 1)
        return out


class _LayerCall(nn.Module):
    """Replaces a layer of ours during the traced pass: it becomes an op."""

    def __init__(self, layer: OwnLayer, number: int) -> None:
        super().__init__()
        self._out_width = layer.out_width
        self._number = number

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        out: Tensor = torch.ops.mysglang_compiled.layer(x, list(others), self._number, self._out_width(x))
        return out


@contextmanager
def _calls_in_place(body: nn.Module, layers: list[nn.Module]) -> Iterator[None]:
    """Replaces our layers in the body by calls for a while, and appends them to `layers`."""
    replaced: list[tuple[nn.Module, str, nn.Module]] = []

    def walk(parent: nn.Module) -> None:
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            # The class is asked, because a module may answer for any attribute.
            if issubclass(type(child), OwnLayer):
                if child not in layers:
                    layers.append(child)
                replaced.append((parent, name, child))
                parent._modules[name] = _LayerCall(cast(OwnLayer, child), layers.index(child))
            else:
                walk(child)

    walk(body)
    try:
        yield
    finally:
        for parent, name, child in replaced:
            parent._modules[name] = child
