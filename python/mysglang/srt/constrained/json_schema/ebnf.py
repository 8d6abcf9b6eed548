"""A grammar in EBNF, as xgrammar reads it."""

from __future__ import annotations

from mysglang.srt.constrained.backend import GrammarError, JsonStyle
from mysglang.srt.constrained.json_schema.automata import automaton
from mysglang.srt.constrained.json_schema.encoding import ANY_CHARACTER, ANY_ESCAPE, PLAIN, written
from mysglang.srt.constrained.json_schema.grammar import Grammar
from mysglang.srt.constrained.json_schema.patterns import whole
from mysglang.srt.constrained.json_schema.regular import ANY, ANYTHING, END, Expr, Ranges, alt, cat, plain, rep
from mysglang.srt.constrained.json_schema.rules import ref, times

MAX_TEXT = 4 << 20
"""Characters of a grammar."""
MOST_COUNTED = 128
"""Characters of a string that are counted one by one."""
LONG_RUN = 8
"""A run of characters of one class that may be so long has a rule."""
_QUOTE = '"\\""'
_SPACE = "space"
"""Beginning of the names of rules for whitespace whose length is limited."""


def ebnf(grammar: Grammar, style: JsonStyle) -> str:
    """Returns the rules as EBNF text, with `root` first."""
    writer = Writer(style)
    for name, expr in grammar.rules.items():
        writer.add(name, expr)
    return writer.text()


