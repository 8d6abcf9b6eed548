"""ModelConfig: what a model is, read once from its config.json and generation_config.json, and frozen.

Plain JSON: no torch, no transformers, no code of the model's own. The front reads it for lengths and ids, the model
executor for shapes. Both spellings of transformers 4 and 5 are understood.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

from mysglang.srt.configs.architectures import ARCHITECTURES, FOREIGN, Architecture, find_architecture
from mysglang.srt.configs.decoder_config import DecoderConfig, Layers, Positions, Vocabulary, Width
from mysglang.srt.configs.encoder_config import EncoderConfig, encoder_config
from mysglang.srt.configs.foreign import ENDINGS, ModelImpl, computing_keys, names_in_transformers, plain_names
from mysglang.srt.configs.kv_cache_scheme import quantizes_only_kv
from mysglang.srt.configs.layer_plan import DecoderPlan, RopePlan
from mysglang.srt.configs.pooling_config import DenseConfig, PoolingConfig, is_sentence_encoder, pooling_config
from mysglang.srt.configs.rope_config import longest_context, overridden, rope_parameters, rotary_part
from mysglang.srt.configs.unserved import MAX_NAME_CHARS, why_never, why_unserved
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import resolve_model_path
from mysglang.srt.utils.json_errors import in_words
from mysglang.srt.utils.model_source import model_source

DTYPES = {
    "half": "float16",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "float": "float32",
    "float32": "float32",
}

MLX = "quantization"
QUANTIZATION = ("quantization_config", "compression_config", MLX)
"""Keys that describe quantized weights. The last one is in checkpoints of MLX."""

DTYPE_KEYS = ("dtype", "torch_dtype")

CONFIG, GENERATION_CONFIG = "config.json", "generation_config.json"

OF_THE_WHOLE = ("architectures", "model_type", "auto_map", *QUANTIZATION)
"""Keys that are read where they stand, also in a config.json with a `text_config`."""

BY_LAYER = "per_layer_config"
"""Key of transformers 5 for values that differ in some layers. Any architecture may have it."""

MAX_EOS_IDS = 1024
"""Entries of a list of eos_token_id. The largest known lists have below ten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The facts of one model. Lengths in tokens."""

    path: str
    """The directory with the weights and the tokenizer, or the GGUF file that holds both."""
    architecture: str
    """Architecture as config.json names it; for vectors, the same name without its head."""
    served_as: Architecture
    """The architecture's row, which names the class that computes it."""
    hf: dict[str, Any]
    """The keys of config.json, with those of `text_config` merged in and overrides applied."""
    generation_config: dict[str, Any]
    """generation_config.json, empty if there is none."""
    dtype: str
    """bfloat16, float16 or float32: of the weights and the computation."""
    context_len: int
    """Positions of one request, prompt and output together."""
    vocab_size: int
    hidden_size: int
    num_layers: int
    eos_token_ids: tuple[int, ...]
    """End-of-text ids of config.json and generation_config.json together."""
    pooling: PoolingConfig | None = None
    """How a vector is made of a prompt; None for a model that generates."""
    encoder: EncoderConfig | None = None
    """Config of an encoder; None for a decoder."""
    decoder: DecoderPlan | None = None
    """Plan of a decoder; None for an encoder, and for a decoder whose layers are transformers' code."""
    inside: str | None = None
    """The module that holds the decoder in a checkpoint of several models; see `Architecture`."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Keys that replace those of config.json."""

    @property
    def plan(self) -> DecoderPlan:
        """The decoder's plan. The model must be a decoder of our own."""
        assert self.decoder is not None, f"{self.architecture} has no plan"
        return self.decoder

    @property
    def foreign(self) -> dict[str, Any] | None:
        """Keys that decide how transformers' code computes the model; None if our own code computes it."""
        return computing_keys(self.hf) if self.served_as.foreign else None

    @property
    def weight_prefixes(self) -> tuple[str, ...]:
        """Possible prefixes of the decoder's tensor names in its checkpoint; the first that fits is used."""
        if self.inside is None:
            # A decoder that was saved alone may still be called as it was inside of a larger model.
            return ("model.language_model.", "model.", "backbone.")
        return (f"model.{self.inside}.", f"{self.inside}.model.", f"{self.inside}.")

    def reads(self, tensor: str) -> bool:
        """True if a tensor of this name may belong to the decoder; otherwise it belongs to another model in the same
        checkpoint.
        """
        return self.inside is None or tensor.startswith((*self.weight_prefixes, "lm_head."))

    @property
    def needs_whole_prompts(self) -> bool:
        """True if a prompt can neither be cut into chunks nor begin with a cached prefix."""
        if self.encoder is not None or self.decodes_both_ways:
            return True
        return self.pooling is not None and self.pooling.needs_whole_prompts

    @property
    def decodes_both_ways(self) -> bool:
        """True for a decoder whose tokens also see the tokens after them."""
        return self.decoder is not None and self.decoder.bidirectional

    @property
    def dense(self) -> tuple[DenseConfig, ...]:
        """The modules of sentence-transformers that pooled vectors pass through, in order."""
        return () if self.pooling is None else self.pooling.dense

    @classmethod
    def from_path(
        cls,
        path: str,
        *,
        dtype: str = "auto",
        context_length: int | None = None,
        overrides: dict[str, Any] | None = None,
        is_embedding: bool = False,
        impl: ModelImpl = "auto",
    ) -> ModelConfig:
        """Read the model at `path` (a directory or a Hugging Face id).

        `overrides` replace keys of config.json. A decoder that could generate makes vectors if `is_embedding`, or if
        the files of sentence-transformers are beside it. Raises ConfigError with a line that says what to do.
        """
        folder = resolve_model_path(path)
        source = model_source(folder)
        given = overrides or {}
        nested = {key: given[key] for key in ("text_config",) if key in given}
        hf = overridden(of_text(source.config() | nested), given)
        generation_config = source.generation_config()
        name, architecture = _architecture(hf, impl, embedding=is_embedding or is_sentence_encoder(folder))
        if is_embedding and architecture.task == "generate":
            raise ConfigError(f"--is-embedding: {name} cannot make vectors here; leave it out")
        if architecture.foreign:
            _check_own_facts(name, hf, dtype)
        family = architecture.config
        hf = hf if family is None else family.complete(hf)
        facts = _read(plain_names(hf) if architecture.foreign else hf, _Facts)
        stored = _dtype(dtype, facts)
        decoder, encoder = None, None
        if architecture.foreign:
            longest = _read(plain_names(hf), _Longest).max_position_embeddings
        elif family is not None:
            decoder, longest = _decoder(hf, family, stored)
            if decoder.bidirectional and architecture.task == "generate":
                raise ConfigError(
                    "config.json: use_bidirectional_attention is set, so the model generates no text, and attention "
                    "of a model that does is causal here only; with --is-embedding it makes vectors"
                )
        else:
            encoder = encoder_config(hf, positions_after_padding=architecture.positions_after_padding)
            longest = encoder.num_positions - encoder.first_position
        pooling = None if architecture.task == "generate" else pooling_config(folder, hf, architecture)
        return cls(
            path=str(folder),
            architecture=name,
            served_as=architecture,
            hf=hf,
            generation_config=generation_config,
            dtype=stored,
            context_len=_context_len(context_length, longest, pooling),
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            num_layers=facts.num_hidden_layers,
            eos_token_ids=_eos_token_ids(facts.vocab_size, {CONFIG: hf, GENERATION_CONFIG: generation_config}),
            pooling=pooling,
            encoder=encoder,
            decoder=decoder,
            inside=architecture.inside,
            overrides=given,
        )


