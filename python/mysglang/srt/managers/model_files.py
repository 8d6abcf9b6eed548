"""From resolved options to what stands in the model's directory: its config, and its tokenizer if there is to be one.

Every process that needs them reads them here, so that all agree.
"""

from __future__ import annotations

from mysglang.srt.args.model import ModelArgs
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.utils.tokenizer import Tokenizer


def load_model_config(args: ModelArgs) -> ModelConfig:
    """The config of the model that `args` name, with what they lay over it. Raises ConfigError."""
    assert args.model_path is not None, "resolved"
    return ModelConfig.from_path(
        args.model_path,
        dtype=args.dtype,
        context_length=args.context_length,
        overrides=args.overrides,
        is_embedding=args.is_embedding,
    )


def load_tokenizer(args: ModelArgs) -> Tokenizer | None:
    """None for a server that takes token ids only. Raises ConfigError."""
    if args.skip_tokenizer_init:
        return None
    assert args.tokenizer_path is not None, "resolved"
    return Tokenizer.load(args.tokenizer_path)
