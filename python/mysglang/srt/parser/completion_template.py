"""Fill in the middle: the prompt with which a code model writes the text between a prompt and a suffix.

Each family has marks of its own, tokens of its vocabulary, and an order in which the parts come. Knows no tokenizer,
only whether one has a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from mysglang.srt.errors import ConfigError


@dataclass(frozen=True, slots=True)
class CompletionTemplate:
    """A prompt for filling in the middle: a format with the names prompt and suffix, and the marks in it."""

    text: str
    marks: tuple[str, ...]

    def render(self, prompt: str, suffix: str) -> str:
        """Returns the prompt whose continuation is the middle."""
        return self.text.format(prompt=prompt, suffix=suffix)


def _template(text: str, *marks: str) -> CompletionTemplate:
    """Returns `text` with the marks inserted at the placeholders 0, 1 and 2."""
    return CompletionTemplate(text.format(*marks, prompt="{prompt}", suffix="{suffix}"), marks)


ORDER = "{0}{prompt}{1}{suffix}{2}"
"""Order of the parts in all three templates, whatever their marks are called: prefix, suffix and middle, or begin, hole
and end.
"""

COMPLETION_TEMPLATES: Mapping[str, CompletionTemplate] = MappingProxyType(
    {
        "qwen_coder": _template(ORDER, "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
        "star_coder": _template(ORDER, "<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
        "deepseek_coder": _template(ORDER, "<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    }
)


def choose_completion_template(name: str, has_token: Callable[[str], bool]) -> CompletionTemplate | None:
    """Returns the template that the flag names. "auto" chooses the one whose marks the tokenizer has, "none" is None.

    has_token: whether a text is one token of the vocabulary. Raises ConfigError for marks that the tokenizer lacks: the
    model would read them as text.
    """
    if name == "none":
        return None
    if name == "auto":
        return next((found for found in COMPLETION_TEMPLATES.values() if all(map(has_token, found.marks))), None)
    template = COMPLETION_TEMPLATES[name]
    if lacking := [mark for mark in template.marks if not has_token(mark)]:
        raise ConfigError(f"--completion-template {name}: the tokenizer has no token {lacking[0]}.")
    return template
