"""Converts the metadata of a GGUF file to the keys of Hugging Face's config.json for the same model.

A family is a row in `FAMILIES`. What llama.cpp keeps in its code and not in the file (Gemma's window pattern, how
experts are weighed) stands here too, from llama.cpp's src/models and convert_hf_to_gguf.py.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.gguf.header import GgufHeader, GgufTensor
from mysglang.srt.utils.gguf.tensor_names import FOUR_NORMS, PLAIN, SHARED_EXPERT, Naming

LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""Rotary scaling of Llama 3.1 to 3.3, without the factor. A file holds only the result."""

LLAMA3_TOLERANCE = 1e-3
MOST = 1e12
"""Above every base and divisor of rotary frequencies that a model is known to have."""
MAX_FREQUENCIES = 1 << 13

USUAL: Mapping[str, float | bool] = {
    "attention.causal": True,
    "rope.scaling.attn_factor": 1.0,
    "rope.scaling.yarn_attn_factor": 1.0,
    "rope.scaling.yarn_ext_factor": 1.0,
}
"""Keys that llama.cpp reads in every architecture, with the only value that is served."""

USUAL_BASE = 10000.0
"""Base of rotary positions where a file has none, in every architecture of llama.cpp."""

EPSILON = "attention.layer_norm_rms_epsilon"
WINDOW = "attention.sliding_window"
GEMMA2_WINDOW = 4096
"""Tokens of a window in the first files of Gemma 2, which do not say it. llama.cpp assumes the same."""

POOLED_BY = (None, "mean", "cls", "last", "rank")
"""Ways to make one vector of a prompt, by their numbers in llama.cpp."""

_COMMON = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    EPSILON: "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}


class Facts:
    """The metadata of one model, read by key and type."""

    def __init__(self, header: GgufHeader, tensors: Mapping[str, GgufTensor]) -> None:
        """`tensors`: the tensors of all parts, by llama.cpp's names."""
        self._header = header
        self.metadata = header.metadata
        self.tensors = tensors
        self.architecture = self.text("general.architecture")

    def text(self, key: str) -> str:
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise ConfigError(f"{self._header.path}: the metadata key {key} must be a text, not {_shown(value)}")
        return value

    def of_model(self, key: str) -> Any:
        """Returns a number of the architecture, or None. A list of equal numbers, one for each layer, is that
        number.
        """
        value = self.metadata.get(f"{self.architecture}.{key}")
        if isinstance(value, list) and value and all(each == value[0] for each in value):
            value = value[0]
        if value is not None and not isinstance(value, int | float | str):
            raise ConfigError(
                f"{self._header.path}: {self.architecture}.{key} is {_shown(value)}, which is not supported"
            )
        return value

    def needed(self, key: str) -> Any:
        """Returns a number that must be present."""
        value = self.of_model(key)
        if value is None:
            raise ConfigError(f"{self._header.path} lacks the metadata key {self.architecture}.{key}")
        return value

    def number(self, key: str) -> int:
        """Returns a whole number that must be present."""
        value = self.needed(key)
        if type(value) is not int:
            raise self.refused(f"{self.architecture}.{key} must be a whole number, not {_shown(value)}")
        return value

    def heads(self) -> tuple[int, int]:
        """Returns the numbers of heads of queries and of keys."""
        first, second = "attention.head_count", "attention.head_count_kv"
        heads = self.number(first)
        kv_heads = heads if self.of_model(second) is None else self.number(second)
        for key, count in ((first, heads), (second, kv_heads)):
            if count < 1:
                raise self.refused(f"{self.architecture}.{key} must be at least 1, not {count}")
        return heads, kv_heads

    def token_id(self, name: str) -> int | None:
        """Returns the id of a token with a role, such as `eos`; None if the file names none."""
        key = f"tokenizer.ggml.{name}_token_id"
        value = self.metadata.get(key)
        if value is not None and type(value) is not int:
            # An end that is left out in silence makes answers that never end.
            raise self.refused(f"{key} must be the id of a token, not {_shown(value)}")
        return value

    def has(self, tensor: str) -> bool:
        return tensor in self.tensors

    def floats(self, tensor: GgufTensor) -> tuple[float, ...]:
        """Returns the values of a small tensor of F32."""
        if tensor.type.name != "F32" or math.prod(tensor.shape) > MAX_FREQUENCIES:
            raise ConfigError(f"{self._header.path}: tensor {tensor.name} is no short list of F32")
        with self._header.path.open("rb") as file:
            file.seek(tensor.begin)
            return struct.unpack(f"<{math.prod(tensor.shape)}f", file.read(tensor.end - tensor.begin))

    def refused(self, what: str) -> ConfigError:
        return ConfigError(f"{self._header.path}: {what}")


