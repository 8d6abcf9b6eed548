"""Config classes of Nemotron, and of Nemotron-H with and without experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec import field
from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    DecoderConfig,
    Epsilon,
    Factor,
    HeadDim,
    Heads,
    Positions,
    Width,
    check_layer_types,
)
from mysglang.srt.configs.families.deepseek import check_groups
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    LatentExpertsPlan,
    LayerPlan,
    MixturePlan,
    MlpPlan,
    NoMlpPlan,
    NormPlan,
    NormsPlan,
    PlainMlpPlan,
    RopePlan,
    RouterPlan,
    SharedExpertPlan,
)
from mysglang.srt.configs.mamba_config import FULL, LINEAR, MLP, Kernel, MambaConfig, check_attends, named_layers
from mysglang.srt.configs.mixer_plan import Mamba2Plan, NoMixerPlan
from mysglang.srt.errors import ConfigError


class NemotronConfig(DecoderConfig, frozen=True, kw_only=True):
    """Nemotron 3 and 4, and Minitron. Their LayerNorms multiply by 1 + weight, rotary positions turn half of each head,
    and the MLP has squared ReLU without a gate.

    If config.json has no `head_dim`, the family's default is used.
    """

    rotary_part: ClassVar[float | None] = 0.5

    head_dim: HeadDim | None = None
    max_position_embeddings: Positions = 4096
    hidden_act: str = "relu2"
    norm_eps: Epsilon = 1e-5
    attention_bias: bool = False
    mlp_bias: bool = False

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), bias=self.attention_bias, output_bias=self.attention_bias)

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)

    def norm(self) -> NormPlan:
        return NormPlan(eps=self.norm_eps, kind="layer_plus_one")


MOE = "moe"
USUAL_LAYERS = [LINEAR, MOE, FULL, MLP]
MODULES = {LINEAR: Mamba2Plan.name, FULL: AttentionPlan.name, MLP: "mlp", MOE: "mlp"}
"""Layer type -> name of its mixer module here."""
SHARED: dict[str, Any] = {
    "name": "shared_experts",
    "field": "moe_shared_expert_intermediate_size",
    "gated": False,
}


class NemotronExpertsConfig(MambaConfig, frozen=True, kw_only=True):
    """The keys of the experts of Nemotron-H, and of the activation that they share with its MLPs."""

    mlp_hidden_act: str = "relu2"
    mlp_bias: bool = False
    n_routed_experts: Count = 8
    n_shared_experts: Count = 1
    num_experts_per_tok: Count = 2
    moe_intermediate_size: Width = 7688
    moe_shared_expert_intermediate_size: Width = 7688
    moe_latent_size: Width | None = None
    n_group: Count = 1
    topk_group: Count = 1
    norm_topk_prob: bool = True
    routed_scaling_factor: Factor = 1.0

    def experts(self) -> MixturePlan:
        """Returns the mixture of a layer of experts."""
        latent, shared = self.moe_latent_size, self.moe_shared_expert_intermediate_size
        return MixturePlan(
            experts=self.n_routed_experts,
            intermediate_size=self.moe_intermediate_size,
            activation=self.mlp_hidden_act,
            router=self.router(),
            shared=SharedExpertPlan(intermediate_size=shared, **SHARED, bias=self.mlp_bias),
            field="n_routed_experts",
            parts=("up_proj", "down_proj"),
            narrow=None if latent is None else LatentExpertsPlan(size=latent, bias=self.mlp_bias),
        )

    def router(self) -> RouterPlan:
        """Returns the router of every layer of experts."""
        return RouterPlan(
            kind="sigmoid",
            top_k=self.num_experts_per_tok,
            renormalize=self.norm_topk_prob,
            groups=self.n_group,
            kept_groups=self.topk_group,
            scale=self.routed_scaling_factor,
            float32=True,
            corrected=True,
        )

    def check_experts(self) -> None:
        """Raise ConfigError unless a token can have its experts, one of which is shared."""
        check_groups(self.n_routed_experts, self.router())
        if self.n_shared_experts != 1:
            raise ConfigError(
                f"config.json: n_shared_experts must be 1, not {self.n_shared_experts}: "
                "moe_shared_expert_intermediate_size is the size of the one shared expert"
            )


class NemotronHConfig(NemotronExpertsConfig, frozen=True, kw_only=True):
    """Nemotron-H. Each layer is one of four things: a Mamba-2 mixer, attention without rotary positions, an MLP, or
    experts, which have no gate.

    Older config.json files have `hybrid_override_pattern`, with a letter for each layer, instead of
    `layers_block_type`.
    """

    carries_code: ClassVar[bool] = True
    other_names: ClassVar[Mapping[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "layer_types": "layers_block_type",
    }

    hidden_size: Width = 4096
    intermediate_size: Width = 21504
    num_attention_heads: Heads = 32
    num_key_value_heads: Heads | None = 8
    head_dim: HeadDim | None = 128
    max_position_embeddings: Positions = 4096
    layers_block_type: list[str]
    rms_norm_eps: Epsilon = field(name="layer_norm_epsilon", default=1e-5)
    hidden_act: str = field(name="mamba_hidden_act", default="silu")
    mamba_n_heads: Heads = field(name="mamba_num_heads", default=128)
    mamba_d_head: HeadDim = field(name="mamba_head_dim", default=64)
    mamba_n_groups: Heads = field(name="n_groups", default=8)
    mamba_d_state: HeadDim = field(name="ssm_state_size", default=128)
    mamba_d_conv: Kernel = field(name="conv_kernel", default=4)
    mamba_conv_bias: bool = field(name="use_conv_bias", default=True)
    mamba_proj_bias: bool = field(name="use_bias", default=False)

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the layers from any spelling; their number follows."""
        hf = super().complete(hf)
        keys = ("layers_block_type", "hybrid_override_pattern")
        types = named_layers(next((hf[key] for key in keys if hf.get(key) is not None), USUAL_LAYERS))
        return hf | {"layers_block_type": types, "num_hidden_layers": len(types)}

    def plan(self, rope: RopePlan) -> DecoderPlan:
        plan, types = super().plan(rope), enumerate(self.layers_block_type)
        mixers = ((f"layers.{index}.mixer", f"layers.{index}.{MODULES[name]}") for index, name in types)
        renamed = (("embeddings", "embed_tokens"), ("^norm_f", "^norm"), *mixers)
        return replace(plan, renamed=renamed, tied_embeddings=False)

    def layer(self, index: int, rope: RopePlan) -> LayerPlan:
        kind = self.layers_block_type[index]
        before = NormsPlan(norm=self.norm(), before_attention=None, before_mlp=None)
        if kind in (MLP, MOE):
            mlp = self.mlp(index) if kind == MLP else self.experts()
            return LayerPlan(attention=NoMixerPlan(), mlp=mlp, norms=replace(before, before_mlp="norm"))
        mixer = self.mamba() if kind == LINEAR else self.attention(index, rope)
        return LayerPlan(attention=mixer, mlp=NoMlpPlan(), norms=replace(before, before_attention="norm"))

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), rope=None)

    def mamba(self) -> Mamba2Plan:
        return replace(super().mamba(), norm_groups=self.mamba_n_groups)

    @property
    def mamba_inner(self) -> int:
        return self.mamba_n_heads * self.mamba_d_head

    def mlp(self, index: int) -> MlpPlan:
        return PlainMlpPlan(
            intermediate_size=self.intermediate_size, activation=self.mlp_hidden_act, bias=self.mlp_bias
        )

    def check(self) -> None:
        super().check()
        check_layer_types(self.layers_block_type, self.num_hidden_layers, (FULL, LINEAR, MLP, MOE))
        check_attends(FULL in self.layers_block_type)
        if MOE in self.layers_block_type:
            self.check_experts()