class Writer:
    """Writes rules. Those for languages that need an automaton, and those that all grammars share, are added as needed.

    Names of rules begin with `prefix`.
    """

    def __init__(self, style: JsonStyle, prefix: str = "") -> None:
        self._prefix = prefix
        self._space = _space(style, f"{prefix}{_SPACE}")
        self._most_spaces = style.max_whitespace if style.any_whitespace else None
        # One of these texts, or the end of the answer, follows a string. So the library knows which tokens can end it.
        self._ahead = f"(= {self._space} [,}}\\]:])" if self._space else ""
        self._between = {"space": self._space, "comma": f'{self._space} "," {self._space}'}
        self._between["colon"] = f'{self._space} ":" {self._space}'
        if style.pattern == "":
            self._between["comma"], self._between["colon"] = '", "', '": "'
        self._rules: dict[str, str] = {}
        self._machines: dict[tuple[Expr, bool], str] = {}
        self._runs: dict[Expr, Expr] = {}
        """Runs of characters -> references to their rules."""
        self._letters: dict[Expr, int] = {}
        """Classes of which strings have a counted number of characters -> their numbers in the names of rules."""
        self._chars = 0

    def add(self, name: str, expr: Expr) -> None:
        """Adds a rule of this name. Raises GrammarError if the text becomes too long."""
        self._put(name, self._body(expr))

    def text(self) -> str:
        """Returns all rules, in the order in which they were added."""
        if self._most_spaces is not None:
            self._put_spaces(self._most_spaces)
        return "".join(f"{name} ::= {body}\n" for name, body in self._rules.items())

    def _put_spaces(self, most: int) -> None:
        """Adds rules for up to `most` characters of whitespace, which all places share. With a repetition of 32 in each
        place, a schema with twelve properties took xgrammar 80 seconds instead of some milliseconds.
        """
        name = f"{self._prefix}{_SPACE}"
        for count in range(most):
            self._put(f"{name}{count}", rf'"" | [ \n\r\t] {name}{count + 1}')
        self._put(f"{name}{most}", '""')

    def plain(self, expr: Expr) -> str:
        """Writes an expression without rules."""
        return self._written(expr)

    def _body(self, expr: Expr) -> str:
        """Returns a rule. One that begins with an option is written as two ways: the library makes a rule of each
        group, and what it hands over grows with the number of rules times the length of all.
        """
        if expr.kind == "cat" and len(expr.parts) == 2 and expr.parts[1].kind == "ref":
            option, rest = expr.parts
            if option.kind == "rep" and option.bounds == (0, 1):
                return f"{self._written(option.parts[0])} {self._written(rest)} | {self._written(rest)}"
        return self._written(expr)

    def _put(self, name: str, body: str) -> None:
        self._chars += len(body)
        if self._chars > MAX_TEXT:
            raise GrammarError(f"its grammar has more than {MAX_TEXT >> 20} MiB")
        self._rules[name] = body

    def _written(self, expr: Expr) -> str:
        match expr.kind:
            case "ref":
                return str(expr.args[0])
            case "word":
                return self._word(expr.parts[0])
            case "shared":
                return self._shared(expr.parts[0])
            case "quoted":
                return self._quoted(expr.parts[0])
            case "space" | "comma" | "colon":
                return self._between[expr.kind] or '""'
            case "empty":
                return '""'
            case "class":
                return ebnf_class(expr.ranges)
            case "cat":
                return self._sequence(expr.parts)
            case "alt":
                return "(" + " | ".join(map(self._written, expr.parts)) + ")"
            case "rep":
                return f"({self._written(expr.parts[0])}){times(*expr.bounds)}"
        raise AssertionError(expr.kind)

    def _sequence(self, parts: tuple[Expr, ...]) -> str:
        """Writes a sequence. Adjacent characters become one literal."""
        found: list[str] = []
        literal: list[int] = []
        for part in parts:
            if part.kind == "class" and len(part.ranges) == 1 and part.ranges[0][0] == part.ranges[0][1]:
                literal.append(part.ranges[0][0])
                continue
            if literal:
                found.append(_literal(literal))
                literal = []
            found.append(self._written(part))
        if literal:
            found.append(_literal(literal))
        return " ".join(found)

    def _word(self, expr: Expr) -> str:
        if plain(expr):
            return self._written(expr)
        return self._machine(expr, in_string=False)

    def _shared(self, expr: Expr) -> str:
        return str(self._run(expr).args[0]) if plain(expr) else self._machine(expr, in_string=False)

    def _quoted(self, language: Expr) -> str:
        if language == ANYTHING:
            return self._any_string()
        if language.kind == "rep" and language.bounds != (0, None) and _has_two_ways(language.parts[0]):
            return self._bounded(language.parts[0], *language.bounds)
        if plain(language):
            return f"{_QUOTE} {self._written(self._with_runs(written(language)))} {_QUOTE}"
        return f"{_QUOTE} {self._machine(language, in_string=True)}"

    def _bounded(self, part: Expr, least: int, most: int | None) -> str:
        """Writes a string of `least` to `most` characters of the class `part`.

        A character of a rule of its own, repeated, would be shorter. But the library then tries out each token for each
        mask, which takes it 50 ms with a vocabulary of 129,000 tokens.
        """
        if (least if most is None else most) <= MOST_COUNTED:
            return f"{_QUOTE} {self._counted(part, least, most)}"
        if most is None:
            return f"{_QUOTE} ({self._written(_as_written(part))}){times(least, most)} {_QUOTE}"
        plain, _ = _plain_and_escaped(part)
        return f"{_QUOTE} {self._written(plain)}{times(least, most)} {_QUOTE}"

    def _counted(self, part: Expr, least: int, most: int | None) -> str:
        """Returns the rule of the rest of a string in which `least` to `most` characters are still to come."""
        letter = self._letters.setdefault(part, len(self._letters))
        name = f"{self._prefix}rest{letter}_{least}_{'any' if most is None else most}"
        if name not in self._rules:
            self._rules[name] = ""  # its place: without a bound, the rule names itself
            ways = [] if least else [_QUOTE]
            if most != 0:
                plain, escaped = _plain_and_escaped(part)
                after = self._counted(part, max(least - 1, 0), None if most is None else most - 1)
                escape = f"{self._prefix}escape{letter}"
                self._put(escape, self._written(escaped))
                ways += [f"{self._written(plain)} {after}", f"{escape} {after}"]
            self._put(name, f"({' | '.join(ways)}) {self._ahead}")
        return name

    def _with_runs(self, expr: Expr) -> Expr:
        """Returns the expression with references to rules in place of its long runs of characters.

        The library works out masks for each character of a run, and does so for each place where the run is written.
        Formats repeat theirs: the host of an e-mail address has up to ten.
        """
        match expr.kind:
            case "cat":
                return cat(*map(self._with_runs, expr.parts))
            case "alt":
                return alt(*map(self._with_runs, expr.parts))
            case "rep":
                most = expr.bounds[1]
                if expr.parts[0].kind == "class" and most is not None and most >= LONG_RUN:
                    return self._run(expr)
                return rep(self._with_runs(expr.parts[0]), *expr.bounds)
        return expr

    def _run(self, expr: Expr) -> Expr:
        if expr not in self._runs:
            name = f"{self._prefix}run{len(self._runs)}"
            self._runs[expr] = ref(name)
            self._put(name, self._written(expr))
        return self._runs[expr]

    def _any_string(self) -> str:
        """Returns the rule of a string of which nothing is asked."""
        name = f"{self._prefix}string"
        if name not in self._rules:
            rest = f"{name}_rest"
            self._put(name, f"{_QUOTE} {rest}")
            ways = f"{_QUOTE} | {ebnf_class(PLAIN)} {rest} | {self._written(ANY_ESCAPE)} {rest}"
            self._put(rest, f"({ways}) {self._ahead}")
        return name

    def _machine(self, expr: Expr, *, in_string: bool) -> str:
        """Writes the rules of an automaton, and returns the name of its first state's rule; in a string, the quote that
        ends it is part of the rules.
        """
        key = expr, in_string
        if key in self._machines:
            return self._machines[key]
        machine = automaton(expr)
        prefix = f"{self._prefix}m{len(self._machines)}_"
        self._machines[key] = f"{prefix}0"
        for state, steps in enumerate(machine.steps):
            ways = []
            if machine.ends[state]:
                ways.append(_QUOTE if in_string else '""')
            for step, target in steps:
                ways.append(f"{self._written(written(step) if in_string else step)} {prefix}{target}")
            self._put(f"{prefix}{state}", " | ".join(ways))
        return self._machines[key]


