"""The thoughts and the answer of a model that writes both."""

from __future__ import annotations

from mysglang.srt.parser.reasoning_parser import reasoning_format


def split_reasoning(text: str, model_type: str | None) -> tuple[str, str]:
    """Splits a model's text into (thoughts, answer). `model_type` names a format of `--reasoning-parser`. Raises
    ValueError if it is None.
    """
    if model_type is None:
        raise ValueError("separate_reasoning needs model_type, a name of --reasoning-parser such as 'qwen3'.")
    return reasoning_format(model_type).open().detect_and_parse(text)
