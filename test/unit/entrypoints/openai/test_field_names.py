"""Errors in the words of the client: names of fields are replaced, and neither values of the client nor other words."""

import pytest

from mysglang.srt.entrypoints.openai.field_names import CHAT_NAMES, own_words
from mysglang.srt.errors import InvalidRequest


@pytest.mark.parametrize(
    ("message", "param", "told"),
    [
        ("text must be a string.", "text", "messages must be a string."),
        ("Exactly one of text and rid must be given.", "text", "Exactly one of messages and rid must be given."),
        ("min_new_tokens is 3, and max_new_tokens 2.", None, "min_tokens is 3, and max_tokens 2."),
        ("echo: not with text: it is too long.", "echo", "echo: not with messages: it is too long."),
        ("text.0: must not be null.", "text.0", "messages.0: must not be null."),
        ("regex: no text matches the pattern.", "regex", None),
        ("response_format: '$ref' at #/properties/text leads nowhere.", "response_format", None),
        ("stop must be made of strings, got ['text', \"max_new_tokens's\"].", "stop", None),
        ("the model's text, and the client's.", None, None),
    ],
)
def test_only_names_are_replaced(message: str, param: str | None, told: str | None) -> None:
    with pytest.raises(InvalidRequest) as raised, own_words(CHAT_NAMES):
        raise InvalidRequest(message, param=param)
    assert raised.value.message == (told or message)
    assert raised.value.param == (param.replace("text", "messages") if param else None)
