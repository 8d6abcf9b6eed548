"""Hunyuan V1, dense and with experts: norms of heads that are turned already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from mysglang.srt.configs.decoder_config import Epsilon, Experts, Positions, check_experts, check_served
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import (
    AttentionPlan,
    DecoderPlan,
    MixturePlan,
    RopePlan,
    RouterPlan,
    SharedExpertPlan,
)
from mysglang.srt.errors import ConfigError

NAMES = (
    ("self_attn.query_layernorm", "self_attn.q_norm"),
    ("self_attn.key_layernorm", "self_attn.k_norm"),
    ("mlp.gate.wg", "mlp.gate"),
)


class HunyuanConfig(LlamaConfig, frozen=True, kw_only=True):
    """Hunyuan (dense). Models whose layers share keys and values (`use_cla`) are not supported."""

    carries_code: ClassVar[bool] = True

    max_position_embeddings: Positions = 2048
    rms_norm_eps: Epsilon = 1e-5
    use_cla: bool = False
    use_qk_norm: bool = True

    def plan(self, rope: RopePlan) -> DecoderPlan:
        return replace(super().plan(rope), renamed=NAMES)

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        return replace(super().attention(index, rope), qk_norm=self.norm(), qk_norm_turned=True)

    def check(self) -> None:
        super().check()
        # With use_cla layers share keys and values.
        check_served({"use_cla": (self.use_cla, False), "use_qk_norm": (self.use_qk_norm, True)})


class HunyuanMoeConfig(HunyuanConfig, frozen=True, kw_only=True):
    """Hunyuan with experts. Experts and the shared MLP have one size, `intermediate_size`. `moe_topk` may be a list, by
    layer.
    """

    other_names: ClassVar[Mapping[str, str]] = {"num_experts_per_tok": "moe_topk", "num_local_experts": "num_experts"}

    num_experts: Experts = 1
    moe_topk: Experts | list[Experts] = 1
    moe_intermediate_size: int | list[int] | None = None
    num_shared_expert: int | list[int] | None = None
    moe_layer_num_skipped: int | None = None

    def mlp(self, index: int) -> MixturePlan:
        return MixturePlan(
            experts=self.num_experts,
            intermediate_size=self.intermediate_size,
            activation=self.hidden_act,
            router=RouterPlan(kind="softmax", top_k=self.top_k(index), renormalize=True, float32=True),
            shared=SharedExpertPlan(
                intermediate_size=self.intermediate_size, name="shared_mlp", field="intermediate_size", gated=False
            ),
            size_field="intermediate_size",
        )

    def top_k(self, index: int) -> int:
        """Returns how many experts each token goes to in this layer."""
        return self.moe_topk[index] if isinstance(self.moe_topk, list) else self.moe_topk

    def check(self) -> None:
        super().check()
        if isinstance(self.moe_topk, list) and len(self.moe_topk) < self.num_hidden_layers:
            raise ConfigError(f"config.json: moe_topk has {len(self.moe_topk)} of {self.num_hidden_layers} layers")
        for index in range(self.num_hidden_layers):
            check_experts(self.top_k(index), self.num_experts, "num_experts")
        for key, value, served in (
            ("moe_intermediate_size", self.moe_intermediate_size, self.intermediate_size),
            ("num_shared_expert", self.num_shared_expert, 1),
            ("moe_layer_num_skipped", self.moe_layer_num_skipped, 0),
        ):
            for each in listed(value):
                check_served({key: (each, served)})


def listed(value: Any) -> Iterator[Any]:
    """Yields the values of a key that is one number for all layers, a list of them, or missing."""
    yield from value if isinstance(value, list) else () if value is None else (value,)
