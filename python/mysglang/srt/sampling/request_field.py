"""RequestField: the single description of a request's field: its meaning, its bounds, and the routes that have it.

It is part of the annotation of a struct's field:

    chill: Annotated[float, RequestField("Cools the draws by this part, 0 to 1.", (between(0, 1),))] = 0.0

The wire struct and the native route are this struct; the models of the other routes, the names that an unknown field is
compared with, /openapi.json and docs/api.md are made from it. This module imports no route.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

Dialect: TypeAlias = Literal["openai", "responses", "ollama", "anthropic"]
"""The routes other than the native one. "openai": chat and plain completions."""

MAX_ENTRIES = 1 << 16
"""Limit for the entries of a list or map, checked before the entries are."""

SHORT = msgspec.Meta(max_length=MAX_ENTRIES)

OR_ONE = msgspec.Meta(extra_json_schema={"x-or-one": True})
"""Marks a list that clients may leave out around its only entry."""


class Bound(NamedTuple):
    """Condition for a value that is not null."""

    holds: Callable[[Any], bool]
    limit: str
    """The condition in words, to be read after "must be"."""


def between(low: float, high: float) -> Bound:
    """Returns a check that a value is between two bounds, both included."""
    return Bound(lambda value: low <= value <= high, f"between {_shown(low)} and {_shown(high)}")


def at_least(low: int) -> Bound:
    return Bound(lambda value: value >= low, f"at least {low}")


def at_most(count: int, what: str) -> Bound:
    """Returns a check that a list has at most so many entries."""
    return Bound(lambda value: len(value) <= count, f"a list of at most {count} {what}")


def _shown(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"


def on(*dialects: Dialect, name: str = "") -> Mapping[Dialect, str]:
    """Returns the routes that have the field under this name. Without a name, the field has the name of the native
    route there.
    """
    return dict.fromkeys(dialects, name)


class RequestField(msgspec.Struct, frozen=True, eq=False):
    """Facts about a field that a type and a default cannot express."""

    text: str
    """Its meaning, for people. It may end in " Default: ...", which is left out where the field is required."""
    bounds: tuple[Bound, ...] = ()
    routes: Mapping[Dialect, str] = msgspec.field(default_factory=lambda: on("openai"))
    """Dialect -> name, for the routes other than the native one on which clients may send it. Routes with a form of
    their own for it are absent.
    """
    aliases: tuple[str, ...] = ()
    """Other names on OpenAI's routes, which clients of other servers use."""
    recommended: str | None = None
    """Set for a field that the model's generation_config.json may have a default for: the default in words where that
    file says nothing. The native route does not ask the file."""
    as_ours: Callable[[Any], Any] | None = None
    """Converts a value of generation_config.json or of Ollama where their form differs."""
    with_beams: bool = False
    """True if it may be combined with beam search, which honours it or does not depend on it."""
    has_effect: bool = True
    """False: it is taken, and changes nothing."""
    are_token_ids: bool = False
    """True if its entries, or keys, are token ids, which the model must have."""
    work: Callable[[Any], int] | None = None
    """About how much work it is to verify a value: as much as to tokenize so many characters."""
    held_bytes: Callable[[Any], int] | None = None
    """About how many bytes a scheduler holds for each answer because of a value."""


class Declared(NamedTuple):
    """A field of a struct with all its declared facts."""

    name: str
    type: Any
    """The annotated type."""
    default: Any
    """The default. A new object at each access if it is a list or a map."""
    facts: RequestField
    or_one: bool

    def name_on(self, dialect: Dialect) -> str | None:
        """Returns the field's name on this dialect's routes; None if they do not have it."""
        name = self.facts.routes.get(dialect)
        return None if name is None else name or self.name


def declared(struct: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """Returns the fields of `struct`, each of which has a default and a RequestField."""
    return tuple(_declared(found) for found in msgspec.structs.fields(struct))


def declared_among(struct: type[msgspec.Struct]) -> tuple[Declared, ...]:
    """Returns the fields of `struct` that have a RequestField."""
    return tuple(
        _declared(found) for found in msgspec.structs.fields(struct) if _declared_facts(_marks(found)) is not None
    )


def _declared(found: msgspec.structs.FieldInfo) -> Declared:
    facts = _declared_facts(marks := _marks(found))
    assert facts is not None, f"nothing is declared of {found.name}"
    default = found.default if found.default_factory is msgspec.NODEFAULT else found.default_factory()
    return Declared(found.name, found.type, default, facts, any(mark is OR_ONE for mark in marks))


def _marks(found: msgspec.structs.FieldInfo) -> tuple[object, ...]:
    return get_args(found.type)[1:] if get_origin(found.type) is Annotated else ()


def _declared_facts(marks: tuple[object, ...]) -> RequestField | None:
    return next((mark for mark in marks if isinstance(mark, RequestField)), None)


def joined(name: str, parts: Iterable[type[msgspec.Struct]]) -> type[msgspec.Struct]:
    """Returns a struct with the fields of all parts: it cannot be derived from several, as each has slots."""
    fields: list[tuple[str, Any, Any]] = []
    for part in parts:
        # Given outright, or else they were no globals of a bound's function, which needs them when it is called.
        names = vars(sys.modules[part.__module__])
        kinds = get_type_hints(part, names, names, include_extras=True)
        fields += [(each.name, kinds[each.name], _default(each)) for each in msgspec.structs.fields(part)]
    return msgspec.defstruct(name, fields, module=__name__, frozen=True, kw_only=True)


def _default(found: msgspec.structs.FieldInfo) -> Any:
    if found.default_factory is msgspec.NODEFAULT:
        return found.default
    return msgspec.field(default_factory=found.default_factory)
