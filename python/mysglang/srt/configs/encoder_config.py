"""EncoderConfig: the keys that config.json of a BERT-like encoder has in addition to those of all models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from mysglang.srt.configs.decoder_config import Heads, Width
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.json_errors import in_words


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """The facts of one encoder."""

    num_heads: int
    intermediate_size: int
    hidden_act: str
    layer_norm_eps: float
    type_vocab_size: int
    num_positions: int
    """Rows of the position table."""
    first_position: int
    """Row of a prompt's first token."""


class _Facts(msgspec.Struct, frozen=True):
    hidden_size: Width
    num_attention_heads: Heads
    intermediate_size: Width
    hidden_act: str = "gelu"
    layer_norm_eps: Annotated[float, msgspec.Meta(ge=0, le=1)] = 1e-12
    type_vocab_size: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 2
    max_position_embeddings: Annotated[int, msgspec.Meta(ge=1, le=1 << 31)] = 512
    pad_token_id: Annotated[int, msgspec.Meta(ge=0)] | None = None
    position_embedding_type: str | None = "absolute"
    is_decoder: bool = False


def encoder_config(hf: dict[str, Any], *, positions_after_padding: bool) -> EncoderConfig:
    """Reads the facts of an encoder. Raises ConfigError for keys that are not supported."""
    try:
        facts = msgspec.convert(hf, _Facts)
    except msgspec.ValidationError as error:
        raise ConfigError(f"config.json: {in_words(error)}") from error
    if facts.hidden_size % facts.num_attention_heads:
        raise ConfigError(
            f"config.json: hidden_size {facts.hidden_size} is no multiple of its {facts.num_attention_heads} "
            "attention heads"
        )
    if facts.position_embedding_type not in (None, "absolute"):
        raise ConfigError(
            f"config.json: position_embedding_type {facts.position_embedding_type!r} is not supported; absolute is"
        )
    if facts.is_decoder:
        raise ConfigError("config.json: is_decoder is set, and an encoder of this family is served as an encoder only")
    # transformers' RobertaConfig has 1 where the file says nothing.
    padding = 1 if facts.pad_token_id is None else facts.pad_token_id
    first = padding + 1 if positions_after_padding else 0
    if first >= facts.max_position_embeddings:
        raise ConfigError(f"config.json: pad_token_id {padding} leaves no position of the table")
    return EncoderConfig(
        num_heads=facts.num_attention_heads,
        intermediate_size=facts.intermediate_size,
        hidden_act=facts.hidden_act,
        layer_norm_eps=facts.layer_norm_eps,
        type_vocab_size=facts.type_vocab_size,
        num_positions=facts.max_position_embeddings,
        first_position=first,
    )
