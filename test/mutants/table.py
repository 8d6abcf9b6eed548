"""The table of mutants: for each promise, small mistakes in the code of mysglang, and the test that must notice each.

The table is the `*.toml` files beside this module, one for each section of `test/promises.toml`. `mutants.run` applies
the mistakes one by one. This module reads the table and says what is wrong with an entry; it runs nothing.
"""

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDER = Path(__file__).parent

WHAT_TO_DO = (
    "The code that this mutant changes was moved or rewritten. Find the line that does the same now, and correct "
    "`file`, `text` and `instead` of the entry. If the mechanism is gone, name another mistake that breaks the "
    "promise. Then run `make mutants ARGS=\"'{name}'\"`: the test must fail with the mutant."
)


class NoMatch(Exception):
    """The text of a mutant does not occur exactly once in its file."""


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    promise: int
    file: str
    """The file with the mistake, relative to the repository."""
    text: str
    """What is replaced. It occurs exactly once in the file."""
    instead: str
    """What stands there instead; empty if the text is removed."""
    test: str
    """The node id, relative to test/, of the test that must fail."""
    table: str = ""
    """The file of this entry."""

    @property
    def file_of_test(self) -> str:
        return self.test.partition("::")[0]

    @property
    def function(self) -> str:
        """The test in its file, without the parameters of one of its cases."""
        return self.test.partition("::")[2].partition("[")[0]

    def applied(self, root: Path = REPOSITORY) -> str:
        """The source of the file with the mistake. Raises NoMatch."""
        path = root / self.file
        if not path.is_file():
            raise NoMatch(self._complaint("there is no such file"))
        source = path.read_text(encoding="utf-8")
        if (times := source.count(self.text)) != 1:
            raise NoMatch(self._complaint(f"the text occurs {times} times"))
        return source.replace(self.text, self.instead)

    def _complaint(self, what: str) -> str:
        return f"{self.table}: mutant {self.name!r}: {self.file}: {what}. {WHAT_TO_DO.format(name=self.name)}"


@dataclass(frozen=True)
class Table:
    mutants: tuple[Mutant, ...]
    without: dict[int, str]
    """Promises that have no mutant, with the reason."""


def load(folder: Path = FOLDER) -> Table:
    """The whole table, in the order of the promises. Raises TypeError for an entry with a wrong or a missing field."""
    mutants: list[Mutant] = []
    without: dict[int, str] = {}
    for path in sorted(folder.glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        mutants += [Mutant(table=path.name, **entry) for entry in content.get("mutant", ())]
        without |= {entry["promise"]: entry["why"] for entry in content.get("without", ())}
    return Table(tuple(sorted(mutants, key=lambda mutant: mutant.promise)), without)


def names_in(file: Path) -> set[str]:
    """The functions of `file` as pytest names them: `function` or `Class::function`. Empty if there is no such file."""
    if not file.is_file():
        return set()
    return set(_names(ast.parse(file.read_text(encoding="utf-8"))))


def _names(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield from _names(node, f"{prefix}{node.name}::")
