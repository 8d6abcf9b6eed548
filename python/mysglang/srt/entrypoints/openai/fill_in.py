"""FillIn: builds the prompt for fill-in-the-middle, from the text before the gap and the text after it (`suffix`)."""

from __future__ import annotations

from mysglang.srt.args.parsers import CompletionTemplateName
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.parser.completion_template import CompletionTemplate, choose_completion_template
from mysglang.srt.utils.tokenizer import Tokenizer


class FillIn:
    """Fill in the middle. If the model does not support it, a request with a suffix is refused."""

    def __init__(self, template: CompletionTemplate | None) -> None:
        self._template = template

    @classmethod
    def choose(cls, name: CompletionTemplateName, tokenizer: Tokenizer | None) -> FillIn:
        """Returns the template that --completion-template names. Raises ConfigError for a template that does not fit
        the model.
        """
        if tokenizer is None:
            return cls(None)
        return cls(choose_completion_template(name, lambda mark: tokenizer.id_of(mark) is not None))

    def prompt(self, prompt: str, suffix: str | None) -> str:
        """Returns the prompt whose continuation comes before `suffix`. An empty suffix counts as none.

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
