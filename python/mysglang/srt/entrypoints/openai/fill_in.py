"""FillIn: prompts with something behind them, as the served model is asked for what stands between."""

from __future__ import annotations

from mysglang.srt.args.parsers import CompletionTemplateName
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.completion_template import CompletionTemplate, choose_completion_template
from mysglang.srt.utils.tokenizer import Tokenizer


class FillIn:
    """Of a server whose model may not know how, which is said when a request comes."""

    def __init__(self, template: CompletionTemplate | None) -> None:
        self._template = template

    @classmethod
    def choose(cls, name: CompletionTemplateName, tokenizer: Tokenizer | None) -> FillIn:
        """As --completion-template names it. Raises ConfigError for a template that is not the model's."""
        if tokenizer is None:
            return cls(None)
        return cls(choose_completion_template(name, lambda mark: tokenizer.id_of(mark) is not None))

    def prompt(self, prompt: str, suffix: str | None) -> str:
        """What the model continues with what stands before `suffix`; no suffix, and an empty one, is none.

        Raises InvalidRequest.
        """
        if not suffix:
            return prompt
        if self._template is None:
            message = (
                "suffix: nothing is known of how this model is asked for the middle of a text (--completion-template)."
            )
            raise InvalidRequest(message, param="suffix")
        return self._template.render(prompt, suffix)