def of_text(hf: dict[str, Any]) -> dict[str, Any]:
    """Returns the keys of config.json together with those of `text_config`, where models of several kinds nest them."""
    nested = hf.get("text_config")
    if nested is None:
        return hf
    if not isinstance(nested, dict):
        raise ConfigError("config.json: text_config must be an object")
    whole = {key: hf[key] for key in OF_THE_WHOLE if key in hf}
    return {**hf, **nested, **whole}


class _Facts(msgspec.Struct, frozen=True):
    """The keys of config.json that are read, with their types; other keys are ignored."""

    vocab_size: Vocabulary
    hidden_size: Width
    num_hidden_layers: Layers
    torch_dtype: str | None = None
    dtype: str | None = None


class _Longest(msgspec.Struct, frozen=True):
    """The longest context, in config.json of a model whose family has no plan."""

    max_position_embeddings: Positions


def _architecture(hf: dict[str, Any], impl: ModelImpl, *, embedding: bool) -> tuple[str, Architecture]:
    names = hf.get("architectures") or []
    if isinstance(names, str):
        quoted = json.dumps(names[:MAX_NAME_CHARS])
        raise ConfigError(f"config.json: architectures must be a list, not a text; write [{quoted}]")
    if not isinstance(names, list) or not names:
        raise ConfigError(
            'config.json names no architecture; add it, for example "architectures": ["LlamaForCausalLM"]'
        )
    given, names = names, [name for name in names if isinstance(name, str)]
    rows = {} if impl == "transformers" else {name: row for name in names if (row := find_architecture(name))}
    known = next(iter(rows), None)
    if hf.get("auto_map") and not (known is not None and rows[known].replaces_code):
        raise ConfigError(
            "config.json asks for code that comes with the model (auto_map), and mysglang never runs such code; "
            f"{_without_code(known or next(filter(names_in_transformers().__contains__, names), None))}"
        )
    if _quantization(hf) and not quantizes_only_kv(hf):
        raise ConfigError(f"the checkpoint is quantized{_method(hf)}, which is not supported; {_instead(hf)}")
    if known is not None:
        headless = rows[known].embedding if embedding else None
        row = rows[known] if headless is None else find_architecture(headless)
        if row is None:  # Built-in families have both; a package's row may name anything.
            raise ConfigError(f"the row of {known} says that {headless} makes its vectors, and there is no {headless}")
        return headless or known, row
    table = names_in_transformers()
    generating = [name for name in names if name.endswith(ENDINGS) and (name in table or not table)]
    never = [name for name in generating if why_never(name)]
    if impl != "mysglang" and generating and not never:
        if embedding:
            raise ConfigError(
                f"{generating[0]} is served by transformers' code, by which models only generate, and it is to make "
                "vectors (--is-embedding, or files of sentence-transformers beside it)"
            )
        return generating[0], FOREIGN
    if impl == "mysglang" and generating and not never:
        raise ConfigError(
            f"--model-impl mysglang: no code of mysglang computes {generating[0]}; leave it out to have the model "
            "computed by transformers' code, if that can be served"
        )
    if impl == "transformers" and not never:
        raise ConfigError(
            f"--model-impl transformers is for causal language models of the transformers library that generate text, "
            f"and {', '.join(names)[:MAX_NAME_CHARS]} is none"
        )
    raise ConfigError(why_unserved(given, hf, ARCHITECTURES))


