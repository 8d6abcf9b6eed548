"""Each kind of error that msgspec raises is told in plain words, with the key that it is about."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import pytest

from mysglang.srt.utils.json_errors import in_words


class Inner(msgspec.Struct):
    size: Annotated[int, msgspec.Meta(ge=2)] = 2


class Keys(msgspec.Struct, forbid_unknown_fields=True):
    count: Annotated[int, msgspec.Meta(ge=1, le=9)]
    names: list[Annotated[str, msgspec.Meta(min_length=2)]] = []
    kind: Literal["a", "b"] = "a"
    sizes: dict[str, int] = {}
    factor: Annotated[float, msgspec.Meta(gt=0)] | None = None
    pair: tuple[int, int] = (1, 2)
    few: Annotated[list[int], msgspec.Meta(max_length=1)] = []
    on: bool = False
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"count": "1"}', "count must be a whole number, not a text"),
        ('{"count": 1.5}', "count must be a whole number, not a fraction"),
        ('{"count": 0}', "count must be a whole number, at least 1"),
        ('{"count": 10}', "count must be a whole number, at most 9"),
        ('{"count": 1, "names": {}}', "names must be a list, not an object"),
        ('{"count": 1, "names": ["a"]}', "names[0] must be a text of length at least 2"),
        ('{"count": 1, "kind": "c"}', "kind cannot be 'c'"),
        ('{"count": 1, "sizes": {"x": null}}', "an entry of sizes must be a whole number, not null"),
        ('{"count": 1, "factor": "x"}', "factor must be a number or null, not a text"),
        ('{"count": 1, "factor": 0}', "factor must be a number, more than 0"),
        ('{"count": 1, "pair": [1]}', "pair must be a list of length 2"),
        ('{"count": 1, "few": [1, 2]}', "few must be a list of length at most 1"),
        ('{"count": 1, "on": 1}', "on must be true or false, not a whole number"),
        ('{"count": 1, "inner": {"size": 1}}', "inner.size must be a whole number, at least 2"),
        ('{"count": 1, "other": 1}', "there is no key other"),
        ("{}", "count is missing"),
        ("[]", "it must be an object, not a list"),
        ("{", "its JSON ends too early"),
        ("count", "it is no JSON: invalid character (byte 0)"),
    ],
)
def test_words(text: str, words: str) -> None:
    with pytest.raises(msgspec.MsgspecError) as caught:
        msgspec.json.decode(text, type=Keys)
    assert in_words(caught.value) == words


def test_a_key_of_a_mapping() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"sizes": {1: 2}, "count": 1}, Keys)
    assert in_words(caught.value) == "sizes must be a text, not a whole number"


def test_other_texts_stay() -> None:
    assert in_words(msgspec.ValidationError("Something new - at `$.a.b`")) == "a.b: Something new"
    assert in_words(msgspec.ValidationError("Something new")) == "Something new"
