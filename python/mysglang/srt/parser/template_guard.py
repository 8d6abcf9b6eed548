"""Guard: the remaining allowance of one rendering of a chat template, and the operations that it limits.

A template is data, and nothing can interrupt one long call into C. So every operation whose cost depends on its
operands is paid for before it is done. Prices are in units: about a tenth of a microsecond, or 16 characters that are
read or made. The code that calls this is written by `template_code.py`; methods and filters are beside it.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from jinja2 import Environment, Undefined
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace

MAX_INT_BITS = 1 << 14
"""Bits of a whole number: about as many digits as Python turns into text."""
NODE = 128
"""Characters that a value inside a list or an object counts for."""
PIECE = 1 << 14
"""Characters that are read before they are paid for."""
SLICE = 1 << 20
"""Units until the clock is read again: about a tenth of a second."""
MAX_ATTRIBUTE_PATH = 256
"""Characters of a path such as "function.name" that a filter takes."""

_SCALARS = frozenset({int, float, bool, type(None)})
_COMPARES: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "lteq": operator.le, "gt": operator.gt,
    "gteq": operator.ge,
}  # fmt: skip
_VIEWS: Final[Any] = (type({}.keys()), type({}.values()), type({}.items()))
_CONTAINERS: Final[Any] = (list, tuple, dict, *_VIEWS)
_SIZED: Final[Any] = (*_CONTAINERS, range)
_INDEXED: Final[Any] = (dict, list, str, tuple, range, Undefined)
_LOOP_NUMBERS = ("index", "index0", "revindex", "revindex0", "length", "depth", "depth0")
_READABLE: Final[Mapping[type, frozenset[str]]] = {
    LoopContext: frozenset({*_LOOP_NUMBERS, "first", "last", "previtem", "nextitem"}),
    Macro: frozenset({"name", "arguments", "catch_kwargs", "catch_varargs", "caller"}),
    Cycler: frozenset({"current"}),
}
"""Attributes of Jinja's own objects that are values."""


class TooMuchWork(Exception):
    """Raised when a template does more work than its limit allows."""


class NotQuick(Exception):
    """Raised when a template does more work than the event loop may do. It is not an error: render it in a thread."""


class Global:
    """A function that every template may call by name. It gets the guard first."""

    __slots__ = ("run",)

    def __init__(self, run: Callable[..., Any]) -> None:
        self.run = run

    def __repr__(self) -> str:
        return "<function>"


