"""Fill in the middle: the three families' own words, and which one a tokenizer speaks."""

from __future__ import annotations

import pytest

from mysglang.srt.errors import ConfigError
from mysglang.srt.parser.completion_template import COMPLETION_TEMPLATES, choose_completion_template

WRITTEN = {
    "qwen_coder": "<|fim_prefix|>def f({x}):<|fim_suffix|>\n    return y<|fim_middle|>",
    "star_coder": "<fim_prefix>def f({x}):<fim_suffix>\n    return y<fim_middle>",
    "deepseek_coder": "<｜fim▁begin｜>def f({x}):<｜fim▁hole｜>\n    return y<｜fim▁end｜>",
}


@pytest.mark.parametrize("name", WRITTEN)
def test_as_the_models_were_trained(name: str) -> None:
    """Braces in a text are text."""
    template = choose_completion_template(name, lambda _mark: True)
    assert template is not None
    assert template.render("def f({x}):", "\n    return y") == WRITTEN[name]


@pytest.mark.parametrize("name", WRITTEN)
def test_the_tokenizer_shows_which(name: str) -> None:
    marks = COMPLETION_TEMPLATES[name].marks
    assert choose_completion_template("auto", marks.__contains__) is COMPLETION_TEMPLATES[name]
    assert choose_completion_template("none", marks.__contains__) is None


def test_marks_that_are_no_tokens_are_of_no_use() -> None:
    assert choose_completion_template("auto", lambda mark: mark != "<fim_middle>" and mark.startswith("<fim")) is None
    with pytest.raises(ConfigError, match="<fim_prefix>"):
        choose_completion_template("star_coder", lambda _mark: False)