@dataclass(frozen=True, slots=True)
class Family:
    """One of llama.cpp's architectures."""

    hf_name: Callable[[Facts], str]
    """Value of `architectures` in config.json."""
    own: Callable[[Facts], dict[str, Any]]
    """Keys in addition to those of all decoders."""
    naming: Callable[[Facts], Naming]


def _nothing(_: Facts) -> dict[str, Any]:
    return {}


def _named(name: str) -> Callable[[Facts], str]:
    return lambda _: name


def _always(naming: Naming) -> Callable[[Facts], Naming]:
    return lambda _: naming


def _llama_name(facts: Facts) -> str:
    if facts.of_model("expert_count"):
        return "MixtralForCausalLM"
    return "MistralForCausalLM" if facts.of_model("attention.sliding_window") else "LlamaForCausalLM"


def _llama(facts: Facts) -> dict[str, Any]:
    found: dict[str, Any] = {
        "attention_bias": facts.has("blk.0.attn_output.bias"),
        "mlp_bias": facts.has("blk.0.ffn_down.bias"),
        "head_dim": facts.of_model("attention.key_length") or facts.of_model("rope.dimension_count"),
        "sliding_window": facts.of_model("attention.sliding_window"),
    }
    if facts.of_model("expert_count"):
        found |= {"num_local_experts": facts.number("expert_count")}
        found |= {"num_experts_per_tok": facts.number("expert_used_count")}
    return found


def _llama_naming(facts: Facts) -> Naming:
    if facts.of_model("expert_count"):
        module = "block_sparse_moe"
        return Naming(router=f"{module}.gate", experts=f"{module}.experts", parts=("w1", "w3", "w2"), permuted=True)
    return Naming(permuted=True)


def _experts(facts: Facts) -> dict[str, Any]:
    return {
        "num_experts": facts.number("expert_count"),
        "num_experts_per_tok": facts.number("expert_used_count"),
        "moe_intermediate_size": facts.number("expert_feed_forward_length"),
        "norm_topk_prob": True,
        # A layer of its own size where all have experts: nothing has this width.
        "intermediate_size": facts.of_model("feed_forward_length") or facts.number("expert_feed_forward_length"),
    }


def _qwen2_moe(facts: Facts) -> dict[str, Any]:
    shared = facts.number("expert_shared_feed_forward_length")
    return {**_experts(facts), "norm_topk_prob": False, "shared_expert_intermediate_size": shared}


def _gemma(facts: Facts, largest: int) -> dict[str, Any]:
    # The model of so many layers alone scales by the width of its heads as hidden_size has it.
    whole = facts.number("block_count") == largest
    heads = max(1, facts.number("attention.head_count"))
    head_dim = facts.number("attention.key_length")
    return {
        "query_pre_attn_scalar": facts.number("embedding_length") // heads if whole else head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
    }


def _gemma2(facts: Facts) -> dict[str, Any]:
    return {
        **_gemma(facts, 46),
        "sliding_window": GEMMA2_WINDOW if facts.of_model(WINDOW) is None else facts.number(WINDOW),
        "attn_logit_softcapping": facts.of_model("attn_logit_softcapping"),
        "final_logit_softcapping": facts.of_model("final_logit_softcapping"),
    }


