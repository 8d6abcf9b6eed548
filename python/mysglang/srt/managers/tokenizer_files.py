"""Reads the tokenizer of a model for resolved options. Every process that needs it reads it here, so that all agree.

The detokenizer does, which knows no config of a model: importing those would take several megabytes more.
"""

from __future__ import annotations

from mysglang.srt.args.model import ModelArgs
from mysglang.srt.utils.tokenizer import Tokenizer


def load_tokenizer(args: ModelArgs) -> Tokenizer | None:
    """Loads the tokenizer; returns None for a server that takes token ids only. Raises ConfigError."""
    if args.skip_tokenizer_init:
        return None
    assert args.tokenizer_path is not None, "resolved"
    return Tokenizer.load(args.tokenizer_path)