def _without_code(known: str | None) -> str:
    """Returns advice for a checkpoint that names code of its own. known: its architecture, if that is served without
    this code.
    """
    if known is None:
        return "choose a checkpoint of a built-in architecture (`mysglang models` lists them)"
    return (
        f"if you know that the checkpoint is a plain {known}, serve it without this code: "
        """--json-model-override-args '{"auto_map": null}'"""
    )


def _quantization(hf: dict[str, Any]) -> object:
    """Returns what config.json says of quantized weights; a value that is false if they are plain."""
    return next((hf[key] for key in QUANTIZATION if hf.get(key)), None)


def _method(hf: dict[str, Any]) -> str:
    """Returns the method of the quantization in brackets, if config.json names it. MLX has a key of its own instead of
    a name.
    """
    given = _quantization(hf)
    method = given.get("quant_method", "mlx" if hf.get(MLX) else None) if isinstance(given, dict) else None
    return f" ({method[:MAX_NAME_CHARS]})" if isinstance(method, str) else ""


def _instead(hf: dict[str, Any]) -> str:
    """Returns advice for a quantized checkpoint: which model to use instead."""
    if _method(hf) == " (mxfp4)":
        return (
            "its experts are four-bit numbers with shared scales, which no kernel here reads yet: choose a copy of "
            "the model in bfloat16, such as unsloth/gpt-oss-20b-BF16 or unsloth/gpt-oss-120b-BF16"
        )
    return "choose the one in bfloat16 or float16"


Keys = TypeVar("Keys", bound=msgspec.Struct)