def _gemma3(facts: Facts) -> dict[str, Any]:
    base = facts.of_model("rope.freq_base_swa")
    return {
        **_gemma(facts, 62),
        "sliding_window": facts.number(WINDOW),
        **_windows(facts),
        "final_logit_softcapping": facts.of_model("final_logit_softcapping"),
        "rope_local_base_freq": 10000.0 if base is None else base,
    }


def _windows(facts: Facts) -> dict[str, Any]:
    """Returns which layers of Gemma 3 have the window: a number of each layer, or how often one comes that has none.
    Older files leave the key out. Raises ConfigError.
    """
    key, count = "attention.sliding_window_pattern", facts.number("block_count")
    given = facts.metadata.get(f"{facts.architecture}.{key}")
    if isinstance(given, list):
        if len(given) != count or not all(isinstance(each, bool) for each in given):
            raise facts.refused(f"{facts.architecture}.{key} must be one true or false for each of {count} layers")
        return {"layer_types": ["sliding_attention" if each else "full_attention" for each in given]}
    return {"sliding_window_pattern": 6 if given is None else facts.number(key)}


_FOUR_NORMS = Naming(layer=FOUR_NORMS, one_more=True)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(_llama_name, _llama, _llama_naming),
    "qwen2": Family(_named("Qwen2ForCausalLM"), _nothing, _always(Naming())),
    "qwen2moe": Family(_named("Qwen2MoeForCausalLM"), _qwen2_moe, _always(Naming(layer={**PLAIN, **SHARED_EXPERT}))),
    "qwen3": Family(_named("Qwen3ForCausalLM"), _nothing, _always(Naming())),
    "qwen3moe": Family(_named("Qwen3MoeForCausalLM"), _experts, _always(Naming())),
    "gemma2": Family(_named("Gemma2ForCausalLM"), _gemma2, _always(_FOUR_NORMS)),
    "gemma3": Family(_named("Gemma3ForCausalLM"), _gemma3, _always(_FOUR_NORMS)),
}
"""Families by `general.architecture`."""


def family_of(facts: Facts) -> Family:
    """Checks the architecture. Raises ConfigError for one that is not supported."""
    if facts.architecture not in FAMILIES:
        raise facts.refused(
            f"the architecture {facts.architecture[:80]} is not supported as GGUF; supported are "
            + ", ".join(FAMILIES)
            + "; use the checkpoint in safetensors"
        )
    return FAMILIES[facts.architecture]


def config_json(facts: Facts) -> dict[str, Any]:
    """Returns the config.json of the same model. Raises ConfigError for a model that cannot be served."""
    family = family_of(facts)
    embedding = facts.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise facts.refused("there is no table token_embd.weight, so this is no model with text as input")
    keys = {hf: value for key, hf in _COMMON.items() if (value := facts.of_model(key)) is not None}
    head_dim, value_dim = facts.of_model("attention.key_length"), facts.of_model("attention.value_length")
    if head_dim != value_dim:
        raise facts.refused(f"keys of {head_dim} and values of {value_dim} numbers for each head are not supported")
    _check_positions(facts, head_dim)
    facts.needed(EPSILON)
    own = {key: value for key, value in family.own(facts).items() if value is not None or key == "sliding_window"}
    return {
        "architectures": [family.hf_name(facts)],
        "model_type": facts.architecture,
        "hidden_act": "silu",
        "vocab_size": embedding.shape[0],
        "tie_word_embeddings": not facts.has("output.weight"),
        # Values in float16 have more digits than bfloat16 keeps; what is rounded to few bits fits into either.
        "torch_dtype": "float16" if embedding.type.name == "F16" and "gemma" not in facts.architecture else "bfloat16",
        "rope_theta": USUAL_BASE,
        **keys,
        **own,
        **_rope(facts),
        **_ends(facts),
        **_pooling(facts),
    }


