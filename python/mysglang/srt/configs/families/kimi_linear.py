"""Kimi Linear: delta nets with a decay for each channel, between them latent attention without positions, and experts
as in DeepSeek-V3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import (
    FULL,
    Count,
    Factor,
    HeadDim,
    Heads,
    Positions,
    Width,
    check_layer_types,
    check_served,
)
from mysglang.srt.configs.families.deepseek import DeepseekV3Config
from mysglang.srt.configs.layer_plan import AttentionPlan, DecoderPlan, MixerPlan, MixturePlan, MlpPlan, RopePlan
from mysglang.srt.configs.mamba_config import LINEAR, Kernel, check_attends
from mysglang.srt.configs.mixer_plan import KimiDeltaPlan
from mysglang.srt.errors import ConfigError

OTHER_NAMES = {
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
    "num_expert_group": "n_group",
    "num_local_experts": "n_routed_experts",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts",
}
"""Key of published files, or of transformers -> the key here. If a file has two for the same, the later one counts."""
LINEAR_KEYS = {"head_dim": "linear_head_dim", "num_heads": "linear_num_heads"}
LINEAR_KEYS |= {"short_conv_kernel_size": "linear_conv_kernel_dim"}
"""Key of `linear_attn_config` -> its name here, and in files of transformers."""
DENSE, SPARSE = "dense", "sparse"


class KimiLinearConfig(DeepseekV3Config, frozen=True, kw_only=True):
    """Published files name the layers, counted from one, in `linear_attn_config`; those of transformers have
    `layer_types` and `mlp_layer_types`. Nothing is rotated, and embeddings are never tied.
    """

    other_names: ClassVar[Mapping[str, str]] = OTHER_NAMES

    max_position_embeddings: Positions = 1 << 20
    q_lora_rank: Width | None = None
    rms_norm_eps: float = 1e-5
    n_group: Count | None = 1
    topk_group: Count | None = 1
    moe_intermediate_size: Width = 1024
    routed_scaling_factor: Factor = 2.446
    num_nextn_predict_layers: Count | None = 0
    layer_types: list[str]
    mlp_layer_types: list[str]
    linear_head_dim: HeadDim = 128
    linear_num_heads: Heads = 32
    linear_conv_kernel_dim: Kernel = 4
    mla_use_nope: bool | None = None
    moe_router_activation_func: str | None = None

    @classmethod
    def complete(cls, hf: dict[str, Any]) -> dict[str, Any]:
        """Returns the keys by their names here, and the types of all layers. Raises ConfigError."""
        if hf.get("moe_renormalize", True) is None:
            raise ConfigError("config.json: moe_renormalize must be true or false, not null")
        linear, count = hf.get("linear_attn_config") or {}, hf.get("num_hidden_layers")
        if not isinstance(linear, dict) or type(count) is not int:
            raise ConfigError("config.json: linear_attn_config must be an object, and num_hidden_layers a number")
        given = {name: linear[key] for key, name in LINEAR_KEYS.items() if key in linear}
        if hf.get("layer_types") is None:
            attend = linear.get("full_attn_layers", range(5, count + 1, 4))
            given["layer_types"] = [FULL if layer + 1 in attend else LINEAR for layer in range(count)]
        if hf.get("mlp_layer_types") is None:
            dense = hf.get("first_k_dense_replace", 1)
            given["mlp_layer_types"] = [DENSE if layer < dense else SPARSE for layer in range(count)]
        return super().complete(hf) | given

    def plan(self, rope: RopePlan) -> DecoderPlan:
        # Latent attention has a projection of the same name, which is not stacked with others.
        types = enumerate(self.layer_types)
        queries = (f"layers.{index}.self_attn.{{}}" for index, kind in types if kind == LINEAR)
        renamed = tuple((each.format("q_proj"), each.format(KimiDeltaPlan.queries)) for each in queries)
        # Files of transformers name the dense MLPs so as well.
        aliases = (("block_sparse_moe", "mlp"),)
        return replace(super().plan(rope), renamed=renamed, aliases=aliases, tied_embeddings=False)

    def mixer(self, index: int, rope: RopePlan) -> MixerPlan:
        if self.layer_types[index] == FULL:
            return self.attention(index, rope)
        return KimiDeltaPlan(
            heads=self.linear_num_heads,
            head_dim=self.linear_head_dim,
            kernel=self.linear_conv_kernel_dim,
            norm=self.norm(),
        )

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        dim = self.qk_nope_head_dim + self.qk_rope_head_dim
        return replace(super().attention(index, rope), rope=None, scale=dim**-0.5)

    def mlp(self, index: int) -> MlpPlan:
        mlp = super().mlp(index)
        if isinstance(mlp, MixturePlan):
            return replace(mlp, field="num_experts", module="block_sparse_moe", parts=("w1", "w3", "w2"))
        return mlp

    def has_experts(self, index: int) -> bool:
        return self.mlp_layer_types[index] == SPARSE

    def check(self) -> None:
        super().check()
        check_layer_types(self.layer_types, self.num_hidden_layers, (FULL, LINEAR))
        check_layer_types(self.mlp_layer_types, self.num_hidden_layers, (DENSE, SPARSE))
        check_attends(FULL in self.layer_types)
        scores = self.moe_router_activation_func, "sigmoid"
        check_served({"mla_use_nope": (self.mla_use_nope, True), "moe_router_activation_func": scores})
        check_served({"hidden_act": (self.hidden_act, "silu")})
