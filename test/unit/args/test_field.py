"""An option's type, choices and range are read from its declaration, and judge values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from mysglang.srt.args.field import Option, arg, flag_of, options


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A group of every kind of option."""

    flag: bool = arg(False, help="A switch.")
    count: int = arg(1, at_least=1, at_most=8, help="A count.", aliases=("number",))
    share: float | None = arg(None, at_least=0, help="A share.")
    colour: Literal["red", "blue"] = arg("red", help="A choice.")
    sizes: tuple[int, ...] | None = arg(None, at_least=1, help="Many.")
    name: str | None = arg(None, help="A name.")
    path: str = arg("", help="A path.")


OPTIONS = {option.name: option for option in options(Sample)}


def test_reads_declarations_in_order() -> None:
    assert list(OPTIONS) == ["flag", "count", "share", "colour", "sizes", "name", "path"]
    assert [option.kind for option in OPTIONS.values()] == [bool, int, float, str, int, str, str]
    assert OPTIONS["count"] == Option("count", int, 1, "A count.", aliases=("number",), at_least=1, at_most=8)
    assert OPTIONS["colour"].choices == ("red", "blue")
    assert OPTIONS["sizes"].many and OPTIONS["sizes"].optional
    assert flag_of("mem_fraction_static") == "--mem-fraction-static"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flag", True),
        ("count", 8),
        ("share", None),
        ("share", 0),
        ("share", 0.5),
        ("colour", "blue"),
        ("sizes", (1, 2)),
        ("sizes", None),
        ("name", "x"),
        ("path", ""),
    ],
)
def test_accepts(name: str, value: object) -> None:
    assert OPTIONS[name].complaint(value) is None


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("flag", 1, "--flag must be true or false, got 1."),
        ("count", 9, "--count must be between 1 and 8, got 9."),
        ("count", True, "--count must be an integer, got True."),
        ("count", None, "--count needs a value."),
        ("count", "x", "--count must be an integer, got 'x'."),
        ("share", -0.5, "--share must be at least 0, got -0.5."),
        ("share", float("nan"), "--share must be at least 0, got nan."),
        ("share", float("inf"), "--share must be a finite number, got inf."),
        ("colour", "green", "--colour must be one of red, blue; got 'green'."),
        ("sizes", (2, 0), "--sizes must be at least 1, got 0."),
        ("sizes", 4, "--sizes must be a list, got 4."),
        ("name", "", "--name is empty; give a value, or leave it out."),
        ("name", " ", "--name is empty; give a value, or leave it out."),
    ],
)
def test_complains(name: str, value: object, complaint: str) -> None:
    assert OPTIONS[name].complaint(value) == complaint


def test_refuses_a_type_that_no_command_line_can_carry() -> None:
    @dataclass
    class Odd:
        blob: bytes = arg(b"", help="No.")

    with pytest.raises(TypeError, match="blob"):
        options(Odd)
