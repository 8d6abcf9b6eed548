"""CompiledBody: the layers of a transformers model in decode steps, as code that torch.compile's backends make.

    traced.py                  ─> a graph of torch's ops, with calls of our layers and of attention in it
    a backend of torch.compile ─> code that computes what stands between these calls

Our kernels stay: each of our layers, and each attention call, is one op that the compiler does not look into. There are
two graphs, one for a single row and one for any other number of rows. Both are compiled at once, and steps call the
code directly. Dynamo stays out of it: nothing can be compiled later, and its frame evaluation slowed the Python of our
kernels down.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._dynamo import lookup_backend

from mysglang.srt.models.transformers_backend.interface import NormsSums
from mysglang.srt.models.transformers_backend.traced import Tracer, alike, trace_body

Code: TypeAlias = Callable[..., Sequence[Tensor]]
"""(ids, positions, all parameters and buffers) -> hidden states, the only result."""


class CompiledBody:
    """The body of a model, compiled for decode steps of any number of rows."""

    def __init__(self, body: nn.Module, backend: str) -> None:
        """Traces the body, and compiles it by this backend of torch.compile. Nothing is compiled afterwards."""
        tracer = Tracer(body)
        self.layers = tracer.layers
        """Our layers, by number."""
        self._tensors = tracer.tensors
        self._one, self._several = (_compiled(tracer, one_row, backend) for one_row in (True, False))

    def __call__(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Computes hidden states [T, hidden_size] of T rows of one token with these ids and positions, [T] int64."""
        run = self._one if len(ids) == 1 else self._several
        # Parameters are read for each step, because their memory may move, as after a release.
        (hidden,) = run(ids, positions, *(tensor.detach() for tensor in self._tensors))
        return hidden


@torch.no_grad()
def _compiled(tracer: Tracer, one_row: bool, backend: str) -> Code:
    trace = trace_body(tracer, one_row=one_row)
    _keep_angles(trace.graph)
    _join_sums(trace.graph, tracer.layers)
    # Inductor's own compiler processes would outlive the start.
    with torch._inductor.config.patch(compile_threads=1):
        made: Code = lookup_backend(backend)(trace.graph, list(trace.inputs))
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
        if total.kwargs or not all(isinstance(each, torch.fx.Node) and alike(each, total) for each in (x, residual)):
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
