"""DeepSeek-V2 and V3, and the layers that they share with families built on them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    Count,
    DecoderConfig,
    Factor,
    HeadDim,
    Layers,
    Positions,
    Width,
    check_experts,
)
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    GatedMlpPlan,
    LatentPlan,
    MixturePlan,
    MlpPlan,
    NormPlan,
    RopePlan,
    RouterPlan,
    SharedExpertPlan,
)
from mysglang.srt.errors import ConfigError

LATENT_NORM = NormPlan(eps=1e-6)
"""Norm of the latent part of rows, and of the vectors that queries are made from. Its epsilon is fixed, whatever
`rms_norm_eps` is.
"""


class DeepseekConfig(DecoderConfig, frozen=True, kw_only=True):
    """The keys that the DeepSeek families have in common, and their layers: latent rows for keys and values (MLA), and
    experts beside an MLP that every token goes through.

    If `q_lora_rank` is null, queries are made from the hidden state.
    """

    carries_code: ClassVar[bool] = True

    topk_methods: ClassVar[tuple[str, ...]]
    """The values of `topk_method` that the family may have; the first is meant where a file leaves it out."""
    scoring: ClassVar[str]
    """The value of `scoring_func` that the family may have."""

    attention_bias: bool = False
    mlp_bias: bool = False
    q_lora_rank: Width | None = 1536
    kv_lora_rank: Width = 512
    qk_nope_head_dim: HeadDim = 128
    qk_rope_head_dim: HeadDim = 64
    v_head_dim: HeadDim = 128
    n_routed_experts: Count | None = None
    n_shared_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Width = 2048
    first_k_dense_replace: Count | None = 0
    moe_layer_freq: Layers = 1
    topk_method: str | None = None
    scoring_func: str | None = None
    n_group: Count | None = None
    topk_group: Count | None = None
    routed_scaling_factor: Factor = 1.0

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        return AttentionPlan(
            num_heads=self.num_attention_heads,
            num_kv_heads=1,
            head_dim=self.kv_lora_rank + self.qk_rope_head_dim,
            scale=dim**-0.5 * score_gain(rope),
            rope=rope,
            bias=self.attention_bias,
            output_bias=self.attention_bias,
            latent=LatentPlan(
                query_rank=self.q_lora_rank,
                rank=self.kv_lora_rank,
                key_dim=self.qk_nope_head_dim,
                rope_dim=self.qk_rope_head_dim,
                value_dim=self.v_head_dim,
                interleaved=self.interleaved,
                norm=LATENT_NORM,
            ),
        )

    def mlp(self, index: int) -> MlpPlan:
        dense = GatedMlpPlan(intermediate_size=self.intermediate_size, activation=self.hidden_act, bias=self.mlp_bias)
        if not self.n_routed_experts or not self.has_experts(index):
            return dense
        return MixturePlan(
            experts=self.n_routed_experts,
            intermediate_size=self.moe_intermediate_size,
            activation=self.hidden_act,
            router=self.router(self.num_experts_per_tok or 0),
            shared=self.shared_expert(),
            field="n_routed_experts",
        )

    def shared_expert(self) -> SharedExpertPlan | None:
        """Returns one MLP that is as wide as all `n_shared_experts` together, since shared experts are stored side by
        side.
        """
        if not self.n_shared_experts:
            return None
        return SharedExpertPlan(
            intermediate_size=self.moe_intermediate_size * self.n_shared_experts,
            name="shared_experts",
            field="n_shared_experts * moe_intermediate_size",
            gated=False,
            bias=self.mlp_bias,
        )

    def has_experts(self, index: int) -> bool:
        """True if the layer of this number may have experts: every `moe_layer_freq`-th, except the first ones."""
        return index >= (self.first_k_dense_replace or 0) and index % self.moe_layer_freq == 0

    def router(self, top_k: int) -> RouterPlan:
        """Returns the router of every layer with experts."""
        raise NotImplementedError

    @property
    def interleaved(self) -> bool:
        """True if rotary positions rotate neighbouring lanes together."""
        return True

    @property
    def method(self) -> str:
        """How a token's experts are chosen."""
        return self.topk_method or self.topk_methods[0]

    def check(self) -> None:
        """Replaces the checks of other decoders: the size of heads does not depend on the size of the hidden state."""
        if self.num_key_value_heads not in (None, self.num_attention_heads):
            raise ConfigError(
                f"config.json: num_key_value_heads is {self.num_key_value_heads}, and latent attention has as many "
                f"as it has attention heads, {self.num_attention_heads}"
            )
        if self.qk_rope_head_dim % 2:
            raise ConfigError(f"config.json: qk_rope_head_dim {self.qk_rope_head_dim} must be even")
        for key, value, known in (
            ("topk_method", self.method, self.topk_methods),
            ("scoring_func", self.scoring_func or self.scoring, (self.scoring,)),
        ):
            if value not in known:
                raise ConfigError(f"config.json: {key} {value!r} is not supported; it may be {' or '.join(known)}")
        if self.n_routed_experts:
            check_groups(self.n_routed_experts, self.router(self.num_experts_per_tok or 0))


