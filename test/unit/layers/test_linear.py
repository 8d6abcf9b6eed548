"""Linear layers and the embedding split over ranks: the parts put together are the whole."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fixtures.thread_group import ThreadGroup, run_on_ranks
from mysglang.srt.distributed.groups import SoloGroup
from mysglang.srt.errors import ConfigError
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.linear import (
    ColumnParallelLinear,
    GatedColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    split_kv_heads,
)
from mysglang.srt.layers.parameter import Section, WeightParameter, put_in_order
from mysglang.srt.layers.vocab_parallel_embedding import TiedLMHead, VocabParallelEmbedding

HIDDEN = 24
SIZES = [1, 2, 4]


def context(tp: ThreadGroup | SoloGroup) -> LayerContext:
    return LayerContext(dtype=torch.float32, tp=tp)


def rows(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    """A random weight [size, HIDDEN] and bias [size] for each size."""
    generator = torch.Generator().manual_seed(sum(sizes))
    return [(torch.randn(size, HIDDEN, generator=generator), torch.randn(size, generator=generator)) for size in sizes]


def load(layer: torch.nn.Module, tensors: list[tuple[Tensor, Tensor]]) -> None:
    for section, (weight, bias) in enumerate(tensors):
        which = section if len(tensors) > 1 else None
        layer.weight.load(weight, which)
        layer.bias.load(bias, which)


X = torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("size", SIZES)
class TestParts:
    def test_gated_column(self, size: int) -> None:
        (gate, gate_bias), (up, up_bias) = tensors = rows(16, 16)

        def work(tp: ThreadGroup) -> Tensor:
            layer = GatedColumnParallelLinear(HIDDEN, 16, "gelu_tanh", bias=True, context=context(tp))
            load(layer, tensors)
            return layer(X)

        expected = F.gelu(F.linear(X, gate, gate_bias), approximate="tanh") * F.linear(X, up, up_bias)
        torch.testing.assert_close(torch.cat(run_on_ranks(size, work), dim=-1), expected)

    def test_column(self, size: int) -> None:
        [(weight, bias)] = tensors = rows(16)

        def work(tp: ThreadGroup) -> Tensor:
            layer = ColumnParallelLinear(HIDDEN, 16, bias=True, context=context(tp))
            load(layer, tensors)
            return layer(X)

        torch.testing.assert_close(torch.cat(run_on_ranks(size, work), dim=-1), F.linear(X, weight, bias))

    def test_merged_columns(self, size: int) -> None:
        tensors = rows(8, 12)

        def work(tp: ThreadGroup) -> Tensor:
            layer = MergedColumnParallelLinear(HIDDEN, (8, 12), bias=True, context=context(tp))
            load(layer, tensors)
            return layer(X)

        halves = [out.split([8 // size, 12 // size], dim=-1) for out in run_on_ranks(size, work)]
        for part, (weight, bias) in enumerate(tensors):
            found = torch.cat([half[part] for half in halves], dim=-1)
            torch.testing.assert_close(found, F.linear(X, weight, bias))

    def test_row(self, size: int) -> None:
        weight, bias = torch.randn(10, HIDDEN), torch.randn(10)

        def work(tp: ThreadGroup) -> Tensor:
            layer = RowParallelLinear(HIDDEN, 10, bias=True, context=context(tp))
            load(layer, [(weight, bias)])
            return layer(X.chunk(tp.size, dim=-1)[tp.rank])

        for out in run_on_ranks(size, work):
            torch.testing.assert_close(out, F.linear(X, weight, bias))

    @pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
    def test_qkv(self, size: int, num_kv_heads: int) -> None:
        tensors = rows(8 * 4, num_kv_heads * 4, num_kv_heads * 4)
        whole = [F.linear(X, weight, bias).unflatten(-1, (-1, 4)) for weight, bias in tensors]

        def work(tp: ThreadGroup) -> tuple[Tensor, Tensor, Tensor]:
            layer = QKVParallelLinear(HIDDEN, 4, 8, num_kv_heads, bias=True, context=context(tp))
            load(layer, tensors)
            return layer.forward_split(X)

        for rank, parts in enumerate(run_on_ranks(size, work)):
            q, k, v = (part.unflatten(-1, (-1, 4)) for part in parts)
            mine = slice(rank * 8 // size, (rank + 1) * 8 // size)
            torch.testing.assert_close(q, whole[0][:, mine])
            # Every query finds the key-value head that is its in the whole model.
            group, my_group = 8 // num_kv_heads, q.shape[1] // k.shape[1]
            for head in range(q.shape[1]):
                its = (mine.start + head) // group
                torch.testing.assert_close(k[:, head // my_group], whole[1][:, its])
                torch.testing.assert_close(v[:, head // my_group], whole[2][:, its])

    @pytest.mark.parametrize("vocab_size", [32, 29, 5])
    def test_embedding_and_logits(self, size: int, vocab_size: int) -> None:
        table = torch.randn(vocab_size, HIDDEN)
        ids = torch.arange(vocab_size).flip(0)

        def work(tp: ThreadGroup) -> tuple[Tensor, Tensor]:
            embedding = VocabParallelEmbedding(vocab_size, HIDDEN, context(tp))
            embedding.weight.load(table)
            return embedding(ids), TiedLMHead(vocab_size, embedding, context=context(tp))(X)

        for vectors, logits in run_on_ranks(size, work):
            assert torch.equal(vectors, table[ids])
            torch.testing.assert_close(logits, F.linear(X, table))


def test_replicated_is_whole_everywhere() -> None:
    tensors = rows(7)

    def work(tp: ThreadGroup) -> Tensor:
        layer = ReplicatedLinear(HIDDEN, 7, bias=True, context=context(tp))
        load(layer, tensors)
        return layer(X)

    for out in run_on_ranks(2, work):
        torch.testing.assert_close(out, F.linear(X, *tensors[0]))


def test_a_fused_checkpoint_tensor_is_taken_apart() -> None:
    """One tensor of all sections, as some checkpoints store it."""
    tensors = rows(8, 12)

    def work(tp: ThreadGroup) -> Tensor:
        apart, fused = (MergedColumnParallelLinear(HIDDEN, (8, 12), bias=True, context=context(tp)) for _ in range(2))
        load(apart, tensors)
        load(fused, [(torch.cat([weight for weight, _ in tensors]), torch.cat([bias for _, bias in tensors]))])
        return (apart(X) - fused(X)).abs().max()

    assert max(run_on_ranks(2, work)) == 0


ORDER = torch.tensor([0, 2, 3, 1])


@pytest.mark.parametrize("size", SIZES)
def test_heads_in_another_order(size: int) -> None:
    """Queries and keys have their dimensions in that order, values in their own; and what is read back is as stored."""
    tensors = rows(8 * 4, 4 * 4, 4 * 4)

    def work(tp: ThreadGroup) -> tuple[Tensor, ...]:
        plain, ordered = (QKVParallelLinear(HIDDEN, 4, 8, 4, bias=True, context=context(tp)) for _ in range(2))
        put_in_order(ordered, ORDER, ORDER, None)
        for layer in (plain, ordered):
            load(layer, tensors)
        for section in (None, 0, 1, 2):
            for mine, its in zip(ordered.parameters(), plain.parameters(), strict=True):
                assert isinstance(mine, WeightParameter) and isinstance(its, WeightParameter)
                assert torch.equal(mine.read(section), its.read(section))
        return *plain.forward_split(X), *ordered.forward_split(X)

    for found in run_on_ranks(size, work):
        q, k, v, ordered_q, ordered_k, ordered_v = (part.unflatten(-1, (-1, 4)) for part in found)
        torch.testing.assert_close(ordered_q, q[..., ORDER])
        torch.testing.assert_close(ordered_k, k[..., ORDER])
        torch.testing.assert_close(ordered_v, v)


def test_heads_of_a_fused_tensor_in_another_order() -> None:
    """Each key-value head with its queries before it, as some checkpoints store them."""
    layer = QKVParallelLinear(HIDDEN, 4, 4, 2, fused_by_head=True, context=context(SoloGroup()))
    weight = torch.randn(8 * 4, HIDDEN)
    layer.weight.load(weight)
    q, k, v = (part.unflatten(-1, (-1, 4)) for part in layer.forward_split(X))
    put_in_order(layer, ORDER, ORDER, None)
    layer.weight.fit(weight)
    layer.weight.load(weight)
    layer.weight.check(weight)
    assert torch.equal(layer.weight.read(), weight) and layer.weight.span(weight) == (0, weight.nbytes)
    for found, expected in zip(layer.forward_split(X), (q[..., ORDER], k[..., ORDER], v), strict=True):
        torch.testing.assert_close(found.unflatten(-1, (-1, 4)), expected)


class TestRefusals:
    @pytest.mark.parametrize(
        "build",
        [
            lambda c: ColumnParallelLinear(HIDDEN, 15, context=c),
            lambda c: RowParallelLinear(15, HIDDEN, context=c),
            lambda c: QKVParallelLinear(HIDDEN, 4, 9, 3, context=c),
        ],
    )
    def test_an_uneven_split(self, build: Callable[[LayerContext], torch.nn.Module]) -> None:
        with pytest.raises(ConfigError, match="--tp-size"):
            run_on_ranks(2, lambda tp: build(context(tp)))

    def test_more_ranks_than_heads_can_share(self) -> None:
        with pytest.raises(ConfigError, match="4 ranks cannot share 3"):
            split_kv_heads(3, 0, 4)

    @pytest.mark.parametrize("shape", [(10, 3), (3, 4), (12,), (11, 4)])
    def test_another_shape(self, shape: tuple[int, ...]) -> None:
        parameter = WeightParameter((6, 4), (Section(12, 6, 6),), dtype=torch.float32)
        with pytest.raises(ConfigError, match=r"the model needs \[12, 4\]"):
            parameter.load(torch.zeros(shape))


def test_padding_is_zero() -> None:
    parameter = WeightParameter((4, 2), (Section(6, 4, 4),), dtype=torch.float32)
    parameter.data.fill_(float("nan"))
    parameter.load(torch.ones(6, 2))
    assert parameter.tolist() == [[1, 1], [1, 1], [0, 0], [0, 0]]
