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
    file: str
    """The file with the mistake, relative to the repository."""
    text: str
    """The text that is replaced. It occurs exactly once in the file."""
    instead: str
    """The replacement; empty if the text is removed."""
    test: str
    """The node id, relative to test/, of the test that must fail."""
    promise: int = 0
    """The number of the promise that it breaks; 0 for a mistake as bad that breaks none of them."""
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
            raise NoMatch(self._complaint(root, "there is no such file"))
        source = path.read_text(encoding="utf-8")
        if (times := source.count(self.text)) != 1:
            raise NoMatch(self._complaint(root, f"the text occurs {times} times"))
        return source.replace(self.text, self.instead)

    def _complaint(self, root: Path, what: str) -> str:
        sources = (root / "python").rglob("*.py")
        others = [path for path in sources if path != root / self.file and self.text in path.read_text("utf-8")]
        found = "".join(f" It occurs in {path.relative_to(root).as_posix()}." for path in others)
        return f"{self.table}: mutant {self.name!r}: {self.file}: {what}.{found} {WHAT_TO_DO.format(name=self.name)}"


def load(folder: Path = FOLDER) -> list[Mutant]:
    """All mutants, in the order of their promises. Raises TypeError for an entry with a wrong or a missing field."""
    tables = {path.name: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.toml"))}
    mutants = [Mutant(table=name, **entry) for name, content in tables.items() for entry in content["mutant"]]
    return sorted(mutants, key=lambda mutant: mutant.promise)


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
