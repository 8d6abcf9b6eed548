"""The methods that a chat template may call on its values, each paid for by what it reads and makes.

A method gets the Guard, then the value it is called on. What is not in these tables does not exist for a template.
"""

from __future__ import annotations

import re
from _string import formatter_field_name_split  # type: ignore[import-not-found]
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any, Final

from jinja2.runtime import LoopContext
from jinja2.utils import Cycler

from mysglang.srt.parser.template_guard import Guard, TooMuchWork

MAX_FORMAT = 1 << 12
"""Characters of a text with places for values."""

_NUMBER = re.compile(r"\d+")
_NESTED = re.compile(r"\{[^{}]*\{")
"""A width that is a value itself."""

Run = Callable[..., Any]


def _plain(name: str, *, reads_all: bool = True) -> Run:
    """Returns a method of text whose result is no longer than the text."""

    def run(guard: Guard, text: str, *args: Any, **kwargs: Any) -> Any:
        if reads_all:
            guard.spend(len(text) >> 4)
        return getattr(text, name)(*args, **kwargs)

    return run


def _stripping(name: str) -> Run:
    def run(guard: Guard, text: str, chars: str | None = None, /) -> str:
        guard.spend((len(text) >> 4) * (1 + len(chars or "") // 16))
        result: str = getattr(text, name)(chars)
        return result

    return run


def _searching(name: str) -> Run:
    def run(guard: Guard, text: str, needle: str, *args: Any) -> Any:
        guard.scan(text, needle)
        return getattr(text, name)(needle, *args)

    return run


def _splitting(name: str) -> Run:
    def run(guard: Guard, text: str, sep: str | None = None, maxsplit: int = -1) -> list[str]:
        if sep:
            guard.scan(text, sep)
            guard.spend(4 * text.count(sep))
        else:
            guard.spend(len(text) >> 4 if len(text) < 1 << 12 else 2 * len(text))
        parts: list[str] = getattr(text, name)(sep, maxsplit)
        return parts

    return run


def _splitlines(guard: Guard, text: str, keepends: bool = False) -> list[str]:
    guard.spend(len(text) >> 4 if len(text) < 1 << 12 else 2 * len(text))
    return text.splitlines(keepends)


def replace(guard: Guard, text: str, old: str, new: str, count: int = -1, /) -> str:
    """Does what `text.replace` does, also for the filter."""
    guard.scan(text, old)
    if len(new) > len(old):
        guard.spend((text.count(old) * (len(new) - len(old))) >> 4)
    return text.replace(old, new, count)


def _padding(name: str) -> Run:
    def run(guard: Guard, text: str, width: int, *fill: str) -> str:
        guard.spend(max(width, len(text)) >> 4)
        padded: str = getattr(text, name)(width, *fill)
        return padded

    return run


def _expandtabs(guard: Guard, text: str, tabsize: int = 8) -> str:
    guard.spend((len(text) + text.count("\t") * max(tabsize, 0)) >> 4)
    return text.expandtabs(tabsize)


def _join(guard: Guard, separator: str, values: Any, /) -> str:
    return guard.joined(separator, values)


def percent(guard: Guard, form: str, values: Any) -> str:
    """Computes `form % values`."""
    _pay_format(guard, form, form.count("%"), values)
    if "*" in form:
        given = values if isinstance(values, tuple) else (values,)
        guard.spend(sum(abs(value) for value in given if isinstance(value, int)) * form.count("*"))
    text: str = form % values
    return text


class _Formatter(Formatter):
    """Implements `str.format` with the guard's attribute and item access in replacement fields."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str | int]:
        first, rest = formatter_field_name_split(field_name)
        value = self.get_value(first, args, kwargs)
        for is_attribute, key in rest:
            value = self._guard.attr(value, key) if is_attribute else self._guard.item(value, key)
        return value, first


def _format(guard: Guard, form: str, /, *args: Any, **kwargs: Any) -> str:
    _pay_format(guard, form, form.count("{"), (args, kwargs))
    if _NESTED.search(form):
        raise TooMuchWork
    return _Formatter(guard).vformat(form, args, kwargs)


def _format_map(guard: Guard, form: str, values: Mapping[str, Any], /) -> str:
    return _format(guard, form, **values)


def _pay_format(guard: Guard, form: str, places: int, values: Any) -> None:
    """Pays for a format. Every number may be a width, and each place may hold all of the values, written with
    escapes.
    """
    if len(form) > MAX_FORMAT:
        raise TooMuchWork
    guard.spend(sum(int(number) for number in _NUMBER.findall(form)) >> 4)
    guard.spend(places * guard.weigh(values))


def _get(guard: Guard, mapping: dict[Any, Any], key: Any, default: Any = None, /) -> Any:
    return mapping.get(guard.key(key), default)


def _copied(guard: Guard, value: Any) -> Any:
    guard.spend(len(value))
    return value.copy()


def _member(name: str) -> Run:
    """Returns the method `index` or `count` of a list or a tuple."""

    def run(guard: Guard, values: Any, value: Any, *args: Any) -> int:
        guard.search(value, len(values))
        found: int = getattr(values, name)(value, *args)
        return found

    return run


def _cycle(guard: Guard, loop: LoopContext, *values: Any) -> Any:
    return loop.cycle(*values)


def _changed(guard: Guard, loop: LoopContext, *values: Any) -> bool:
    guard.weigh(values)
    return loop.changed(*values)


_WHOLE = """upper lower title capitalize swapcase casefold isalnum isalpha isascii isdecimal isdigit isidentifier
    islower isnumeric isprintable isspace istitle isupper removeprefix removesuffix"""

_TEXT: dict[str, Run] = {
    **{name: _plain(name) for name in _WHOLE.split()},
    **{name: _plain(name, reads_all=False) for name in ("startswith", "endswith")},
    **{name: _stripping(name) for name in ("strip", "lstrip", "rstrip")},
    **{name: _searching(name) for name in ("find", "rfind", "index", "rindex", "count", "partition", "rpartition")},
    **{name: _splitting(name) for name in ("split", "rsplit")},
    **{name: _padding(name) for name in ("ljust", "rjust", "center", "zfill")},
    "splitlines": _splitlines,
    "replace": replace,
    "expandtabs": _expandtabs,
    "join": _join,
    "format": _format,
    "format_map": _format_map,
    "%": percent,
}

METHODS: Final[Mapping[type, Mapping[str, Run]]] = {
    str: _TEXT,
    dict: {
        "get": _get,
        "items": lambda guard, mapping: mapping.items(),
        "keys": lambda guard, mapping: mapping.keys(),
        "values": lambda guard, mapping: mapping.values(),
        "copy": _copied,
    },
    list: {"index": _member("index"), "count": _member("count"), "copy": _copied},
    tuple: {"index": _member("index"), "count": _member("count")},
    LoopContext: {"cycle": _cycle, "changed": _changed},
    Cycler: {"next": lambda guard, cycler: cycler.next(), "reset": lambda guard, cycler: cycler.reset()},
}
"""Methods that a template may call, by type and by name."""