def _check_positions(facts: Facts, head_dim: object) -> None:
    """Raises ConfigError for keys that change how a file's positions count, in ways that no family here has."""
    rotated = facts.of_model("rope.dimension_count")
    if head_dim is None:
        head_dim = facts.number("embedding_length") // facts.heads()[0]
    if rotated is not None and rotated != head_dim:
        raise facts.refused(
            f"{facts.architecture}.rope.dimension_count is {_shown(rotated)}, and heads have {head_dim} numbers; only "
            "heads that turn whole are supported as GGUF"
        )
    for key, usual in USUAL.items():
        if (value := facts.of_model(key)) not in (None, usual):
            raise facts.refused(f"{facts.architecture}.{key} is {_shown(value)}, and only {usual} is supported as GGUF")


def _rope(facts: Facts) -> dict[str, Any]:
    """Returns how positions are scaled. As llama.cpp does, it takes a factor without a type as linear."""
    kind, factor = facts.of_model("rope.scaling.type"), facts.of_model("rope.scaling.factor")
    if factor is None:
        factor = facts.of_model("rope.scale_linear")  # of older files
    original = facts.of_model("rope.scaling.original_context_length")
    if (stored := facts.tensors.get("rope_freqs.weight")) is not None:
        return {"rope_scaling": _llama3(facts, facts.floats(stored))}
    match kind:
        case "none":
            return {}
        case None | "linear":
            return {} if factor in (None, 0, 1) else {"rope_scaling": {"rope_type": "linear", "factor": factor}}
        case "yarn":
            scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
            scaling |= {key: facts.of_model(f"rope.scaling.yarn_{key}") for key in ("beta_fast", "beta_slow")}
            return {"rope_scaling": {key: value for key, value in scaling.items() if value is not None}}
    raise facts.refused(f"rotary positions scaled as {_shown(kind)} are not supported as GGUF")


def _llama3(facts: Facts, divisors: tuple[float, ...]) -> dict[str, Any]:
    """Returns the parameters that give these divisors of the rotary frequencies. Raises ConfigError if none do."""
    scaling = {"rope_type": "llama3", "factor": max(divisors), **LLAMA3}
    theta = facts.of_model("rope.freq_base") or USUAL_BASE
    known = isinstance(theta, int | float) and 1 < theta <= MOST and all(1 <= divisor <= MOST for divisor in divisors)
    expected = _llama3_divisors(scaling, float(theta), len(divisors)) if known else ()
    near = (abs(one - other) <= LLAMA3_TOLERANCE * other for one, other in zip(divisors, expected, strict=known))
    if not known or not all(near):
        raise facts.refused("the divisors in rope_freqs.weight are not those of Llama 3, which are the only known ones")
    return scaling


def _llama3_divisors(scaling: Mapping[str, Any], theta: float, count: int) -> list[float]:
    """Computes the divisor of each rotary frequency as convert_hf_to_gguf.py does."""
    factor, low, high = scaling["factor"], scaling["low_freq_factor"], scaling["high_freq_factor"]
    length = scaling["original_max_position_embeddings"]
    divisors = []
    for index in range(count):
        wavelength = 2 * math.pi * theta ** (index / count)
        share = (length / wavelength - low) / (high - low)
        smooth = 1 / ((1 - share) / factor + share) if 0 <= share <= 1 else 1.0
        divisors.append(factor if wavelength > length / low else 1.0 if wavelength < length / high else smooth)
    return divisors


def _ends(facts: Facts) -> dict[str, Any]:
    """Returns the ids of tokens that begin and end a text."""
    ends = [number for name in ("eos", "eot", "eom") if (number := facts.token_id(name)) is not None]
    return {"bos_token_id": facts.token_id("bos"), "eos_token_id": ends or None}


def _pooling(facts: Facts) -> dict[str, Any]:
    """Returns how a vector is made of a prompt, which only matters to a model that makes vectors."""
    if facts.of_model("pooling_type") is None:
        return {}
    number = facts.number("pooling_type")
    mode = POOLED_BY[number] if 0 <= number < len(POOLED_BY) else str(number)
    return {} if mode is None else {"gguf.pooling_type": mode}


def _shown(value: object) -> str:
    return repr(value)[:80]
