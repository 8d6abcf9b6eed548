"""Filters, tests and functions of chat templates: Jinja's own behind the Guard, and those that transformers adds.

Frequent ones pay by what they read and make. All others take small values only, whatever they do with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NoReturn

import jinja2
from jinja2 import Undefined, pass_context
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context, Macro
from jinja2.sandbox import safe_range
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Cycler, Joiner, Namespace
from jinja2.utils import _PassArg as PassArg

from mysglang.srt.parser.template_guard import Global, Guard, Method, TooMuchWork
from mysglang.srt.parser.template_methods import percent, replace

SMALL = 1 << 12
"""Characters in all values, and the largest number, that a rare filter takes."""
MAX_PRECISION = 300
"""Digits that a number is rounded to."""
MAX_NUMBER = 4300
"""Characters of a text that is read as a number."""
MAX_DATE_FORMAT = 1 << 8
MAX_INDENT = 64
INDENTED = 1 << 14
"""Blanks before lines that are not worth counting exactly."""
MAX_REASON = 1000
"""Characters of a template's own refusal that a client gets to see."""

Filter = Callable[..., Any]


def _jinja(name: str) -> Filter:
    """Returns Jinja's filter as a function of a context, whichever arguments Jinja passes to it."""
    function: Filter = JINJA_FILTERS[name]
    match PassArg.from_obj(function):
        case PassArg.context:
            return function
        case PassArg.eval_context:
            return lambda context, *args, **kwargs: function(context.eval_ctx, *args, **kwargs)
        case PassArg.environment:
            return lambda context, *args, **kwargs: function(context.environment, *args, **kwargs)
    return lambda context, *args, **kwargs: function(*args, **kwargs)


def _small(name: str) -> Filter:
    """Returns a filter that is rarely used, and that accepts small values only."""
    run = _jinja(name)

    @pass_context
    def filtered(context: Context, *args: Any, **kwargs: Any) -> Any:
        guard = _guard(context)
        given = [*args, *kwargs.values()]
        if guard.weigh(given) > SMALL or any(isinstance(value, int) and abs(value) > SMALL for value in given):
            raise TooMuchWork
        guard.spend(SMALL)
        return run(context, *args, **kwargs)

    return filtered


def _textual(name: str, growth: int = 1) -> Filter:
    """Returns a filter of one text, which it makes at most `growth` times as long."""
    run = _jinja(name)

    @pass_context
    def filtered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        guard = _guard(context)
        if not isinstance(value, (str, Undefined)):
            value = guard.text(value)
        guard.spend((len(value) * growth) >> 4)
        return run(context, value, *args, **kwargs)

    return filtered


def _lazy(name: str) -> Filter:
    """Returns a filter that looks at one value after another: each is paid for when it is its turn."""
    run = _jinja(name)

    @pass_context
    def filtered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        guard = _guard(context)
        guard.path(args[0] if args and name.endswith("attr") else kwargs.get("attribute"))
        # Jinja looks at no value of what is empty, and none is empty too.
        return run(context, guard.each(value) if value else value, *args, **kwargs)

    return filtered


def _ordering(name: str) -> Filter:
    """Returns a filter that compares all values with each other, or makes groups of them."""
    run = _jinja(name)

    @pass_context
    def filtered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        guard = _guard(context)
        for given in (*args, *kwargs.values()):
            guard.path(given)
            if isinstance(given, int) and abs(given) > SMALL:
                raise TooMuchWork
        if not isinstance(value, dict):
            value = guard.listed(value)
        guard.inflated = True
        guard.spend((guard.weigh(value) >> 4) * len(value).bit_length() + guard.weigh([args, list(kwargs.values())]))
        return run(context, value, *args, **kwargs)

    return filtered


