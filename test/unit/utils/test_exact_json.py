"""Integers of JSON that is read by orjson."""

import json
import random

import orjson
import pytest

from mysglang.srt.utils.exact_json import InexactInteger, loads

KEPT = ["0", "-1", "9223372036854775807", "-9223372036854775808", "18446744073709551615"]
EXACT_FLOATS = ["18446744073709551616", "100000000000000000000", "1" + "0" * 22]
ROUNDED = ["18446744073709551617", "-9223372036854775809", "123456789012345678901", "1" + "0" * 23, "9" * 300]


@pytest.mark.parametrize("number", KEPT + EXACT_FLOATS)
def test_same_value(number: str) -> None:
    assert loads(f'{{"a": [{number}]}}'.encode()) == {"a": [int(number)]}


@pytest.mark.parametrize("around", ["%s", "[%s]", '{"a":%s}', '{"a" :\n%s\n}', '["1.0", 2e3, %s ,4]', '["\\"", %s]'])
@pytest.mark.parametrize("number", ROUNDED)
def test_refused(number: str, around: str) -> None:
    with pytest.raises(InexactInteger, match=f"the integer {number[:40]}"):
        loads((around % number).encode())


@pytest.mark.parametrize(
    "text",
    [
        '["123456789012345678901"]',
        '[", 123456789012345678901 ,"]',
        '["\\", 123456789012345678901 ,"]',
        "[123456789012345678901.0]",
        "[123456789012345678901e1]",
        "[0.123456789012345678901]",
        "[1e-0000000000000000000012]",
        '{"123456789012345678901": 1}',
    ],
)
def test_digits_that_are_no_integer(text: str) -> None:
    assert loads(text.encode()) == json.loads(text)


def test_faults_are_those_of_orjson() -> None:
    with pytest.raises(orjson.JSONDecodeError, match="line 1 column 24"):
        loads(b"[123456789012345678901 x]")


def test_as_the_reader_of_python() -> None:
    """Random values: refused if and only if some integer changes."""
    draw = random.Random(3)

    def value(depth: int) -> object:
        if depth and draw.random() < 0.6:
            inner = [value(depth - 1) for _ in range(draw.randrange(3))]
            return inner if draw.random() < 0.5 else {f"k{i}": each for i, each in enumerate(inner)}
        bits = draw.choice([3, 60, 63, 64, 65, 80])
        return draw.choice([draw.getrandbits(bits), -draw.getrandbits(bits), 0.5, "7" * 20, ',"1' + "7" * 20 + " "])

    seen = set()
    for _ in range(2000):
        text = json.dumps(value(3)).encode()
        exact = orjson.loads(text) == json.loads(text)
        seen.add(exact)
        try:
            assert loads(text) == json.loads(text) and exact
        except InexactInteger:
            assert not exact
    assert seen == {True, False}