def _as_written(part: Expr) -> Expr:
    """Returns how characters of a class are written in a string. Only those of which nothing is asked may be written in
    several ways.
    """
    return ANY_CHARACTER if part == ANY else written(part) if part.kind == "class" else part


def _has_two_ways(part: Expr) -> bool:
    """True for a class of which some characters are written as themselves, and some by an escape."""
    ways = _as_written(part)
    return part.kind == "class" and ways.kind == "alt" and any(way.kind == "class" for way in ways.parts)


def _plain_and_escaped(part: Expr) -> tuple[Expr, Expr]:
    """Returns the two ways to write a character of a class: as itself, and by an escape."""
    ways = _as_written(part).parts
    return alt(*(way for way in ways if way.kind == "class")), alt(*(way for way in ways if way.kind != "class"))


def _space(style: JsonStyle, name: str) -> str:
    """Returns whitespace as it is written. `name`: the beginning of the names of rules for it."""
    if style.whitespace_pattern is not None:
        return Writer(JsonStyle()).plain(whole(style.whitespace_pattern))
    if not style.any_whitespace:
        return ""
    return r"[ \n\r\t]*" if style.max_whitespace is None else f"{name}0"


LAST_ASCII = 0x7F


def ebnf_class(ranges: Ranges) -> str:
    """Returns a class of characters as text. Escapes have a fixed length: a digit after a shorter one would become part
    of it.

    Ranges on both sides of the surrogates are joined, because `utf8.py` keeps surrogates out of answers anyway. A
    class with the last character is written as a negated one, which the library stores best, unless it leaves out
    characters beyond ASCII: xgrammar allows these in a negated class.
    """
    whole: list[tuple[int, int]] = []
    for first, last in ranges:
        if whole and first == 0xE000 and whole[-1][1] == 0xD7FF:
            whole[-1] = whole[-1][0], last
        else:
            whole.append((first, last))
    starts = [0, *(last + 1 for _, last in whole[:-1])]
    between = [(start, first - 1) for start, (first, _) in zip(starts, whole, strict=True) if start < first]
    negated = whole[-1][1] == END - 1 and all(last <= LAST_ASCII for _, last in between)
    if negated:
        whole = between
    if negated and not whole:
        return r"[\0-\U0010ffff]"
    members = "".join(_char(a) if a == b else f"{_char(a)}-{_char(b)}" for a, b in whole)
    return f"[{'^' if negated else ''}{members}]"


def _literal(codes: list[int]) -> str:
    return '"' + "".join(map(_char, codes)) + '"'


def _char(code: int) -> str:
    character = chr(code)
    if character.isascii() and (character.isalnum() or character in " ,:.+{}"):
        return character
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
