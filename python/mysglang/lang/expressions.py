"""Expressions: what a program adds to its state with `s += ...`. They are data; a `Visitor` runs or traces them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mysglang.lang.choices import ChoicesSamplingMethod, token_length_normalized
from mysglang.lang.sampling import SamplingParams

REASONING_SUFFIX = "_reasoning_content"
"""`separate_reasoning(gen("x"))` puts the model's thoughts into the variable `x_reasoning_content`, as SGLang does."""


class Source(Protocol):
    """Another state, whose results an expression uses."""

    def get_var(self, name: str) -> Any:
        """Returns the value of a variable, when it is final."""
        ...

    def added_text(self) -> str:
        """Returns the text that was added since the state was forked, when it is final."""
        ...


class Visitor(Protocol):
    """Runs or traces expressions."""

    def fill(self, value: str) -> None: ...
    def gen(self, expression: Gen) -> None: ...
    def select(self, expression: Select) -> None: ...
    def role_begin(self, role: str) -> None: ...
    def role_end(self, role: str) -> None: ...
    def media(self, expression: Media) -> None: ...
    def variable(self, expression: Variable) -> None: ...
    def argument(self, expression: Argument) -> None: ...
    def var_scope_begin(self, name: str) -> None: ...
    def var_scope_end(self, name: str) -> None: ...
    def commit(self) -> None: ...
    def append_forks(self, forks: Sequence[Source]) -> None: ...
    def separate_reasoning(self, name: str, model_type: str | None) -> None: ...


class Expression:
    """Base of all expressions. Expressions and strings can be joined with `+`."""

    def visit(self, visitor: Visitor) -> None:
        """Call the visitor's method for this kind of expression."""
        raise NotImplementedError

    def names(self) -> Iterator[str]:
        """Yields the names of the variables that this expression sets."""
        return iter(())

    def __add__(self, other: Expression | str) -> Expression:
        return _joined(self, other)

    def __radd__(self, other: Expression | str) -> Expression:
        return _joined(other, self)


@dataclass(frozen=True, slots=True)
class Text(Expression):
    """Constant text."""

    value: str

    def visit(self, visitor: Visitor) -> None:
        visitor.fill(self.value)


@dataclass(frozen=True, slots=True)
class Sequential(Expression):
    """Several expressions, one after the other."""

    parts: tuple[Expression, ...]

    def visit(self, visitor: Visitor) -> None:
        for part in self.parts:
            part.visit(visitor)

    def names(self) -> Iterator[str]:
        for part in self.parts:
            yield from part.names()


@dataclass(frozen=True, slots=True)
class Gen(Expression):
    """A generation by the model."""

    name: str | None
    params: SamplingParams

    def visit(self, visitor: Visitor) -> None:
        visitor.gen(self)

    def names(self) -> Iterator[str]:
        if self.name is not None:
            yield self.name


@dataclass(frozen=True, slots=True)
class Select(Expression):
    """A choice by the model between given texts."""

    name: str | None
    choices: tuple[str, ...]
    temperature: float = 0.0
    method: ChoicesSamplingMethod = token_length_normalized

    def __post_init__(self) -> None:
        if not self.choices or not all(isinstance(choice, str) and choice for choice in self.choices):
            raise ValueError(f"choices must be a non-empty list of non-empty texts; got {list(self.choices)!r}.")

    def visit(self, visitor: Visitor) -> None:
        visitor.select(self)

    def names(self) -> Iterator[str]:
        if self.name is not None:
            yield self.name


@dataclass(frozen=True, slots=True)
class RoleBegin(Expression):
    """The beginning of a message of `role`."""

    role: str

    def visit(self, visitor: Visitor) -> None:
        visitor.role_begin(self.role)


@dataclass(frozen=True, slots=True)
class RoleEnd(Expression):
    """The end of a message of `role`."""

    role: str

    def visit(self, visitor: Visitor) -> None:
        visitor.role_end(self.role)


@dataclass(frozen=True, slots=True)
class Media(Expression):
    """An image (a path, a URL, base64 text or bytes) or a video of which `num_frames` pictures are shown."""

    source: Any
    kind: str
    num_frames: int | None = None

    def visit(self, visitor: Visitor) -> None:
        visitor.media(self)


@dataclass(frozen=True, slots=True)
class Variable(Expression):
    """The value that another state will have under `name`; waited for only when it is needed."""

    name: str
    source: Source

    def visit(self, visitor: Visitor) -> None:
        visitor.variable(self)


@dataclass(frozen=True, slots=True)
class Argument(Expression):
    """Stands for an argument of a program while the program is traced."""

    name: str

    def visit(self, visitor: Visitor) -> None:
        visitor.argument(self)

    def __format__(self, spec: str) -> str:
        raise TypeError(f"the argument {self.name!r} has no value while the program is traced.")

    def __bool__(self) -> bool:
        raise TypeError(f"the argument {self.name!r} has no value while the program is traced.")


@dataclass(frozen=True, slots=True)
class VarScopeBegin(Expression):
    """The text from here to the scope's end becomes the variable `name`."""

    name: str

    def visit(self, visitor: Visitor) -> None:
        visitor.var_scope_begin(self.name)

    def names(self) -> Iterator[str]:
        yield self.name


@dataclass(frozen=True, slots=True)
class VarScopeEnd(Expression):
    """The end of the scope `name`."""

    name: str

    def visit(self, visitor: Visitor) -> None:
        visitor.var_scope_end(self.name)


@dataclass(frozen=True, slots=True)
class Commit(Expression):
    """Asks the backend to cache all text so far."""

    def visit(self, visitor: Visitor) -> None:
        visitor.commit()


@dataclass(frozen=True, slots=True)
class AppendForks(Expression):
    """Append what each fork added since it was forked, in order."""

    forks: tuple[Source, ...]

    def visit(self, visitor: Visitor) -> None:
        visitor.append_forks(self.forks)


@dataclass(frozen=True, slots=True)
class SeparateReasoning(Expression):
    """Runs `inner`, then removes the model's thoughts from each variable that it set."""

    inner: Expression
    model_type: str | None

    def visit(self, visitor: Visitor) -> None:
        self.inner.visit(visitor)
        for name in self.inner.names():
            visitor.separate_reasoning(name, self.model_type)

    def names(self) -> Iterator[str]:
        for name in self.inner.names():
            # Set twice: by `inner`, and again without the thoughts. A reader must get the second.
            yield from (name, name, name + REASONING_SUFFIX)


def expression(value: object) -> Expression:
    """Returns `value` as an expression. Raises TypeError if it cannot be added to a state."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, str):
        return Text(value)
    raise TypeError(f"only text and expressions can be added to a program's state; got {type(value).__name__}.")


def in_role(role: str, inner: Expression | str | None) -> Expression:
    """Returns a whole message."""
    between = () if inner is None else (expression(inner),)
    return Sequential((RoleBegin(role), *between, RoleEnd(role)))


def _joined(a: Expression | str, b: Expression | str) -> Expression:
    return Sequential((*_parts(a), *_parts(b)))


def _parts(value: Expression | str) -> tuple[Expression, ...]:
    whole = expression(value)
    return whole.parts if isinstance(whole, Sequential) else (whole,)
