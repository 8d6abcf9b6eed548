"""Zamba2: Mamba-2 layers, and before some of them attention and an MLP whose weights several layers share."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import field
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Epsilon,
    HeadDim,
    Heads,
    Layers,
    Positions,
    Width,
    check_layer_types,
    check_served,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    BlockPlan,
    DecoderPlan,
    GatedMlpPlan,
    LayerPlan,
    NoMlpPlan,
    NormPlan,
    NormsPlan,
    RopePlan,
)
from mysglang.srt.configs.mamba_config import LINEAR, MambaConfig, check_attends, named_layers
from mysglang.srt.configs.mixer_plan import Mamba2Plan, SharedBlockPlan
from mysglang.srt.errors import ConfigError

HYBRID = "hybrid"
"""A layer that uses a shared block."""
USUAL_LAYERS = [LINEAR, *([LINEAR] * 5 + [HYBRID]) * 7, *[LINEAR] * 4, HYBRID, *[LINEAR] * 3, HYBRID, *[LINEAR] * 2]
MIXER_EPS = 1e-5
"""Epsilon of the norm inside of a Mamba-2 mixer, whatever config.json says."""
LONG_CONTEXT = 16384


class SharedBlocksConfig(MambaConfig, frozen=True, kw_only=True):
    """The keys of shared blocks: attention over residual stream and embeddings side by side, and an MLP."""

    intermediate_size: Width = 0
    num_attention_heads: Heads = 32
    hidden_act: str = "gelu"
    rms_norm_eps: Epsilon = 1e-5
    add_bias_linear: bool = False
    num_mem_blocks: Layers = 1
    use_shared_attention_adapter: bool = False
    adapter_rank: Width = 128
    use_mem_rope: bool = False

    def block(self, rope: RopePlan, uses: tuple[int, ...]) -> BlockPlan:
        """Returns the block with these uses."""
        return BlockPlan(
            attention=self.attention(0, rope),
            mlp=GatedMlpPlan(
                intermediate_size=self.intermediate_size or 4 * self.hidden_size,
                activation=self.hidden_act,
                bias=self.add_bias_linear,
            ),
            norm=self.norm(),
            uses=uses,
            rank=self.adapter_rank,
            adapts_attention=self.use_shared_attention_adapter,
        )

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        plan = super().attention(index, rope)
        return replace(plan, rope=rope if self.use_mem_rope else None, scale=(self.dim_of_head / 2) ** -0.5)

    @property
    def dim_of_head(self) -> int:
        return 2 * self.hidden_size // self.num_attention_heads

    def check_blocks(self) -> None:
        """Raise ConfigError for adapters that do not fit keys and values, and for weights that are not tied."""
        # Without it, transformers ties the uses of a block no more than the embeddings.
        check_served({"tie_word_embeddings": (self.tie_word_embeddings, True)})
        kv_heads = self.num_key_value_heads or self.num_attention_heads
        if self.use_shared_attention_adapter and kv_heads != self.num_attention_heads:
            raise ConfigError(
                "config.json: use_shared_attention_adapter needs as many key-value heads as attention heads, not "
                f"{kv_heads} and {self.num_attention_heads}"
            )


class Zamba2Config(SharedBlocksConfig, frozen=True, kw_only=True):
    """Zamba2. Each use of a shared block has adapters, keys and values of its own; uses take the blocks in turn.

    Time steps have a lower bound, `time_step_min`. transformers bounds those of prompts alone; here all are bounded, so
    that a token is computed alike in a prompt and in an answer.
    """

    hidden_size: Width = 2560
    max_position_embeddings: Positions = 4096
    tie_word_embeddings: bool = True
    layers_block_type: list[str]
    mamba_n_heads: Heads = field(name="n_mamba_heads", default=8)
    mamba_n_groups: Heads = field(name="mamba_ngroups", default=1)
    mamba_d_state: HeadDim = 64
    time_step_min: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.001

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the layers by today's names, and their usual number. A long context has a length of its own."""
        given = hf.get("layers_block_type", hf.get("layer_types"))
        types = named_layers(USUAL_LAYERS if given is None else given)
        longest = {"max_position_embeddings": LONG_CONTEXT} if hf.get("use_long_context") is True else {}
        return {"num_hidden_layers": len(USUAL_LAYERS)} | hf | {"layers_block_type": types} | longest

    def plan(self, rope: RopePlan) -> DecoderPlan:
        uses = [index for index, kind in enumerate(self.layers_block_type) if kind == HYBRID]
        names = [f"layers.{index}.shared_transformer" for index in uses]
        places = [f"blocks.{use % self.num_mem_blocks}" for use in range(len(uses))]
        first = min(self.num_mem_blocks, len(uses))
        linear = ("linear", f"{SharedBlockPlan.name}.linear")
        return replace(
            super().plan(rope),
            blocks=tuple(
                self.block(rope, (*range(len(uses)),)[number :: self.num_mem_blocks]) for number in range(first)
            ),
            renamed=(("^final_layernorm", "^norm"), linear, *zip(names[:first], places, strict=False)),
            # A file may also have a copy of a block for each further use.
            aliases=tuple(zip(names[first:], places[first:], strict=True)),
        )

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        norms = NormsPlan(norm=self.norm(), before_mlp=None)
        if self.layers_block_type[index] == LINEAR:
            return LayerPlan(attention=self.mamba(), mlp=NoMlpPlan(), norms=norms)
        use = self.layers_block_type[:index].count(HYBRID)
        mixer = SharedBlockPlan(
            block=use % self.num_mem_blocks,
            use=use,
            attention=self.attention(index, rope),
            mamba=self.mamba(),
            norm=self.norm(),
        )
        return LayerPlan(attention=mixer, mlp=NoMlpPlan(), norms=replace(norms, before_attention=None))

    def mamba(self) -> Mamba2Plan:
        bias = self.add_bias_linear
        return replace(
            super().mamba(),
            conv_bias=True,
            in_bias=bias,
            out_bias=bias,
            norm=NormPlan(eps=MIXER_EPS),
            norm_groups=self.mamba_n_groups,
            least_step=self.time_step_min,
        )

    @property
    def mamba_act(self) -> str:
        return "silu"

    def check(self) -> None:
        super().check()
        self.check_blocks()
        check_layer_types(self.layers_block_type, self.num_hidden_layers, (LINEAR, HYBRID))
        check_attends(HYBRID in self.layers_block_type)
