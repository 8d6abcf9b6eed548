"""JoinedGrammars: the rules of several grammars in one text, in which rules that say the same are one rule.

What xgrammar makes of a text grows with the number of rules times the length of all, and masks are computed for each
rule. The tools of an agent have much in common: in grammars of their own, 32 of them took 20 seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from mysglang.srt.constrained.backend import JsonStyle
from mysglang.srt.constrained.json_schema.ebnf import Writer
from mysglang.srt.constrained.json_schema.grammar import Grammar
from mysglang.srt.constrained.json_schema.regular import Expr
from mysglang.srt.constrained.json_schema.rules import ROOT, references, renamed

MOST_COMPARED = 256
"""Rules of one grammar that refer to themselves, or to such rules. If there are more, these are not compared, because
each is followed through all others.
"""

Circle: TypeAlias = tuple[Expr, ...]
"""A rule and all circular rules that it reaches, numbered as they are reached."""


class JoinedGrammars:
    """Collects grammars, and gives their rules new names."""

    def __init__(self, style: JsonStyle, prefix: str) -> None:
        """`prefix`: the beginning of all names."""
        self._prefix = f"{prefix}of_"
        self._writer = Writer(style, prefix)
        self._names: dict[Expr, str] = {}
        """Rules, in which other rules have their new names -> their own new names."""
        self._circles: dict[Circle, str] = {}
        self._count = 0

    def add(self, grammar: Grammar) -> str:
        """Returns the name of the grammar's first rule. Raises GrammarError if all together are too long."""
        first, rules = _without_aliases(grammar.rules)
        names: dict[str, str] = {}
        awaited = {name: set(references(expr)) for name, expr in rules.items()}
        users: dict[str, list[str]] = {}
        for name, used in awaited.items():
            for one in used:
                users.setdefault(one, []).append(name)
        ready = [name for name, used in awaited.items() if not used]
        while ready:
            name = ready.pop()
            names[name] = self._name_of(renamed(rules[name], names))
            for user in users.get(name, ()):
                awaited[user].discard(name)
                if not awaited[user]:
                    ready.append(user)
        names |= self._circular({name: renamed(expr, names) for name, expr in rules.items() if name not in names})
        return names[first]

    def text(self) -> str:
        """Returns all rules as EBNF."""
        return self._writer.text()

    def _circular(self, rules: Mapping[str, Expr]) -> dict[str, str]:
        """Names the rules that refer to themselves, perhaps by way of others, and those that refer to such."""
        if len(rules) > MOST_COMPARED:
            names = {name: self._new_name() for name in rules}
            new = [*rules]
        else:
            keys = {name: _reached(name, rules) for name in rules}
            new = [name for key, name in {keys[name]: name for name in rules}.items() if key not in self._circles]
            self._circles |= {keys[name]: self._new_name() for name in new}
            names = {name: self._circles[key] for name, key in keys.items()}
        for name in new:
            self._writer.add(names[name], renamed(rules[name], names))
        return names

    def _name_of(self, rule: Expr) -> str:
        if rule not in self._names:
            self._names[rule] = name = self._new_name()
            self._writer.add(name, rule)
        return self._names[rule]

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"


def _without_aliases(rules: Mapping[str, Expr]) -> tuple[str, dict[str, Expr]]:
    """Returns the name of the first rule, and the rules without those that are only another name of a rule."""
    aliases: dict[str, str] = {}
    for name in rules:
        target = name
        while (expr := rules[target]).kind == "ref":
            target = str(expr.args[0])
        if target != name:
            aliases[name] = target
    return aliases.get(ROOT, ROOT), {
        name: renamed(expr, aliases) for name, expr in rules.items() if name not in aliases
    }


def _reached(start: str, rules: Mapping[str, Expr]) -> Circle:
    """Returns what is the same for two rules only if they say the same."""
    numbers = {start: "0"}
    order = [start]
    for name in order:
        for used in references(rules[name]):
            if used in rules and used not in numbers:
                numbers[used] = str(len(numbers))
                order.append(used)
    return tuple(renamed(rules[name], numbers) for name in order)
