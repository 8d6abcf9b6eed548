"""docs/reliability.md and the tests agree: it has a row with a plain word for each of the forty promises, names tests
that exist, and names those that are marked with a promise in that promise's row."""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
PROMISES = range(1, 41)

LATE_DEVICE = "test_scheduler_on_late_device"
"""Called `late device` on the page."""


@dataclass(frozen=True)
class Marked:
    """A test that is marked with a promise, and the names under which the page may speak of it."""

    test: str
    names: frozenset[str]


@cache
def all_tests() -> list[tuple[Path, ast.Module]]:
    paths = sorted((REPOSITORY / "test").rglob("test_*.py"))
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


@cache
def known_names() -> frozenset[str]:
    """Every test, its class and its file, without the ending."""
    names = set()
    for path, tree in all_tests():
        names.add(path.stem)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
    return frozenset(names)


def promises_in(decorators: list[ast.expr]) -> list[int]:
    """Of `@pytest.mark.promise(number)`."""
    found = (ast.unparse(decorator) for decorator in decorators)
    return [int(match[1]) for text in found if (match := re.fullmatch(r"pytest\.mark\.promise\((\d+)\)", text))]


def marked_tests() -> dict[int, list[Marked]]:
    """By promise."""
    tests: dict[int, list[Marked]] = defaultdict(list)
    for path, tree in all_tests():
        nodes: list[tuple[ast.stmt, frozenset[str]]] = [(node, frozenset({path.stem})) for node in tree.body]
        while nodes:
            node, names = nodes.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names |= {node.name}
                for number in promises_in(node.decorator_list):
                    tests[number].append(Marked(f"{path.stem}.{node.name}", names))
            if isinstance(node, ast.ClassDef):
                nodes += [(inner, names) for inner in node.body]
    return tests


def rows() -> dict[int, str]:
    return {int(line.split("|")[1]): line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)}


def named_in(row: str) -> set[str]:
    """Tests, classes and files. A name that ends with `_…` stands for all that begin so."""
    named = re.findall(r"\b(test_\w+?|Test[A-Z]\w+)(_…)?(?=[^\w…])", row)
    names = {name for name, some in named if not some}
    names |= {known for name, some in named if some for known in known_names() if known.startswith(name)}
    return names | ({LATE_DEVICE} if "late device" in row else set())


def test_every_named_test_exists() -> None:
    known = known_names()
    named = re.findall(r"\b(test_\w+?|Test[A-Z]\w+)(_…)?(?=[^\w…])", PAGE)
    assert len(named) > 80
    assert not [name for name, some in named if not (any(k.startswith(name) for k in known) if some else name in known)]


def test_every_promise_has_its_row() -> None:
    found = re.findall(r"^\| (\d+) \| .+? \| (kept|in part|not yet) \| ", PAGE, flags=re.MULTILINE)
    assert [int(number) for number, _ in found] == list(PROMISES)


def test_what_is_kept_has_a_test_that_bears_its_number() -> None:
    marked = marked_tests()
    assert set(marked) <= set(PROMISES)
    missing = [number for number, row in rows().items() if "| not yet |" not in row and number not in marked]
    assert not missing


def test_the_page_names_every_test_that_bears_a_number() -> None:
    """By its own name, or by its class or file."""
    marked, page = marked_tests(), rows()
    unnamed = [
        f"{number}: {each.test}"
        for number, tests in sorted(marked.items())
        for each in tests
        if not each.names & named_in(page[number])
    ]
    assert not unnamed