class Method:
    """A method of a value that a template holds without calling it."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: Any, name: str) -> None:
        self.owner = owner
        self.name = name

    def __repr__(self) -> str:
        return f"<method {self.name}>"


class Guard:
    """The work limit of one rendering. Used by one thread, but `cancelled` may be set by another."""

    __slots__ = ("_allowance", "_cancelled", "_deadline", "_methods", "_rest", "environment", "inflated", "left")

    def __init__(
        self,
        environment: Environment,
        methods: Mapping[type, Mapping[str, Callable[..., Any]]],
        quick: int,
        allowance: Callable[[], int] | None,
        cpu_s: float,
        cancelled: threading.Event | None = None,
    ) -> None:
        """`quick`: number of units at first. `allowance`: called when these are used up; returns how many more may
        follow; None: NotQuick is raised instead. `cpu_s`: limit in CPU seconds of this thread.
        """
        self.left = quick
        self.inflated = False
        """True if the template has built a list or an object: its tree of values may then be larger than its memory."""
        self._allowance = allowance
        self._rest: int | None = None
        self._deadline = cpu_s
        self.environment = environment
        self._methods = methods
        self._cancelled = cancelled

    # -- paying

    def spend(self, units: int) -> None:
        """Takes `units` from the allowance of this rendering. If fewer are left, raises NotQuick for a quick rendering,
        and TooMuchWork for any other.
        """
        self.left -= units
        if self.left < 0:
            self._take_slice()

    def _take_slice(self) -> None:
        if self._allowance is None:
            raise NotQuick
        if self._rest is None:
            self._rest = self._allowance()
            self._deadline += time.thread_time()
        if self._cancelled is not None and self._cancelled.is_set():
            raise TooMuchWork
        self._rest += self.left
        if self._rest <= 0 or time.thread_time() > self._deadline:
            raise TooMuchWork
        self.left = min(self._rest, SLICE)
        self._rest -= self.left

    def weigh(self, value: Any, indent: int = 0) -> int:
        """Charges for reading all of `value`, and returns its size in characters. Branches that are shared count each
        time. `indent`: characters that each level puts before a value.
        """
        size, paid, stack = 0, 0, [(value, indent)]
        while stack:
            item, lead = stack.pop()
            size += NODE + lead
            if isinstance(item, str):
                size += len(item)
            elif isinstance(item, _CONTAINERS):
                self.spend(len(item))
                lead += indent
                stack.extend([(inner, lead) for inner in item])
                if isinstance(item, dict):
                    stack.extend([(inner, lead) for inner in item.values()])
            if size - paid > PIECE:
                self.spend((size - paid) >> 4)
                paid = size
        self.spend((size - paid) >> 4)
        return size

    def scan(self, text: str, needle: str) -> None:
        """Charges for a search for `needle` in `text`, whose worst case is slower for a longer needle."""
        self.spend((len(text) >> 4) * (1 + min(len(needle), 128) // 16))

    def each(self, values: Iterable[Any]) -> Iterator[Any]:
        """Yields the values, and charges the template's budget for each."""
        for value in values:
            self.spend(12)
            yield value

    def listed(self, values: Iterable[Any]) -> list[Any]:
        """Returns the values as a new list."""
        if isinstance(values, str):
            self.spend(4 * len(values))
        elif isinstance(values, _SIZED):
            self.spend(len(values))
        else:
            return list(self.each(values))
        return list(values)

    def spread(self, values: Any) -> Any:
        """Returns the values after a `*` in a call."""
        return values if isinstance(values, dict) else tuple(self.listed(values))

    def key(self, value: Any) -> Any:
        """Takes units for hashing a value."""
        if type(value) is not str and type(value) not in _SCALARS:
            self.weigh(value)
        return value

    def path(self, attribute: object) -> None:
        """Checks the path of an attribute that a filter follows for every value."""
        if isinstance(attribute, str) and len(attribute) > MAX_ATTRIBUTE_PATH:
            raise TooMuchWork

    # -- text

    def text(self, value: Any) -> str:
        """Returns a value as text, as the template prints it."""
        kind = type(value)
        if kind is str:
            return value  # type: ignore[no-any-return]
        if isinstance(value, _CONTAINERS):
            # A character that cannot be printed is written as up to ten others.
            self.spend(self.weigh(value) >> 1)
        elif isinstance(value, Namespace):
            return f"<{kind.__name__}>"
        return str(value)

    def concat(self, pieces: Iterable[str]) -> str:
        """Joins the pieces, which are text already."""
        pieces = list(pieces)
        self.spend(sum(map(len, pieces)) >> 4)
        return "".join(pieces)

    def tilde(self, *values: Any) -> str:
        """Computes `a ~ b`: the values as text, joined."""
        return self.concat([self.text(value) for value in values])

    def joined(self, separator: str, values: Iterable[Any]) -> str:
        """Joins the values, which must be text, with `separator` between them."""
        pieces = self.listed(values)
        size = sum(len(piece) if isinstance(piece, str) else 0 for piece in pieces)
        self.spend((size + len(separator) * len(pieces)) >> 4)
        return separator.join(pieces)

    # -- operators

    def add(self, *values: Any) -> Any:
        """Computes `a + b + …` for the template."""
        size = 0
        for value in values:
            if type(value) is not str:
                break
            size += len(value)
        else:
            self.left -= size >> 4
            if self.left < 0:
                self._take_slice()
            return "".join(values)
        total = values[0]
        for value in values[1:]:
            total = self._add(total, value)
        return total

    def _add(self, left: Any, right: Any) -> Any:
        if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
            self.spend(len(left) + len(right))
            self.inflated = True
        elif isinstance(left, str) and isinstance(right, str):
            self.spend(len(left) + len(right))  # escaped where one is markup
        else:
            _require_numbers(left, right)
        return left + right

    def sub(self, left: Any, right: Any) -> Any:
        """Computes `a - b`, for numbers and for the keys of objects."""
        if isinstance(left, _VIEWS):
            self.spend(self.weigh(left) + self.weigh(right))
        else:
            _require_numbers(left, right)
        return left - right

    def mul(self, left: Any, right: Any) -> Any:
        """Computes `a * b`, for numbers, or for a text or list and the number of its repetitions."""
        if isinstance(right, (str, list, tuple)):
            left, right = right, left
        if isinstance(left, (str, list, tuple)):
            if isinstance(right, int):
                size = len(left) * max(0, right)
                self.spend(size >> 4 if isinstance(left, str) else size)
                self.inflated |= not isinstance(left, str)
        else:
            _require_numbers(left, right)
            if isinstance(left, int) and isinstance(right, int):
                _limit_bits(left.bit_length() + right.bit_length())
        return left * right

    def div(self, left: Any, right: Any) -> Any:
        """Computes `a / b`."""
        _require_numbers(left, right)
        return left / right

    def floordiv(self, left: Any, right: Any) -> Any:
        """Computes `a // b`."""
        _require_numbers(left, right)
        return left // right

    def pow(self, left: Any, right: Any) -> Any:
        """Computes `a ** b`, if the result has not too many bits."""
        _require_numbers(left, right)
        if isinstance(left, int) and isinstance(right, int):
            _limit_bits(left.bit_length() * abs(right))
        return left**right

    def mod(self, left: Any, right: Any) -> Any:
        """Computes `a % b`, for numbers, or for a format string and its values."""
        if isinstance(left, str):
            return self._methods[str]["%"](self, left, right)
        _require_numbers(left, right)
        return left % right

    def compare(self, kind: str, left: Any, right: Any) -> Any:
        """Computes a comparison: `a == b`, `a < b`, `a in b` and so on. `kind` is Jinja's name of the operator, such as
        "eq" or "notin".
        """
        if kind == "in" or kind == "notin":
            return self.contains(left, right) == (kind == "in")
        if type(left) is str and type(right) is str:
            self.spend(min(len(left), len(right)) >> 4)
        elif isinstance(left, _CONTAINERS) and isinstance(right, _CONTAINERS) and left is not right:
            self.weigh(left)
            self.weigh(right)
        return _COMPARES[kind](left, right)

    def chain(self, kinds: tuple[str, ...], *values: Any) -> Any:
        """Computes a chain of comparisons, such as `a < b < c`."""
        result: Any = True
        for kind, left, right in zip(kinds, values, values[1:], strict=False):
            result = self.compare(kind, left, right)
            if not result:
                break
        return result

    def contains(self, value: Any, box: Any) -> bool:
        """Computes `value in box`."""
        if isinstance(box, str):
            if isinstance(value, str):
                self.scan(box, value)
        elif isinstance(box, dict):
            self.key(value)
        elif isinstance(box, _CONTAINERS):
            self.search(value, len(box))
        elif not isinstance(box, (range, Undefined)):
            box = self.listed(box)
            self.search(value, len(box))
        elif isinstance(box, range) and type(value) is not int:
            self.spend(len(box))
        return value in box

    def search(self, value: Any, count: int) -> None:
        """Takes units for comparing `value` with `count` others."""
        self.spend(count * (1 + self.weigh(value) // NODE))

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """Computes `value[start:stop:step]`."""
        part = value[start:stop:step]
        if isinstance(part, str):
            self.spend(len(part) >> 4)
        elif isinstance(part, (list, tuple)):
            self.spend(len(part) >> 1)
        return part

    def built(self, value: Any) -> Any:
        """Charges for a list, tuple or object that is written out in the template."""
        self.inflated = True
        return value

    # -- reading and calling

    def attr(self, owner: Any, name: str) -> Any:
        """Returns `owner.name`: a method or what Jinja shows of its own objects, otherwise the item of that name."""
        kind = type(owner)
        if kind is dict:
            if name in owner and name not in self._methods[dict]:
                return owner[name]
        elif kind in _READABLE and name in _READABLE[kind]:
            return getattr(owner, name)
        elif isinstance(owner, Undefined):
            return owner._fail_with_undefined_error()
        elif kind is Namespace and not name.startswith("_"):
            return getattr(owner, name, self.environment.undefined(None, owner, name))
        if name in self.methods_of(owner):
            return Method(owner, name)
        if name.startswith("_"):
            return self.environment.undefined(
                f"access to attribute {name!r} of {kind.__name__!r} object is unsafe.", name=name, exc=SecurityError
            )
        return owner[name] if kind is dict and name in owner else self.environment.undefined(None, owner, name)

    def item(self, owner: Any, key: Any) -> Any:
        """Returns `owner[key]`: the item, otherwise the attribute of that name."""
        if type(key) is not str and type(key) not in _SCALARS:
            self.weigh(key)
        if isinstance(owner, _INDEXED):
            try:
                return owner[key]
            except (TypeError, LookupError):
                pass
        return self.attr(owner, key) if isinstance(key, str) else self.environment.undefined(None, owner, key)

    def methods_of(self, owner: Any) -> Mapping[str, Callable[..., Any]]:
        """Returns the methods, by name, that a template may call on this value."""
        found = self._methods.get(type(owner))
        if found is None:
            found = next((table for kind, table in self._methods.items() if isinstance(owner, kind)), {})
        return found

    def method(self, owner: Any, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a method: `owner.name(…)`."""
        run = self.methods_of(owner).get(name)
        if run is not None:
            return run(self, owner, *args, **kwargs)
        return self.call(self.attr(owner, name), *args, **kwargs)

    def call(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Calls a function or macro: `function(…)`."""
        if isinstance(function, (Macro, LoopContext, Joiner, Undefined)):
            return function(*args, **kwargs)
        if isinstance(function, Global):
            return function.run(self, *args, **kwargs)
        if isinstance(function, Method):
            return self.method(function.owner, function.name, *args, **kwargs)
        raise SecurityError(f"a {type(function).__name__!r} object is not callable")


def _require_numbers(left: Any, right: Any) -> None:
    """Raises an error for operands that are not numbers, whose operator could have any cost. Undefined values raise
    their own error.
    """
    for value in (left, right):
        if not isinstance(value, (int, float, Undefined)):
            raise TypeError(f"unsupported operand types: {type(left).__name__!r} and {type(right).__name__!r}")


def _limit_bits(bits: int) -> None:
    if bits > MAX_INT_BITS:
        raise TooMuchWork
