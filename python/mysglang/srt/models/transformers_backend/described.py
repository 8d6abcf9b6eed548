"""read: the description of a model whose layers are transformers' code, read from the traced graph of its pass.

    traced.py   the pass as a graph, for one row and for several
    reading.py  the chain from the embeddings to the last norm; any other op on it is a reason to refuse
    angles.py   cosines and sines of all positions

No name of a class, of a module or of a weight is looked at. Each layer of ours says what it computes
(`OwnLayer.described`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from mysglang.srt.forward.forward_batch import AttentionSpec, Rotation
from mysglang.srt.layers.parameter import stack
from mysglang.srt.models.dense_decoder import (
    CannotDescribe,
    DenseDecoder,
    DenseLayer,
    DenseLinear,
    DenseMlp,
    DenseNorm,
    DensePart,
)
from mysglang.srt.models.transformers_backend.angles import angle_table, check_one_row
from mysglang.srt.models.transformers_backend.reading import Chain, Links, Reading
from mysglang.srt.models.transformers_backend.traced import FIRST_ROWS, OwnLayer, Tracer, trace_body, trace_head

_Part = TypeVar("_Part", bound=DensePart)


@dataclass(frozen=True, slots=True)
class ReadModel:
    """A model, as its graphs were read. It holds for as long as the model exists, whatever its weights are."""

    chain: Chain
    layers: Sequence[nn.Module]
    """Our layers in the body, by number."""
    table: Tensor
    """The embeddings."""
    head: nn.Module
    """Our projection to logits."""
    specs: Sequence[AttentionSpec]
    cos_sin: Tensor
    """[context_len, head_dim] float32, see `Rotation`."""

    @torch.inference_mode(False)
    @torch.no_grad()
    def tensors(self) -> DenseDecoder:
        """Describes the model by its tensors. Afterwards the weights of queries, keys and values of a layer are parts
        of one tensor. Raises CannotDescribe.
        """
        parts = _parts(self.layers)
        links = zip(self.chain.layers, self.specs, strict=True)
        try:
            layers = tuple(_layer(each, spec, parts, self.cos_sin) for each, spec in links)
        except torch.OutOfMemoryError as error:
            raise CannotDescribe("the device has no room to bring weights together") from error
        lm_head = _of(_parts([self.head])[0], DenseLinear).weight
        norm = _of(parts[self.chain.norm], DenseNorm)
        return DenseDecoder(embedding=self.table, layers=layers, norm=norm, lm_head=lm_head)


@torch.inference_mode(False)
@torch.no_grad()
def read(
    body: nn.Module,
    head: nn.Module,
    hand_over: Callable[[Tensor], None],
    specs: Sequence[AttentionSpec],
    context_len: int,
) -> ReadModel:
    """Reads a model. Takes seconds.

    head: the model with a body that returns what was handed to `hand_over`; specs: those of its attention calls, in
    order; context_len: number of positions. Raises CannotDescribe.
    """
    with _errors_as_reasons():
        tracer = Tracer(body)
        parts = _parts(tracer.layers)
        several, one = (Reading(trace_body(tracer, one_row=each), parts, specs) for each in (False, True))
        chain = several.chain()
        if one.chain() != chain:
            raise CannotDescribe("it computes a single row in another way than several")
        table = tracer.tensors[chain.table]
        projection = _head(Tracer(head), hand_over, table.new_zeros(FIRST_ROWS, table.shape[1]))
        cos_sin = _table(several, one, tracer.tensors, context_len)
        return ReadModel(chain, tracer.layers, table, projection, specs, cos_sin)


@contextmanager
def _errors_as_reasons() -> Iterator[None]:
    """Raises CannotDescribe in place of any error."""
    try:
        yield
    except CannotDescribe:
        raise
    except torch.OutOfMemoryError as error:
        raise CannotDescribe("the device has no room for a table of its angles") from error
    except Exception as error:  # the model is not ours: any error of a traced pass is the reason why it is not read
        line = (str(error).strip() or "no text").splitlines()[0]
        raise CannotDescribe(f"a pass of it cannot be read ({type(error).__name__}: {line})") from error


def _parts(layers: Sequence[nn.Module]) -> list[DensePart]:
    """Returns what each of our layers computes. Raises CannotDescribe with all reasons why some cannot say it."""
    parts: list[DensePart] = []
    reasons: dict[str, None] = {}
    for layer in layers:
        try:
            parts.append(cast(OwnLayer, layer).described())
        except CannotDescribe as error:
            reasons[str(error)] = None
    if reasons:
        raise CannotDescribe("; ".join(reasons))
    return parts


def _head(tracer: Tracer, hand_over: Callable[[Tensor], None], hidden: Tensor) -> nn.Module:
    """Returns the projection to logits, if the model does nothing else to get them."""
    parts, number = _parts(tracer.layers), -1
    for one_row in (True, False):
        reading = Reading(trace_head(tracer, hand_over, hidden, one_row=one_row), parts, ())
        number, states = reading.layer(reading.result, DenseLinear, "a logit")
        if states is not reading.inputs[0]:
            raise CannotDescribe("its logits are not those of its last hidden states alone")
    if _of(parts[number], DenseLinear).bias is not None:
        raise CannotDescribe("its logits have a bias")
    return tracer.layers[number]


def _table(several: Reading, one: Reading, tensors: Sequence[Tensor], length: int) -> Tensor:
    """Returns cosines and sines of all positions, by which all layers turn."""
    tables = [angle_table(several.trace, angles, tensors, length) for angles in dict.fromkeys(several.angles)]
    if not all(torch.equal(each, tables[0]) for each in tables[1:]):
        raise CannotDescribe("its layers turn by different angles")
    for angles in dict.fromkeys(one.angles):
        check_one_row(one.trace, angles, tensors, tables[0])
    return tables[0]


def _layer(links: Links, spec: AttentionSpec, parts: Sequence[DensePart], cos_sin: Tensor) -> DenseLayer:
    mlp = _of(parts[links.mlp], DenseMlp)
    norms = [_of(parts[number], DenseNorm) for number in links.norms_of_heads]
    if len({norm.eps for norm in norms}) > 1:
        raise CannotDescribe("its norms of queries and of keys differ in eps")
    return DenseLayer(
        input_norm=_of(parts[links.input_norm], DenseNorm),
        qkv=_stacked([_of(parts[number], DenseLinear) for number in links.qkv]),
        rotation=Rotation(cos_sin, (norms[0].weight, norms[1].weight, norms[0].eps) if norms else None),
        spec=spec,
        o=_of(parts[links.o], DenseLinear),
        post_norm=_of(parts[links.post_norm], DenseNorm),
        router=mlp.router,
        gate_up=mlp.gate_up,
        activation=mlp.activation,
        down=mlp.down,
    )


def _stacked(linears: Sequence[DenseLinear]) -> DenseLinear:
    """Returns several linear layers of one input as one. Their weights become parts of its weight."""
    weights = [linear.weight for linear in linears]
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if len(biases) not in (0, len(linears)):
        raise CannotDescribe("some of queries, keys and values have a bias, and others have none")
    if not all(isinstance(each, nn.Parameter) for each in (*weights, *biases)):
        raise CannotDescribe("its weights are in the form of another device")
    if len({each.dtype for each in (*weights, *biases)}) > 1:
        raise CannotDescribe("its queries, keys and values have different dtypes")
    return DenseLinear(stack(cast(Any, weights)), stack(cast(Any, biases)) if biases else None)


def _of(part: DensePart, kind: type[_Part]) -> _Part:
    """Returns a part, of a kind that was seen before."""
    assert isinstance(part, kind)
    return part