def _read(hf: dict[str, Any], kind: type[Keys]) -> Keys:
    try:
        return msgspec.convert(hf, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {in_words(error)}") from error


def _decoder(hf: dict[str, Any], family: type[DecoderConfig], dtype: str) -> tuple[DecoderPlan, int]:
    """Returns the plan, and the positions that the model can use."""
    config = _read(hf, family)
    if hf.get(BY_LAYER) and BY_LAYER not in family.__struct_fields__:
        raise ConfigError(
            f"config.json: {BY_LAYER} is not supported for this architecture, whose layers all have the same keys here"
        )
    if dtype == "float16" and not config.float16:
        raise ConfigError("activations of this model overflow in float16; use --dtype bfloat16 or float32")
    positions, theta = config.max_position_embeddings, config.usual_theta
    if family.usual_rope and not hf.get("rope_scaling") and hf.get("rope_parameters") is None:
        hf = hf | {"rope_scaling": dict(family.usual_rope)}
    rope = rope_parameters(hf, positions, usual_theta=theta, layer_type=config.rope_of_layers)
    part = rotary_part(hf, config.rotary_part)
    longest = positions if config.positions_are_scaled else longest_context(rope, positions)
    plan = config.plan(RopePlan(rope, part, config.rotary_interleaved))
    if not hf.get("is_causal", True) and not plan.bidirectional:
        raise ConfigError(
            f"config.json: is_causal is {json.dumps(hf['is_causal'])}, and attention is causal here only; vectors of "
            "such a model would be wrong"
        )
    return plan, longest


def _check_own_facts(name: str, hf: dict[str, Any], dtype: str) -> None:
    """Raises ConfigError for a model that transformers' code is asked for and cannot compute here, as far as our own
    family of that name shows. Its keys of sizes are asked for after this, since other keys would not help.
    """
    family = ARCHITECTURES[name].config if name in ARCHITECTURES else None
    if family is None:
        return
    try:
        complete = family.complete(hf)
        plan, _ = _decoder(complete, family, "bfloat16")
        facts = _read(complete, _Facts)
    except ConfigError:
        return  # What our code does not read, transformers' may.
    if plan.has_states:
        raise ConfigError(
            f"{name} is not served by transformers' code: its layers keep a state for each request, which only layers "
            "of our own do here; leave out --model-impl transformers"
        )
    if _dtype(dtype, facts) == "float16":
        _decoder(complete, family, "float16")


def _dtype(wanted: str, facts: _Facts) -> str:
    """Returns the dtype of computation. `auto` means the checkpoint's own dtype, except that float32 becomes bfloat16,
    which halves the memory at little loss. bfloat16 is also taken if config.json names no dtype.
    """
    known = ", ".join(DTYPES)
    if wanted == "auto":
        key = "dtype" if facts.dtype else "torch_dtype"
        stored = (facts.dtype or facts.torch_dtype or "auto").removeprefix("torch.")
        if stored in ("auto", "float32", "float"):
            return "bfloat16"
        if stored not in DTYPES:
            raise ConfigError(f"config.json: {key} {stored} is not supported; choose one of {known} with --dtype")
        return DTYPES[stored]
    if wanted not in DTYPES:
        raise ConfigError(f"--dtype {wanted} is not supported; choose auto or one of {known}")
    return DTYPES[wanted]


def _context_len(wanted: int | None, longest: int, pooling: PoolingConfig | None) -> int:
    if wanted is None:
        trained = pooling.max_length if pooling is not None else None
        return longest if trained is None else min(trained, longest)
    if wanted < 1:
        raise ConfigError(f"--context-length must be at least 1, got {wanted}")
    if wanted > longest:
        raise ConfigError(
            f"--context-length {wanted} is more than the {longest} positions of the model; lower it, or override "
            "rope_scaling or max_position_embeddings of its config.json if you know that the model can do it"
        )
    return wanted


def _eos_token_ids(vocab_size: int, configs: dict[str, dict[str, Any]]) -> tuple[int, ...]:
    # An id outside the vocabulary ends nothing, and a logits processor that edits it would write out of bounds.
    found = (id_ for file, keys in configs.items() for id_ in listed_eos_ids(keys, file) if id_ < vocab_size)
    return tuple(dict.fromkeys(found))


def listed_eos_ids(keys: dict[str, Any], file: str) -> list[int]:
    """Returns the end-of-text ids of a file, as it lists them. Raises ConfigError if they are none. keys: what the file
    holds.
    """
    value = keys.get("eos_token_id")
    ids = [] if value is None else value if isinstance(value, list) else [value]
    if len(ids) > MAX_EOS_IDS:
        raise ConfigError(f"{file}: eos_token_id lists {len(ids)} ids, and at most {MAX_EOS_IDS} are read")
    if not all(isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0 for id_ in ids):
        raise ConfigError(f"{file}: eos_token_id must be a token id or a list of them, not {value!r}")
    return ids
