"""The values of the flags that choose how a model's text is parsed. The parsers are in `function_call` and `parser`."""

from __future__ import annotations

from typing import Literal

ToolCallParser = Literal[
    "auto",
    "none",
    "apertus2509",
    "cohere_command4",
    "deepseekv3",
    "deepseekv31",
    "deepseekv32",
    "deepseekv4",
    "gemma4",
    "gigachat3",
    "glm",
    "glm45",
    "glm47",
    "gpt-oss",
    "hermes",
    "hunyuan",
    "internlm",
    "interns1",
    "kimi_k2",
    "lfm2",
    "llama3",
    "mimo",
    "minimax-m2",
    "minimax-m3",
    "mistral",
    "phi4-mini",
    "pythonic",
    "qwen",
    "qwen25",
    "qwen3_coder",
    "step3",
    "step3p5",
]

CompletionTemplateName = Literal["auto", "none", "deepseek_coder", "star_coder", "qwen_coder"]

REASONING_PARSERS = (
    "auto",
    "none",
    "apertus2509",
    "cohere_command4",
    "deepseek-r1",
    "deepseek-v3",
    "deepseek-v4",
    "gemma4",
    "glm45",
    "gpt-oss",
    "granite_thinking_parser",
    "hunyuan",
    "interns1",
    "kimi",
    "kimi_k2",
    "mimo",
    "minimax",
    "minimax-append-think",
    "minimax-m3",
    "mistral",
    "nemotron_3",
    "qwen3",
    "qwen3-thinking",
    "seed_oss",
    "step3",
    "step3p5",
)
"""Names of the built-in parsers. Any two tags with `...` between them are also a parser."""
