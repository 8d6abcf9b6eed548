"""The front's names of fields, and the routes' own: an error names what the client sent, not what that became."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mysglang.srt.entrypoints.sampling_body import OPENAI_NAMES
from mysglang.srt.errors import Aborted, InvalidRequest

SAMPLING_NAMES = OPENAI_NAMES | {"max_new_tokens": "max_tokens", "return_logprob": "logprobs"}
"""Native name -> OpenAI's, where they differ."""

CHAT_NAMES = SAMPLING_NAMES | {"text": "messages", "top_logprobs_num": "top_logprobs"}
COMPLETION_NAMES = SAMPLING_NAMES | {"text": "prompt", "input_ids": "prompt", "top_logprobs_num": "logprobs"}
TOKENIZE_NAMES = {"text": "prompt", "input_ids": "tokens"}

EITHER = " or "
"""Text between two fields, of which one is at fault."""

_WORD = re.compile(r"""(?<!\w)'[^']*'|"[^"]*"|#/\S*|\w+""")
"""A word of a message; or a value of the client, or its place in a schema, which stays as it was sent."""

_BEHIND_A_NAME = re.compile(r":|\.\w")
"""Signs behind the name of a field: its fault follows, or the name of a part of it."""


class own_words:  # used like a function
    """Context that re-raises errors about a field under the name that the route's clients use (`names`)."""

    __slots__ = ("_names",)

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _stack: object) -> None:
        if isinstance(error, InvalidRequest) or (isinstance(error, Aborted) and error.param is not None):
            names = self._names
            message = _in_words(names, error.message, error.param)
            raise error.reworded(message, _reworded(error.param, names)) from None


def then(names: Mapping[str, str], further: Mapping[str, str]) -> Mapping[str, str]:
    """Returns names that translate as `names` and then `further` do."""
    if not further:
        return names
    return {**further, **{name: further.get(own, own) for name, own in names.items()}}


def _in_words(names: Mapping[str, str], message: str, param: str | None) -> str:
    """Returns a message about the field `param` with the client's names of fields."""
    field = None if param is None else param.partition(".")[0]

    def word(found: re.Match[str]) -> str:
        name = found[0]
        # A word like text or stop may also be meant as a word.
        if "_" in name or name == field or found.start() == 0 or _BEHIND_A_NAME.match(message, found.end()):
            return names.get(name, name)
        return name

    return _WORD.sub(word, message)


def _reworded(param: str | None, names: Mapping[str, str]) -> str | None:
    """Returns the place of an error, such as `messages.0.role`, with the client's name of its field. An error of either
    of two fields has both names, and a word between them.
    """
    if param is None:
        return None
    field, dot, rest = param.partition(".")
    known = EITHER.join(names.get(each, each) for each in field.split(EITHER))
    return f"{known}{dot}{rest}"
