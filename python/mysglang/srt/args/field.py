"""How an option is declared: a dataclass field that carries its help, its range and its aliases.

Knows field types and turns them into what a command line needs to know. Knows no particular option and no argparse.
"""

from __future__ import annotations

import math
import types
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as a reader of command lines or keyword arguments sees it."""

    name: str
    """Field name, which is also the keyword; the flag is `--` and the name with dashes."""
    kind: type
    """bool, int, float or str; of the items, if there are many."""
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    many: bool = False
    optional: bool = False
    aliases: tuple[str, ...] = ()
    """Other names, in the field's spelling."""
    at_least: float | None = None
    at_most: float | None = None
    needs: str | None = None
    """Name of an option without which this one has no effect, so that giving it alone is an error."""

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    def complaint(self, value: Any) -> str | None:
        """Returns an error message if `value` is invalid, or None. The values of a list are checked one by one."""
        if value is None:
            return None if self.optional else f"{self.flag} needs a value."
        if self.many and not isinstance(value, (list, tuple)):
            return f"{self.flag} must be a list, got {value!r}."
        for item in value if self.many else (value,):
            if not _is_a(item, self.kind):
                return f"{self.flag} must be {_WORDS[self.kind]}, got {item!r}."
            if self.choices and item not in self.choices:
                return f"{self.flag} must be one of {', '.join(self.choices)}; got {item!r}."
            # A variable of a shell that is not set leaves an empty value, which would turn an API key off in silence.
            if isinstance(item, str) and not item.strip() and item != self.default:
                return f"{self.flag} is empty; give a value, or leave it out."
            if self._outside(item):
                return f"{self.flag} must be {self._range()}, got {item}."
            # JSON between the processes has no infinity: a child would find nothing in its place.
            if isinstance(item, float) and not math.isfinite(item):
                return f"{self.flag} must be a finite number, got {item}."
        return None

    def _outside(self, item: Any) -> bool:
        below = self.at_least is not None and not item >= self.at_least
        return below or (self.at_most is not None and not item <= self.at_most)

    def _range(self) -> str:
        if self.at_least is None:
            assert self.at_most is not None, "nothing is outside without a bound"
            return f"at most {written(self.at_most)}"
        if self.at_most is None:
            return f"at least {written(self.at_least)}"
        return f"between {written(self.at_least)} and {written(self.at_most)}"


def written(bound: float) -> str:
    """Writes a bound, whole numbers with all their digits."""
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def arg(
    default: T,
    *,
    help: str,
    aliases: tuple[str, ...] = (),
    at_least: float | None = None,
    at_most: float | None = None,
    needs: str | None = None,
) -> T:
    """Returns a dataclass field that is an option. The range, given in numbers, includes both its ends. `needs`: name
    of the option that must be given, too.
    """
    metadata = {"help": help, "aliases": aliases, "at_least": at_least, "at_most": at_most, "needs": needs}
    return field(default=default, metadata=metadata)


def options(group: type) -> list[Option]:
    """Returns the options of a group (a dataclass whose fields are made by `arg`), in the order they are written."""
    hints = get_type_hints(group)
    return [_option(item.name, hints[item.name], item.default, dict(item.metadata)) for item in fields(group)]


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


_WORDS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


def _option(name: str, hint: Any, default: Any, metadata: dict[str, Any]) -> Option:
    if default is MISSING:
        raise TypeError(f"option {name} has no default")
    optional = False
    if get_origin(hint) in (Union, types.UnionType):
        members = [member for member in get_args(hint) if member is not type(None)]
        optional = len(members) < len(get_args(hint))
        (hint,) = members
    many = get_origin(hint) is tuple
    if many:
        hint = get_args(hint)[0]
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    kind = str if choices else hint
    if kind not in _WORDS:
        raise TypeError(f"option {name} has a type that no command line can carry: {hint}")
    return Option(name, kind, default, choices=choices, many=many, optional=optional, **metadata)


def _is_a(item: Any, kind: type) -> bool:
    if kind is float:
        return isinstance(item, (int, float)) and not isinstance(item, bool)
    if kind is int:
        return isinstance(item, int) and not isinstance(item, bool)
    return isinstance(item, kind)
