"""LightningAttention: linear attention whose heads forget at fixed rates (MiniMax-01).

    x ─┬─ q k v ─ silu ─ recurrence ─ norm over all heads ─ * ─ out_proj
       └─ output_gate ─ sigmoid ────────────────────────────┘

    S = r S + k v^T,    o = q^T S

The head's rate is r = exp(-slope). With A = -slope, D = 0 and time steps of 1 this is the recurrence of Mamba-2, whose
ops compute it: v is its input, k and q are its b and c. Source: MiniMax, "MiniMax-01" (arXiv 2501.08313), section 2.2;
Qin et al., "Lightning Attention-2" (arXiv 2401.04658).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from mysglang.srt.forward.forward_batch import ForwardBatch, StatePart, StateSpec
from mysglang.srt.kernels.activation import sigmoid_gated
from mysglang.srt.kernels.state_space import scan_runs, scan_step
from mysglang.srt.kernels.states import Runs
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.layers.layernorm import SplitRMSNorm
from mysglang.srt.layers.linear import ColumnParallelLinear, MergedColumnParallelLinear, RowParallelLinear
from mysglang.srt.layers.linear_attention.state_layer import StateLayer
from mysglang.srt.layers.parameter import Section

ONE_STEP = math.log(math.e - 1)
"""The number whose softplus is 1."""

SevenTensors = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


class LightningAttention(StateLayer):
    """Lightning attention. Each rank has whole heads."""

    def __init__(
        self,
        layer_id: int,
        hidden_size: int,
        heads: int,
        head_dim: int,
        slope: float,
        eps: float,
        inputs: str,
        context: LayerContext,
    ) -> None:
        """`heads` counts the heads of the whole model. slope: factor of the layer for the slopes of its heads, which
        are 2^(-8 i / heads) for i = 1 … heads. inputs: name of the projection to queries, keys and values.
        """
        super().__init__()
        width = heads * head_dim
        own = Section.split(heads, context.tp.rank, context.tp.size)
        numbers = Section.split(width, context.tp.rank, context.tp.size)
        projection = MergedColumnParallelLinear(hidden_size, (width,) * 3, context=context.under(inputs))
        # A checkpoint has the query, the key and the value of each head beside each other.
        projection.stored_in_runs((head_dim,) * 3)
        self.add_module(inputs, projection)
        self._inputs = (projection,)
        self.output_gate = ColumnParallelLinear(hidden_size, width, context=context.under("output_gate"))
        self.norm = SplitRMSNorm(numbers, eps, context)
        self.out_proj = RowParallelLinear(width, hidden_size, context=context.under("out_proj"))
        head = torch.arange(own.start + 1, own.start + own.size + 1, dtype=torch.float32)
        self._log_rate = math.log(2) * (-8 / heads) * head + math.log(slope)
        self._one_step, self._nothing = torch.full((own.size,), ONE_STEP), torch.zeros(own.size)
        self._shape = (own.size, head_dim)
        self.spec = StateSpec(layer_id, (StatePart((own.size, head_dim, head_dim), is_recurrent=True),))

    def forward(self, x: Tensor, batch: ForwardBatch) -> Tensor:
        """Mixes the tokens: [T, hidden_size] -> [W, hidden_size], for the wanted tokens. All tokens update the
        states.
        """
        (projection,) = self._inputs
        attended = self.through((F.silu(projection(x)),), batch)
        gate = self.output_gate(batch.wanted(x))
        out: Tensor = self.out_proj(sigmoid_gated(self.norm(batch.wanted(attended).flatten(1)), gate))
        return out

    def step(self, inputs: Sequence[Tensor], state: Sequence[Tensor], at: Tensor) -> Tensor:
        (given,), (matrix,) = inputs, state
        return scan_step(*self._recurrence(given), matrix, at)

    def run(self, inputs: Sequence[Tensor], state: Sequence[Tensor], runs: Runs) -> Tensor:
        (given,), (matrix,) = inputs, state
        return scan_runs(*self._recurrence(given), matrix, runs)

    def _recurrence(self, given: Tensor) -> SevenTensors:
        """Returns the arguments of Mamba-2's ops. given: [N, 3 * heads * head_dim] queries, keys and values."""
        q, k, v = given.view(-1, 3, *self._shape).unbind(1)
        nothing = self._nothing
        return v, k, q, nothing.expand(len(v), -1), self._one_step, self._log_rate, nothing