def score_gain(rope: RopePlan) -> float:
    """Returns the factor of the attention scores in a model with an extended context.

    It is the square of 0.1 * mscale_all_dim * ln(factor) + 1, which the rotary embedding leaves out (Peng et al.,
    "YaRN", 2023, section 3.4).
    """
    numbers = rope.parameters
    weight, factor = numbers.get("mscale_all_dim"), numbers.get("factor", 1.0)
    if numbers["rope_type"] == "default" or not weight or factor <= 1:
        return 1.0
    return float(0.1 * weight * math.log(factor) + 1.0) ** 2


def check_groups(experts: int, router: RouterPlan) -> None:
    """Raise ConfigError unless a token can have `top_k` experts of the groups that are kept."""
    check_experts(router.top_k, experts, "n_routed_experts")
    if router.groups < 1 or experts % router.groups:
        raise ConfigError(f"config.json: {experts} experts make no {router.groups} groups of one size (n_group)")
    size = experts // router.groups
    if not 1 <= router.kept_groups <= router.groups or router.kept_groups * size < router.top_k:
        raise ConfigError(
            f"config.json: {router.kept_groups} (topk_group) of {router.groups} groups (n_group) of {size} experts "
            f"do not hold the {router.top_k} experts of a token (num_experts_per_tok)"
        )
    if router.kind == "sigmoid" and router.kept_groups < router.groups and size < 2:
        raise ConfigError(f"config.json: groups (n_group) are ranked by their best two experts, and have {size}")


IN_GROUPS = "group_limited_greedy"


class DeepseekV2Config(DeepseekConfig, frozen=True, kw_only=True):
    """DeepSeek-V2, V2-Lite and V2.5: probabilities of experts, of all or of a few groups.

    `norm_topk_prob` is refused: the models' own code and transformers take it differently, and none sets it.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_experts": "n_routed_experts"}
    topk_methods: ClassVar[tuple[str, ...]] = ("greedy", IN_GROUPS)
    scoring: ClassVar[str] = "softmax"

    max_position_embeddings: Positions = 2048
    n_routed_experts: Count | None = 64
    n_shared_experts: Count | None = 2
    moe_intermediate_size: Width = 1407
    norm_topk_prob: bool | None = None

    def router(self, top_k: int) -> RouterPlan:
        grouped = self.method == IN_GROUPS
        return RouterPlan(
            kind="softmax",
            top_k=top_k,
            renormalize=False,
            groups=(self.n_group or 0) if grouped else 1,
            kept_groups=(self.topk_group or 0) if grouped else 1,
            scale=self.routed_scaling_factor,
            float32=True,
        )

    def check(self) -> None:
        super().check()
        if self.norm_topk_prob:
            raise ConfigError(
                "config.json: norm_topk_prob is not supported for DeepSeek-V2, whose own code then leaves out "
                "routed_scaling_factor, while transformers ignores it; no published checkpoint sets it"
            )


class DeepseekV3Config(DeepseekConfig, frozen=True, kw_only=True):
    """DeepSeek-V3, V3.1 and R1, and what shares their body, as Kimi K2 and Moonlight: experts with scores of their own.

    Layers that predict further tokens (`num_nextn_predict_layers`) may be in a checkpoint and are not loaded.
    """

    other_names: ClassVar[Mapping[str, str]] = {
        "num_local_experts": "n_routed_experts",
        "num_mtp_layers": "num_nextn_predict_layers",
    }
    topk_methods: ClassVar[tuple[str, ...]] = ("noaux_tc",)
    scoring: ClassVar[str] = "sigmoid"

    max_position_embeddings: Positions = 4096
    n_routed_experts: Count | None = 256
    n_shared_experts: Count | None = 1
    num_experts_per_tok: Count | None = 8
    first_k_dense_replace: Count | None = 3
    n_group: Count | None = 8
    topk_group: Count | None = 4
    norm_topk_prob: bool | None = True
    routed_scaling_factor: Factor = 2.5
    rope_interleave: bool | None = True
    num_nextn_predict_layers: Count | None = 1

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), unused_layers=self.num_nextn_predict_layers or 0)

    @property
    def interleaved(self) -> bool:
        return bool(self.rope_interleave)

    def router(self, top_k: int) -> RouterPlan:
        return RouterPlan(
            kind="sigmoid",
            top_k=top_k,
            renormalize=bool(self.norm_topk_prob),
            groups=1 if self.n_group is None else self.n_group,
            kept_groups=1 if self.topk_group is None else self.topk_group,
            scale=self.routed_scaling_factor,
            float32=True,
            corrected=True,
        )
