"""Rules of JSON text: expressions of `regular.py` with seven more kinds of node.

ref(name)                another rule
word(expression)         a text of a regular language, as it stands
shared(expression)       the same, in a rule of its own
quoted(language)         a JSON string whose value is in a language
space, comma, colon      what stands between, as the style of the server has it
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mysglang.srt.constrained.backend import GrammarError
from mysglang.srt.constrained.json_schema.regular import NONE, Expr, alt, cat, rep

MAX_RULES = 20_000
"""Rules of one grammar."""
ROOT = "root"

SPACE, COMMA, COLON = Expr("space"), Expr("comma"), Expr("colon")


def ref(name: str) -> Expr:
    """Returns a reference to the rule of that name."""
    return Expr("ref", name)


def word(expr: Expr) -> Expr:
    """Makes `expr` a single word of the grammar, within which no white space is allowed."""
    return NONE if expr.kind == "none" else Expr("word", expr)


def shared(expr: Expr) -> Expr:
    """Makes `expr` a word that has a rule of its own, because masks are computed for each place where one is written.
    Only `ebnf.py` writes it.
    """
    return Expr("shared", expr)


def quoted(language: Expr) -> Expr:
    """Returns the language of a JSON string with these contents."""
    return NONE if language.kind == "none" else Expr("quoted", language)


class Rules:
    """Collects rules as they are made, and names them."""

    def __init__(self) -> None:
        self.made: dict[str, Expr] = {}
        self._known: dict[Expr, Expr] = {}

    def add(self, expr: Expr) -> Expr:
        """Returns a reference to the rule for `expr`, or `expr` itself where a rule is not worth it."""
        if expr.kind in ("ref", "none", "empty"):
            return expr
        if expr not in self._known:
            self._known[expr] = name = self.reserve()
            self.put(name, expr)
        return self._known[expr]

    def reserve(self) -> Expr:
        """Returns a reference to a rule that is put later. Raises GrammarError above MAX_RULES."""
        if len(self.made) >= MAX_RULES:
            raise GrammarError(f"its grammar has more than {MAX_RULES} rules")
        name = f"part{len(self.made)}"
        self.made[name] = NONE
        return ref(name)

    def put(self, reference: Expr, expr: Expr) -> None:
        """Defines a rule with a reserved name."""
        self.made[str(reference.args[0])] = expr


def pruned(rules: dict[str, Expr]) -> dict[str, Expr]:
    """Returns the rules without those that can never end, and without those that no rule refers to; an empty dict
    if the root can never end.
    """
    users: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for used in references(expr):
            users.setdefault(used, []).append(name)
    ending: set[str] = set()
    todo = [*rules]
    while todo:
        name = todo.pop()
        if name not in ending and _ends(rules[name], ending):
            ending.add(name)
            todo.extend(users.get(name, ()))
    if ROOT not in ending:
        return {}
    kept: dict[str, Expr] = {}
    order = [ROOT]
    for name in order:
        if name not in kept:
            kept[name] = _without_dead(rules[name], ending)
            order.extend(references(kept[name]))
    return kept


def references(expr: Expr) -> list[str]:
    """Returns the names of the rules that an expression refers to."""
    found, todo = [], [expr]
    for one in todo:
        if one.kind == "ref":
            found.append(str(one.args[0]))
        elif one.kind in ("cat", "alt", "rep"):
            todo.extend(one.parts)
    return found


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """Returns the expression with other names of rules. Names that are not in `names` stay."""
    return _replaced(expr, lambda name: ref(names.get(name, name)))


def _replaced(expr: Expr, new: Callable[[str], Expr]) -> Expr:
    """Returns the expression with something in place of each reference, by the name of the rule."""
    match expr.kind:
        case "ref":
            return new(str(expr.args[0]))
        case "cat":
            return cat(*(_replaced(part, new) for part in expr.parts))
        case "alt":
            return alt(*(_replaced(part, new) for part in expr.parts))
        case "rep":
            return rep(_replaced(expr.parts[0], new), *expr.bounds)
    return expr


def _ends(expr: Expr, ending: set[str]) -> bool:
    match expr.kind:
        case "none":
            return False
        case "ref":
            return expr.args[0] in ending
        case "cat":
            return all(_ends(part, ending) for part in expr.parts)
        case "alt":
            return any(_ends(part, ending) for part in expr.parts)
        case "rep":
            return expr.bounds[0] == 0 or _ends(expr.parts[0], ending)
    return True


def _without_dead(expr: Expr, ending: set[str]) -> Expr:
    return _replaced(expr, lambda name: ref(name) if name in ending else NONE)


def times(least: int, most: int | None) -> str:
    """Writes how often the preceding item may occur, as EBNF, Lark and regular expressions write it."""
    match least, most:
        case 0, None:
            return "*"
        case 1, None:
            return "+"
        case 0, 1:
            return "?"
    return f"{{{least},{'' if most is None else most}}}"