def _padded_batch(name: str) -> Filter:
    """Returns the filter `batch` or `slice`, which fill the last group up with a value."""
    run = _ordering(name)

    @pass_context
    def filtered(context: Context, value: Any, count: int, fill_with: Any = None) -> Any:
        _guard(context).spend(max(0, count) * (1 + _guard(context).weigh(fill_with) // 16))
        return run(context, value, count, fill_with)

    return filtered


@pass_context
def _trim(context: Context, value: Any, chars: str | None = None) -> str:
    guard = _guard(context)
    text = value if isinstance(value, str) else guard.text(value)
    guard.spend((len(text) >> 4) * (1 + len(chars or "") // 16))
    return text.strip(chars)


@pass_context
def _string(context: Context, value: Any) -> str:
    return value if isinstance(value, str) else _guard(context).text(value)


@pass_context
def _replace(context: Context, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    guard = _guard(context)
    text, old, new = (given if isinstance(given, str) else guard.text(given) for given in (value, old, new))
    return replace(guard, text, old, new, -1 if count is None else count)


@pass_context
def _join(context: Context, value: Any, d: Any = "", attribute: Any = None) -> str:
    guard = _guard(context)
    values: Iterable[Any] = value
    if attribute is not None:
        values = _jinja("map")(context, guard.each(value), attribute=attribute)
        guard.path(attribute)
    return guard.joined(guard.text(d), [guard.text(item) for item in guard.listed(values)])


@pass_context
def _indent(context: Context, value: Any, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    guard = _guard(context)
    text = value if isinstance(value, str) else guard.text(value)
    lead = len(width) if isinstance(width, str) else width
    guard.spend((len(text) >> 2) + (text.count("\n") + 1) * (4 + max(0, lead) // 16))
    indented: str = JINJA_FILTERS["indent"](text, width, first, blank)
    return indented


@pass_context
def _list(context: Context, value: Any) -> list[Any]:
    return _guard(context).listed(value)


@pass_context
def _first(context: Context, value: Any) -> Any:
    for item in value:
        return item
    return context.environment.undefined("No first item, sequence was empty.")


@pass_context
def _reverse(context: Context, value: Any) -> Any:
    if isinstance(value, str):
        _guard(context).spend(len(value) >> 4)
        return value[::-1]
    return _guard(context).listed(value)[::-1]


@pass_context
def _last(context: Context, value: Any) -> Any:
    values = value if isinstance(value, (str, list, tuple)) else _guard(context).listed(value)
    return values[-1] if values else context.environment.undefined("No last item, sequence was empty.")


@pass_context
def _sum(context: Context, value: Any, attribute: Any = None, start: Any = 0) -> Any:
    guard = _guard(context)
    guard.path(attribute)
    values = guard.each(value)
    total = start
    for item in values if attribute is None else _jinja("map")(context, values, attribute=attribute):
        total = guard.add(total, item)
    return total


@pass_context
def _format(context: Context, value: Any, *args: Any, **kwargs: Any) -> str:
    return percent(_guard(context), _guard(context).text(value), kwargs or args)


@pass_context
def _attr(context: Context, value: Any, name: str) -> Any:
    return _guard(context).attr(value, name)


@pass_context
def _center(context: Context, value: Any, width: int = 80) -> str:
    guard = _guard(context)
    text = guard.text(value)
    guard.spend(max(len(text), width) >> 4)
    return text.center(width)


@pass_context
def _number(context: Context, value: Any, *args: Any, whole: bool, **kwargs: Any) -> Any:
    if isinstance(value, str) and len(value) > MAX_NUMBER:
        raise TooMuchWork
    return JINJA_FILTERS["int" if whole else "float"](value, *args, **kwargs)


@pass_context
def _int(context: Context, value: Any, default: Any = 0, base: int = 10) -> Any:
    return _number(context, value, default, base, whole=True)


@pass_context
def _float(context: Context, value: Any, default: Any = 0.0) -> Any:
    return _number(context, value, default, whole=False)


def _round(value: Any, precision: int = 0, method: Any = "common") -> Any:
    if abs(precision) > MAX_PRECISION:
        raise TooMuchWork
    return JINJA_FILTERS["round"](value, precision, method)


@pass_context
def _to_json(
    context: Context,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Writes JSON without escaping HTML characters as Jinja's own filter does, because no model was trained on that."""
    guard = _guard(context)
    lead = len(indent) if isinstance(indent, str) else indent or 0
    if lead > MAX_INDENT or guard.weigh(separators) > SMALL:
        raise TooMuchWork
    if guard.inflated or separators or isinstance(value, str):
        guard.weigh(value)
    if lead > 0:
        _pay_indented(guard, value, lead)
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    guard.spend(len(text) >> 4)
    return text


def _pay_indented(guard: Guard, value: Any, indent: int) -> None:
    """Pays for indentation. A value that is nested deeply makes long lines, however small it is."""
    text = json.dumps(value)
    opened = text.count("{") + text.count("[")
    lines = text.count(",") + 2 * opened
    if lines * opened * indent > INDENTED:
        guard.weigh(value, indent)


FILTERS: Final[Mapping[str, Filter]] = {
    **{
        name: _small(name)
        for name in ["filesizeformat", "pprint", "random", "striptags", "truncate", "urlencode", "urlize"]
    },
    **{name: _small(name) for name in ["wordcount", "wordwrap", "xmlattr"]},
    **{name: _textual(name) for name in ["upper", "lower", "capitalize", "title", "safe"]},
    **{name: _textual(name, 6) for name in ("escape", "e", "forceescape")},
    **{name: _lazy(name) for name in ["map", "select", "reject", "selectattr", "rejectattr"]},
    **{name: _ordering(name) for name in ["sort", "unique", "dictsort", "groupby", "min", "max"]},
    **{name: _padded_batch(name) for name in ("batch", "slice")},
    **{name: JINJA_FILTERS[name] for name in ["abs", "count", "length", "default", "d", "items"]},
    "trim": _trim,
    "string": _string,
    "replace": _replace,
    "join": _join,
    "indent": _indent,
    "list": _list,
    "first": _first,
    "last": _last,
    "reverse": _reverse,
    "sum": _sum,
    "format": _format,
    "attr": _attr,
    "center": _center,
    "int": _int,
    "float": _float,
    "round": _round,
    "tojson": _to_json,
}


def _comparing(kind: str) -> Filter:
    @pass_context
    def test(context: Context, left: Any, right: Any) -> Any:
        return _guard(context).compare(kind, left, right)

    return test


def _numeric(name: str) -> Filter:
    """Returns the test of that name for numbers alone: a text before `%` would be a format."""

    def run(value: Any, *args: Any) -> Any:
        if not all(isinstance(given, (int, float, Undefined)) for given in (value, *args)):
            raise TypeError(f"the test {name!r} takes numbers only")
        return JINJA_TESTS[name](value, *args)  # type: ignore[operator]

    return run


@pass_context
def _cased(context: Context, value: Any, name: str) -> bool:
    text = _guard(context).text(value)
    _guard(context).spend(len(text) >> 4)
    return text.islower() if name == "lower" else text.isupper()


@pass_context
def _lower(context: Context, value: Any) -> bool:
    return _cased(context, value, "lower")


@pass_context
def _upper(context: Context, value: Any) -> bool:
    return _cased(context, value, "upper")


def _callable(value: Any) -> bool:
    return isinstance(value, (Macro, Global, Method, Joiner))


_COMPARES = {
    "eq": "eq", "==": "eq", "equalto": "eq", "ne": "ne", "!=": "ne", "gt": "gt", ">": "gt", "greaterthan": "gt",
    "ge": "gteq", ">=": "gteq", "lt": "lt", "<": "lt", "lessthan": "lt", "le": "lteq", "<=": "lteq", "in": "in",
}  # fmt: skip

_QUICK_TESTS = """defined undefined filter test none boolean false true integer float string mapping number sequence
    iterable sameas escaped"""

TESTS: Final[Mapping[str, Any]] = {
    **{name: JINJA_TESTS[name] for name in _QUICK_TESTS.split()},
    **{name: _numeric(name) for name in ("odd", "even", "divisibleby")},
    **{name: _comparing(kind) for name, kind in _COMPARES.items()},
    "lower": _lower,
    "upper": _upper,
    "callable": _callable,
}


def _dict(guard: Guard, *args: Any, **kwargs: Any) -> dict[Any, Any]:
    guard.weigh([args, kwargs])
    guard.inflated = True
    return dict(*args, **kwargs)


def _namespace(guard: Guard, *args: Any, **kwargs: Any) -> Namespace:
    return Namespace(_dict(guard, *args, **kwargs))


def _raise_exception(guard: Guard, message: Any) -> NoReturn:
    raise jinja2.TemplateError(guard.text(message)[:MAX_REASON])


def _strftime_now(guard: Guard, form: str) -> str:
    if len(form) > MAX_DATE_FORMAT:
        raise TooMuchWork
    return datetime.now().strftime(form)


GLOBALS: Final[Mapping[str, Global]] = {
    "range": Global(lambda guard, *args: safe_range(*args)),
    "dict": Global(_dict),
    "namespace": Global(_namespace),
    "cycler": Global(lambda guard, *items: Cycler(*items)),
    "joiner": Global(lambda guard, sep=", ": Joiner(sep)),
    "raise_exception": Global(_raise_exception),
    "strftime_now": Global(_strftime_now),
}


def _guard(context: Context) -> Guard:
    guard: Guard = context.guard  # type: ignore[attr-defined]
    return guard
