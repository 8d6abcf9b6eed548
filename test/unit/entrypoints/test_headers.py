"""One header by its name."""

from mysglang.srt.entrypoints.headers import header


def test_the_first_of_that_name() -> None:
    scope = {"headers": [(b"a", b"1"), (b"b", b"caf\xe9"), (b"b", b"3")]}
    assert header(scope, b"b") == "caf\xe9"
    assert header(scope, b"a") == "1"


def test_none() -> None:
    assert header({"headers": []}, b"a") == ""
