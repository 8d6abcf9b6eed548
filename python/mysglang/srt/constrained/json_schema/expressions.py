"""A grammar as Lark writes it, for llguidance, or as one regular expression, for outlines-core.

Both read the regular expressions of Rust's `regex-syntax`.
"""

from __future__ import annotations

import json
from functools import lru_cache

from mysglang.srt.constrained.backend import GrammarError, JsonStyle
from mysglang.srt.constrained.json_schema.automata import as_expression, automaton
from mysglang.srt.constrained.json_schema.encoding import ANY_CHARACTER, written
from mysglang.srt.constrained.json_schema.grammar import Grammar
from mysglang.srt.constrained.json_schema.patterns import whole
from mysglang.srt.constrained.json_schema.regular import (
    ANY,
    ANYTHING,
    EMPTY,
    Expr,
    both,
    cat,
    char_class,
    inverse,
    only_text,
    plain,
    rep,
    text,
)
from mysglang.srt.constrained.json_schema.rules import ROOT, times

MAX_NODES = 60_000
"""Nodes of the regular expression of one language."""
MAX_TEXT = 1 << 20
"""Characters of a whole grammar."""
NESTING = (2, 1, 0)
"""How often a rule may contain itself, where recursion must end: as often as ..."""
MAX_NESTED_TEXT = 6_000
"""... gives an expression of at most so many characters. The table that is made of it grows faster than its length."""

_SPACE = "SPACE"
_SPACES = char_class([(9, 10), (13, 13), (32, 32)])


def space_of(style: JsonStyle) -> Expr:
    """Returns the language of white space between tokens of JSON. It contains the empty text."""
    if style.whitespace_pattern is not None:
        return whole(style.whitespace_pattern)
    return rep(_SPACES, 0, style.max_whitespace) if style.any_whitespace else EMPTY


@lru_cache(4096)
def regex(expr: Expr) -> str:
    """Returns a regular expression for the language of `expr`. Raises GrammarError if it would be too long."""
    if not plain(expr):
        expr = as_expression(automaton(expr), MAX_NODES)
    return _regex(expr)


@lru_cache(4096)
def quoted_regex(language: Expr) -> str:
    """Returns the JSON strings whose values are in `language`."""
    if language == ANYTHING or (language.kind == "rep" and language.parts[0] == ANY):
        inside = rep(ANY_CHARACTER, *language.bounds)
    else:
        inside = written(language if plain(language) else as_expression(automaton(language), MAX_NODES))
    return _regex(cat(text('"'), inside, text('"')))


def _regex(expr: Expr) -> str:
    match expr.kind:
        case "class":
            return "[" + "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in expr.ranges) + "]"
        case "empty":
            return "(?:)"
        case "cat":
            return "".join(map(_regex, expr.parts))
        case "alt":
            return "(?:" + "|".join(map(_regex, expr.parts)) + ")"
        case "rep":
            return f"(?:{_regex(expr.parts[0])}){times(*expr.bounds)}"
    raise GrammarError("no text satisfies a part of it")


def _char(code: int) -> str:
    character = chr(code)
    return character if character.isascii() and character.isalnum() else f"\\x{{{code:x}}}"


def as_lark(grammar: Grammar, style: JsonStyle, start: str = "start") -> str:
    """Returns the rules as a grammar in Lark's syntax, where each regular language is one terminal."""
    space = both(space_of(style), inverse(EMPTY))
    # A terminal with a name is read once, however often the rules name it.
    maybe_space = "" if automaton(space).steps == () else f"{_SPACE}?"
    between = {
        "space": maybe_space,
        "comma": f'{maybe_space} "," {maybe_space}',
        "colon": f'{maybe_space} ":" {maybe_space}',
    }
    lines = [f"{start}: {ROOT}"]
    if maybe_space:
        lines.append(f"{_SPACE}: /{regex(space)}/")
    for name, expr in grammar.rules.items():
        lines.append(f"{name}: {_lark(expr, between)}")
        if sum(map(len, lines[-2:])) > MAX_TEXT:
            raise GrammarError(f"its grammar has more than {MAX_TEXT >> 20} MiB")
    return "\n".join(lines) + "\n"


def _lark(expr: Expr, between: dict[str, str]) -> str:
    match expr.kind:
        case "ref":
            return str(expr.args[0])
        case "word":
            only = only_text(expr.parts[0])
            return f"/{regex(expr.parts[0])}/" if only is None else json.dumps(only)
        case "quoted":
            return f"/{quoted_regex(expr.parts[0])}/"
        case "empty":
            return '""'
        case "cat":
            return " ".join(_lark(part, between) for part in expr.parts)
        case "alt":
            options = " | ".join(_lark(part, between) for part in expr.parts if part != EMPTY)
            return f"({options})?" if EMPTY in expr.parts else f"({options})"
        case "rep":
            return f"({_lark(expr.parts[0], between)}){times(*expr.bounds)}"
    return between[expr.kind] or '""'


def one_regex(grammar: Grammar, style: JsonStyle) -> str:
    """Returns the grammar as one regular expression; rules that refer to themselves are inlined a few times at most.

    Raises GrammarError if it is too long, or if nothing is left.
    """
    space = regex(space_of(style))
    between = {"space": space, "comma": f"{space},{space}", "colon": f"{space}:{space}"}
    if style.pattern == "":
        between |= {"comma": ", ", "colon": ": "}
    for nesting in NESTING:
        most = MAX_NESTED_TEXT if nesting else MAX_TEXT
        try:
            found = _Inliner(grammar, between, nesting, most).inlined(Expr("ref", ROOT), {})
        except _TooLongError:
            continue
        if found is not None:
            return found
        raise GrammarError("it is recursive without an end that a regular expression can say")
    raise GrammarError(f"its regular expression has more than {MAX_TEXT >> 20} MiB")


class _TooLongError(Exception):
    pass


class _Inliner:
    """One attempt to write a grammar without rules, by inlining them."""

    def __init__(self, grammar: Grammar, between: dict[str, str], nesting: int, most: int) -> None:
        self._nesting = nesting
        self._most = most
        self._rules = grammar.rules
        self._between = between
        self._chars = 0

    def inlined(self, expr: Expr, inside: dict[str, int]) -> str | None:
        """Returns `expr` as a regular expression with its rules inlined; None if it accepts nothing. `inside`: how
        often each rule is nested already.
        """
        match expr.kind:
            case "ref":
                name = str(expr.args[0])
                depth = inside.get(name, 0)
                if depth > self._nesting:
                    return None
                return self.inlined(self._rules[name], {**inside, name: depth + 1})
            case "word":
                return self._counted(regex(expr.parts[0]))
            case "quoted":
                return self._counted(quoted_regex(expr.parts[0]))
            case "empty":
                return ""
            case "cat":
                parts = [self.inlined(part, inside) for part in expr.parts]
                return None if None in parts else "".join(part or "" for part in parts)
            case "alt":
                options = [found for part in expr.parts if (found := self.inlined(part, inside)) is not None]
                return f"(?:{'|'.join(options)})" if options else None
            case "rep":
                part = self.inlined(expr.parts[0], inside)
                least, most = expr.bounds
                if part is None:
                    return None if least else ""
                return f"(?:{part}){times(least, most)}"
        return self._counted(self._between[expr.kind])

    def _counted(self, found: str) -> str:
        self._chars += len(found)
        if self._chars > self._most:
            raise _TooLongError
        return found
