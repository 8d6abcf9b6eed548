"""Linear layers, whole or split over the ranks of a tensor-parallel group.

Column layers split their output, row layers their input, so a column layer followed by a row layer needs one sum over
the ranks, which the row layer does. What the weights are made of is the quantization's affair.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from mysglang.srt.distributed.groups import Group
from mysglang.srt.errors import ConfigError
from mysglang.srt.kernels.activation import Activation
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.parameter import Section, WeightParameter


class LinearBase(nn.Module):
    """Base of the linear layers: x [..., input of this rank] -> [..., output of this rank]."""

    def __init__(
        self,
        input_section: Section,
        output_sections: tuple[Section, ...],
        *,
        bias: bool,
        context: LayerContext,
    ) -> None:
        super().__init__()
        self.tp: Group = context.tp
        self.method = context.quant.linear_method(context.prefix)
        self.method.create_weights(self, input_section, output_sections, context.dtype)
        size = sum(section.size for section in output_sections)
        self.bias = WeightParameter((size,), output_sections, dtype=context.dtype) if bias else None

    def process_weights_after_loading(self) -> None:
        self.method.process_weights_after_loading(self)

    def reopen_weights(self, layouts: Mapping[str, WeightParameter]) -> None:
        """Makes the weights loadable again; see `LinearMethod`."""
        self.method.reopen_weights(self, layouts)

    def values_of(self, name: str) -> Tensor:
        """Returns the values of the parameter `weight` or `bias` that the layer computes with."""
        if name == "bias":
            assert self.bias is not None
            return self.bias
        return self.method.plain_weight(self)

    def stored_in_runs(self, runs: tuple[int, ...]) -> None:
        """Declares that a checkpoint's tensor of all sections has that many rows of each section in turn
        (`WeightParameter.runs`).
        """
        for parameter in self.parameters(recurse=False):
            assert isinstance(parameter, WeightParameter)
            parameter.runs = runs

    def stored_transposed(self) -> None:
        """Declares that a checkpoint's matrices are [input, output] (`WeightParameter.transposed`)."""
        for parameter in self.parameters(recurse=False):
            assert isinstance(parameter, WeightParameter)
            parameter.transposed = parameter.dim() == 2

    def forward(self, x: Tensor) -> Tensor:
        return self.method.apply(self, x, self.bias)


class ReplicatedLinear(LinearBase):
    """A linear layer with the same weights on every rank."""

    def __init__(self, input_size: int, output_size: int, *, bias: bool = False, context: LayerContext) -> None:
        whole = Section(output_size, 0, output_size)
        super().__init__(Section(input_size, 0, input_size), (whole,), bias=bias, context=context)


class SectionsLinear(LinearBase):
    """Several projections of one input; the output holds these sections of them in turn."""

    def __init__(
        self, input_size: int, sections: tuple[Section, ...], *, bias: bool = False, context: LayerContext
    ) -> None:
        super().__init__(Section(input_size, 0, input_size), sections, bias=bias, context=context)


class MergedColumnParallelLinear(SectionsLinear):
    """Several projections of one input, each split over the ranks; the output holds this rank's parts in turn."""

    def __init__(
        self, input_size: int, output_sizes: tuple[int, ...], *, bias: bool = False, context: LayerContext
    ) -> None:
        parts = tuple(Section.split(size, context.tp.rank, context.tp.size) for size in output_sizes)
        super().__init__(input_size, parts, bias=bias, context=context)


class GatedColumnParallelLinear(MergedColumnParallelLinear):
    """Computes act(gate(x)) * up(x): two projections of one input, and one output for both."""

    def __init__(
        self, input_size: int, output_size: int, activation: Activation, *, bias: bool = False, context: LayerContext
    ) -> None:
        super().__init__(input_size, (output_size, output_size), bias=bias, context=context)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return self.method.apply_gated(self, x, self.bias, self.activation)


class ColumnParallelLinear(MergedColumnParallelLinear):
    """A projection whose output is split over the ranks."""

    def __init__(self, input_size: int, output_size: int, *, bias: bool = False, context: LayerContext) -> None:
        super().__init__(input_size, (output_size,), bias=bias, context=context)


class QKVParallelLinear(LinearBase):
    """Computes queries, keys and values in one projection. Each rank has whole heads.

    Where there are fewer key-value heads than ranks, neighbouring ranks hold the same one.
    """

    def __init__(
        self,
        hidden_size: int,
        head_dim: int,
        num_heads: int,
        num_kv_heads: int,
        *,
        query_dim: int | None = None,
        fused_by_head: bool = False,
        values: bool = True,
        bias: bool = False,
        context: LayerContext,
    ) -> None:
        """`query_dim`: rows of each query head, where these are more than `head_dim`. `fused_by_head`: a checkpoint's
        tensor of all three has the queries of each key-value head before its key and its value. Without `values` there
        are none, and `forward_split` gives the keys in their place.
        """
        rank, size = context.tp.rank, context.tp.size
        heads = Section.split(num_heads, rank, size)
        kv_heads = split_kv_heads(num_kv_heads, rank, size)
        self.num_heads, self.num_kv_heads = heads.size, kv_heads.size
        sections = tuple(
            Section(part.full * dim, part.start * dim, part.size * dim)
            for part, dim in ((heads, query_dim or head_dim), *((kv_heads, head_dim),) * (2 if values else 1))
        )
        self.sections = sections
        """Sections of the queries, the keys and, if they are projected, the values."""
        self.sizes = [section.size for section in sections]
        super().__init__(Section(hidden_size, 0, hidden_size), sections, bias=bias, context=context)
        if fused_by_head:
            self.stored_in_runs(tuple(section.full // num_kv_heads for section in sections))

    def forward_split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k and v as slices of one tensor: only their last dimension is dense."""
        q, k, *v = self(x).split(self.sizes, dim=-1)
        return q, k, v[0] if v else k


class RowParallelLinear(LinearBase):
    """A projection whose input is split over the ranks; every rank gets the whole output, summed."""

    def __init__(self, input_size: int, output_size: int, *, bias: bool = False, context: LayerContext) -> None:
        part = Section.split(input_size, context.tp.rank, context.tp.size)
        whole = Section(output_size, 0, output_size)
        super().__init__(part, (whole,), bias=bias, context=context)

    def forward(self, x: Tensor) -> Tensor:
        # The bias is added once, not once for each rank.
        bias = self.bias if self.tp.rank == 0 else None
        return self.tp.all_reduce(self.method.apply(self, x, bias))


def store_transposed(layers: nn.Module) -> None:
    """Declares that a checkpoint's matrices of all linear layers inside are [input, output]."""
    for module in layers.modules():
        if isinstance(module, LinearBase):
            module.stored_transposed()


def split_kv_heads(num_kv_heads: int, rank: int, size: int) -> Section:
    """Returns the key-value heads of one rank, at least one."""
    if size <= num_kv_heads:
        return Section.split(num_kv_heads, rank, size)
    if size % num_kv_heads:
        raise ConfigError(f"{size} ranks cannot share {num_kv_heads} key-value heads evenly; choose another --tp-size")
    return Section(num_kv_heads, rank * num_kv_heads // size, 1)
