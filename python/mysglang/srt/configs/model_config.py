"""ModelConfig: what a model is, read once from its config.json and generation_config.json, and frozen.

Plain JSON: no torch, no transformers, no code of the model's own. The front reads it for lengths and ids, the model
executor for shapes. Both spellings of transformers 4 and 5 are understood.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from mysglang.srt.configs.architectures import ARCHITECTURES, Architecture
from mysglang.srt.configs.encoder_config import EncoderConfig, encoder_config
from mysglang.srt.configs.pooling_config import PoolingConfig, is_sentence_encoder, pooling_config
from mysglang.srt.configs.rope_config import longest_context, rope_parameters
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import read_json, read_json_if_there, resolve_model_path
from mysglang.srt.utils.plain_files import is_there

DTYPES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}

# Bounds of what is read, each some powers of two above the largest known model. What a checkpoint holds and a machine
# has is compared later (`configs/checkpoint_sizes.py`); these only keep what is computed from them small.
_Layers = Annotated[int, msgspec.Meta(ge=1, le=1 << 12)]
_Heads = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]
_HeadDim = Annotated[int, msgspec.Meta(ge=1, le=1 << 14)]
_Width = Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
_Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
_Positions = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]

MAX_EOS_IDS = 1024
"""Entries of a list of eos_token_id. The largest known lists have below ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The facts of one model. Lengths in tokens."""

    path: str
    """The directory with the weights and the tokenizer."""
    architecture: str
    """One of `ARCHITECTURES`."""
    hf: dict[str, Any]
    """config.json as it stands, overrides applied."""
    generation_config: dict[str, Any]
    """generation_config.json, empty if there is none."""
    dtype: str
    """bfloat16, float16 or float32: of the weights and the computation."""
    context_len: int
    """Positions of one request, prompt and output together."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_act: str
    rms_norm_eps: float
    attention_bias: bool
    mlp_bias: bool
    tie_word_embeddings: bool
    windows: tuple[int | None, ...]
    """Per layer: keys that a query sees, itself included; None for all."""
    rope_parameters: dict[str, Any]
    """rope_type, rope_theta and the numbers of the scaling."""
    eos_token_ids: tuple[int, ...]
    """Of config.json and generation_config.json together."""
    pooling: PoolingConfig | None = None
    """How a vector is made of a prompt; None for a model that generates."""
    encoder: EncoderConfig | None = None
    """What is particular to an encoder; None for a decoder."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """What was laid over config.json."""

    @property
    def needs_whole_prompts(self) -> bool:
        """Whether a prompt may neither be cut into chunks nor begin with what was computed for another."""
        return self.encoder is not None or (self.pooling is not None and self.pooling.needs_whole_prompts)

    @classmethod
    def from_path(
        cls,
        path: str,
        *,
        dtype: str = "auto",
        context_length: int | None = None,
        overrides: dict[str, Any] | None = None,
        is_embedding: bool = False,
    ) -> ModelConfig:
        """Read the model at `path` (a directory or a Hugging Face id).

        `overrides` replace keys of config.json. A decoder that could generate makes vectors if `is_embedding`, or if
        the files of sentence-transformers stand beside it. Raises ConfigError with a line that says what to do.
        """
        folder = resolve_model_path(path)
        if not is_there(folder / "config.json"):
            raise ConfigError(f"{folder} has no config.json; give the directory of a model in Hugging Face format")
        hf = read_json(folder / "config.json") | (overrides or {})
        generation_config = read_json_if_there(folder / "generation_config.json")
        name, architecture = _architecture(hf, embedding=is_embedding or is_sentence_encoder(folder))
        facts = _facts(hf, architecture)
        rope = rope_parameters(hf, facts.max_position_embeddings)
        if is_embedding and architecture.task == "generate":
            raise ConfigError(f"--is-embedding: {name} cannot make vectors here; leave it out")
        pooling = None if architecture.task == "generate" else pooling_config(folder, hf, architecture)
        encoder = None
        longest = longest_context(rope, facts.max_position_embeddings)
        if architecture.encoder:
            encoder = encoder_config(hf, positions_after_padding=architecture.positions_after_padding)
            longest = encoder.num_positions - encoder.first_position
        return cls(
            path=str(folder),
            architecture=name,
            hf=hf,
            generation_config=generation_config,
            dtype=_dtype(dtype, facts),
            context_len=_context_len(context_length, longest, pooling),
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            intermediate_size=facts.intermediate_size,
            num_layers=facts.num_hidden_layers,
            num_heads=facts.num_attention_heads,
            num_kv_heads=facts.kv_heads,
            head_dim=facts.dim_of_head,
            hidden_act=facts.hidden_act,
            rms_norm_eps=facts.rms_norm_eps,
            attention_bias=facts.attention_bias,
            mlp_bias=facts.mlp_bias,
            tie_word_embeddings=facts.tie_word_embeddings,
            windows=_windows(facts, architecture),
            rope_parameters=rope,
            eos_token_ids=_eos_token_ids(facts.vocab_size, hf, generation_config),
            pooling=pooling,
            encoder=encoder,
            overrides=overrides or {},
        )


class _Facts(msgspec.Struct, frozen=True):
    """The keys of config.json that are read, with their types; unknown keys are somebody else's."""

    vocab_size: _Vocabulary
    hidden_size: _Width
    intermediate_size: _Width
    num_hidden_layers: _Layers
    num_attention_heads: _Heads
    max_position_embeddings: _Positions
    num_key_value_heads: _Heads | None = None
    head_dim: _HeadDim | None = None
    hidden_act: str = "silu"
    rms_norm_eps: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1e-6
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    sliding_window: _Positions | None = None
    use_sliding_window: bool = False
    max_window_layers: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)] = 0
    layer_types: list[str] | None = None
    torch_dtype: str | None = None
    dtype: str | None = None

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def dim_of_head(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


def _architecture(hf: dict[str, Any], *, embedding: bool) -> tuple[str, Architecture]:
    names = hf.get("architectures") or []
    if not isinstance(names, list) or not names:
        raise ConfigError(
            'config.json names no architecture; add it, for example "architectures": ["LlamaForCausalLM"]'
        )
    if hf.get("auto_map"):
        raise ConfigError(
            "config.json asks for code that comes with the model (auto_map), and mysglang never runs such code; "
            "choose a checkpoint of a built-in architecture: " + ", ".join(ARCHITECTURES)
        )
    if hf.get("quantization_config") or hf.get("compression_config"):
        raise ConfigError("the checkpoint is quantized, which is not supported; choose the one in bfloat16 or float16")
    for name in names:
        if isinstance(name, str) and name in ARCHITECTURES:
            headless = ARCHITECTURES[name].embedding if embedding else None
            return headless or name, ARCHITECTURES[headless or name]
    listed = ", ".join(str(name) for name in names)
    raise ConfigError(f"architecture {listed} is not supported; supported are " + ", ".join(ARCHITECTURES))


def _facts(hf: dict[str, Any], architecture: Architecture) -> _Facts:
    try:
        facts = msgspec.convert({**architecture.defaults, **hf}, _Facts)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {error}") from error
    if facts.num_attention_heads % facts.kv_heads:
        raise ConfigError(
            f"config.json: {facts.num_attention_heads} attention heads cannot share {facts.kv_heads} key-value heads"
        )
    if facts.head_dim is None and facts.hidden_size % facts.num_attention_heads:
        raise ConfigError(
            f"config.json: hidden_size {facts.hidden_size} is no multiple of its {facts.num_attention_heads} attention "
            "heads, and head_dim is not given"
        )
    if facts.dim_of_head % 2:
        raise ConfigError(f"config.json: head_dim {facts.dim_of_head} must be even for the rotary embedding")
    return facts


def _dtype(wanted: str, facts: _Facts) -> str:
    """`auto` is the checkpoint's own, but float32 becomes bfloat16: half the memory at little loss."""
    if wanted == "auto":
        stored = (facts.dtype or facts.torch_dtype or "bfloat16").removeprefix("torch.")
        return "bfloat16" if stored in ("float32", "float") else _dtype(stored, facts)
    if wanted not in DTYPES:
        raise ConfigError(f"dtype {wanted} is not supported; choose auto or one of " + ", ".join(DTYPES))
    return DTYPES[wanted]


def _context_len(wanted: int | None, longest: int, pooling: PoolingConfig | None) -> int:
    if wanted is None:
        trained = pooling.max_length if pooling is not None else None
        return longest if trained is None else min(trained, longest)
    if wanted < 1:
        raise ConfigError(f"context_length must be at least 1, not {wanted}")
    if wanted > longest:
        raise ConfigError(
            f"context_length {wanted} is more than the {longest} positions of the model; lower it, or override "
            "rope_scaling or max_position_embeddings of its config.json if you know that the model can do it"
        )
    return wanted


def _windows(facts: _Facts, architecture: Architecture) -> tuple[int | None, ...]:
    layers = range(facts.num_hidden_layers)
    match architecture.sliding:
        case "none":
            slides = [False for _ in layers]
        case "all":
            slides = [True for _ in layers]
        case "some":
            types = facts.layer_types
            if types is not None and len(types) != len(layers):
                raise ConfigError(f"config.json: {len(types)} layer_types for {len(layers)} layers")
            chosen = [types[i] == "sliding_attention" if types else i >= facts.max_window_layers for i in layers]
            slides = [facts.use_sliding_window and slide for slide in chosen]
    return tuple(facts.sliding_window if slide else None for slide in slides)


def _eos_token_ids(vocab_size: int, *configs: dict[str, Any]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for config in configs:
        value = config.get("eos_token_id")
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if len(ids) > MAX_EOS_IDS:
            raise ConfigError(f"eos_token_id lists {len(ids)} ids, and at most {MAX_EOS_IDS} are read")
        if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
            raise ConfigError(f"eos_token_id must be a token id or a list of them, not {value!r}")
        # An id that the model cannot produce ends nothing, and whoever edits logits by it would write outside them.
        found |= dict.fromkeys(id_ for id_ in ids if id_ < vocab_size)
    return tuple(found)
