"""CompiledBody: the layers of a transformers model in decode steps, as code that torch.compile's backends make.

    a pass over tensors without numbers ─> a graph of torch's ops, with calls of our layers and of attention in it
    a backend of torch.compile          ─> code that computes what stands between these calls

Our kernels stay: each of our layers, and each attention call, is one op that the compiler does not look into. The
tracer runs the model's Python as it is, so nothing in transformers' code breaks the graph. There are two graphs, one
for a single row and one for any other number of rows. Both are compiled at once, and steps call the code directly.
Dynamo stays out of it: nothing can be compiled later, and its frame evaluation slowed the Python of our kernels down.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, cast, runtime_checkable

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import lookup_backend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from mysglang.srt.layers.rotary_embedding import turn_heads
from mysglang.srt.models.transformers_backend.interface import NoCache, NormsSums, Rotate, attending, current
from mysglang.srt.models.transformers_backend.probe import CausalMask

FIRST_ROWS = 5
"""Rows of the pass that is traced for any number of rows. The number is not kept."""

Code: TypeAlias = Callable[..., Sequence[Tensor]]
"""(ids, positions, all parameters and buffers) -> hidden states, the only result."""


@runtime_checkable
class OwnLayer(Protocol):
    """A layer of ours in a transformers model. Its result has the dtype and the leading dimensions of its first
    argument.
    """

    def out_width(self, x: Tensor) -> int:
        """Returns the last dimension of the result for x."""
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


class CompiledBody:
    """The body of a model, compiled for decode steps of any number of rows."""

    def __init__(self, body: nn.Module, backend: str) -> None:
        """Traces the body, and compiles it by this backend of torch.compile. Nothing is compiled afterwards."""
        self.layers: list[nn.Module] = []
        """Our layers, by number."""
        with _calls_in_place(body, self.layers), torch.no_grad():
            named = [*body.named_parameters(), *body.named_buffers()]
            names = [name for name, _ in named]
            self._tensors = [tensor for _, tensor in named]
            self._one, self._several = (
                self._compiled(body, names, rows, backend) for rows in (DimDynamic.STATIC, DimDynamic.DYNAMIC)
            )

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Computes hidden states [T, hidden_size] of T rows of one token with these ids and positions, [T] int64."""
        run = self._one if len(ids) == 1 else self._several
        # Parameters are read for each step, because their memory may move, as after a release.
        (hidden,) = run(ids, positions, *(tensor.detach() for tensor in self._tensors))
        return hidden

    def _compiled(self, body: nn.Module, names: Sequence[str], rows: DimDynamic, backend: str) -> Code:
        def run(ids: Tensor, positions: Tensor, *tensors: Tensor) -> tuple[Tensor]:
            tokens = {"input_ids": ids[None], "position_ids": positions[None]}
            others = {"past_key_values": NoCache(), "use_cache": True}
            with attending(_Tracing()):
                found = functional_call(body, dict(zip(names, tensors, strict=True)), (), {**tokens, **others})
            return (found[0][0],)

        mode = FakeTensorMode(shape_env=ShapeEnv())
        size = 1 if rows is DimDynamic.STATIC else FIRST_ROWS
        token = torch.zeros(size, dtype=torch.int64, device=self._tensors[0].device)
        open_size: Any = StatelessSymbolicContext(dynamic_sizes=[rows])
        places = [mode.from_tensor(token.clone(), symbolic_context=open_size) for _ in range(2)]
        inputs: list[Tensor] = [
            *places,
            *(mode.from_tensor(tensor.detach(), static_shapes=True) for tensor in self._tensors),
        ]
        # Without the Python dispatcher, torch 2.11's matmul would take the number of rows for a fixed one.
        with mode, enable_python_dispatcher():
            graph: torch.fx.GraphModule = make_fx(run)(*inputs)
        _keep_angles(graph)
        _join_sums(graph, self.layers)
        # Inductor's own compiler processes would outlive the start.
        with torch._inductor.config.patch(compile_threads=1):
            made: Code = lookup_backend(backend)(graph, inputs)
        return made


def _keep_angles(graph: torch.fx.GraphModule) -> None:
    """Ends a computation behind every cosine and sine, and behind what several layers turn by. Else the compiler
    computes those of a rotary embedding again in every layer, in some once for each head.
    """
    ops = torch.ops.mysglang_compiled
    angles = [
        node for node in graph.graph.nodes if node.target in (torch.ops.aten.cos.default, torch.ops.aten.sin.default)
    ]
    turned = Counter(
        angle for turn in graph.graph.find_nodes(op="call_function", target=ops.turn.default) for angle in turn.args[2:]
    )
    for node in [*angles, *(node for node, turns in turned.items() if turns > 1)]:
        with graph.graph.inserting_after(node):
            kept = graph.graph.call_function(ops.keep.default, (node,))
        node.replace_all_uses_with(kept, delete_user_cb=lambda user, kept=kept: user is not kept)
    graph.recompile()


def _join_sums(graph: torch.fx.GraphModule, layers: Sequence[nn.Module]) -> None:
    """Makes one op of a norm of ours and the sum of two tensors before it, as of the residual stream and a layer."""
    ops, nodes = torch.ops.mysglang_compiled, graph.graph
    for norm in nodes.find_nodes(op="call_function", target=ops.layer.default):
        total, others, number, _ = norm.args
        if others or not isinstance(layers[number], NormsSums) or total.target is not torch.ops.aten.add.Tensor:
            continue
        x, residual = total.args
        if total.kwargs or not all(isinstance(each, torch.fx.Node) and _alike(each, total) for each in (x, residual)):
            continue
        with nodes.inserting_after(total):
            both = nodes.call_function(ops.sum_and_norm.default, (x, residual, number))
        with nodes.inserting_after(both):
            parts = [nodes.call_function(operator.getitem, (both, part)) for part in (1, 0)]
        for old, new in zip((norm, total), parts, strict=True):
            new.meta = dict(old.meta)
            old.replace_all_uses_with(new)
            nodes.erase_node(old)
    graph.recompile()


def _alike(one: torch.fx.Node, other: torch.fx.Node) -> bool:
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
            if isinstance(child, OwnLayer) and isinstance(child, nn.Module):
                if child not in layers:
                    layers.append(child)
                replaced.append((parent, name, child))
                parent._modules[name] = _LayerCall(child, layers.index(child))
            elif child is not None:
                walk(child)

    walk(body)
    try:
        yield
    finally:
        for parent, name, child in replaced:
            parent._modules[name] = child
