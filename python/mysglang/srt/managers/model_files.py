"""Reads the config of a model for resolved options. Every process that needs it reads it here, so that all agree."""

from __future__ import annotations

from dataclasses import replace

from mysglang.srt.args.groups import ArgGroups
from mysglang.srt.args.model import ModelArgs
from mysglang.srt.args.validate import generating_only
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.errors import ConfigError


def load_model_config(args: ModelArgs) -> ModelConfig:
    """Returns the config of the model that `args` name, with what they lay over it. Raises ConfigError."""
    assert args.model_path is not None, "resolved"
    return ModelConfig.from_path(
        args.model_path,
        dtype=args.dtype,
        context_length=args.context_length,
        overrides=args.overrides,
        is_embedding=args.is_embedding,
        impl=args.model_impl,
    )


def check_task(args: ArgGroups, model: ModelConfig) -> None:
    """Raises ConfigError for options of generation if the model makes vectors."""
    if model.pooling is not None and (given := generating_only(args)):
        raise ConfigError(*(f"{flag} is for models that generate; leave it out for this one." for flag in given))


def load_draft_config(path: str, served: ModelConfig) -> ModelConfig:
    """Returns the config of the model at `path` that proposes drafts for the `served` one: in its data type, for
    requests as long. Raises ConfigError for a model that cannot propose drafts for this one.
    """
    flag = f"--speculative-draft-model-path {path}"
    try:
        draft = ModelConfig.from_path(path, dtype=served.dtype)
    except ConfigError as error:
        # Else the fault would seem to be one of the served model's files.
        raise ConfigError(*(f"{flag}: {problem}" for problem in error.problems)) from error
    if draft.pooling is not None:
        raise ConfigError(f"{flag}: {draft.architecture} does not generate, so it can propose no drafts.")
    if draft.decoder is not None and draft.decoder.has_states:
        raise ConfigError(
            f"{flag}: layers of the draft model ({draft.architecture}) keep a state for each request, from which "
            "drafts that are not accepted cannot be taken back. Give a draft model whose layers all attend over keys."
        )
    if draft.vocab_size != served.vocab_size:
        raise ConfigError(
            f"{flag}: its vocabulary has {draft.vocab_size} tokens and that of the served model {served.vocab_size}. "
            "Both models must have the same tokens."
        )
    if draft.context_len < served.context_len:
        raise ConfigError(
            f"{flag}: it takes {draft.context_len} tokens, and requests may have {served.context_len}. Give "
            f"--context-length {draft.context_len}, or a draft model with a longer context."
        )
    return replace(draft, context_len=served.context_len)
