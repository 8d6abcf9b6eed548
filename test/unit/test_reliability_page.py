"""docs/reliability.md names tests that exist, and has a row with a plain word for each of the forty promises."""

import ast
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
PROMISES = 40


def known_names() -> set[str]:
    """Every test, its class and its file, without the ending."""
    names = set()
    for path in (REPOSITORY / "test").rglob("test_*.py"):
        names.add(path.stem)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
    return names


def test_every_named_test_exists() -> None:
    known = known_names()
    # A name that ends with "_…" stands for all that begin so.
    named = re.findall(r"\b(test_\w+?|Test[A-Z]\w+)(_…)?(?=[^\w…])", PAGE)
    assert len(named) > 80
    assert not [name for name, some in named if not (any(k.startswith(name) for k in known) if some else name in known)]


def test_every_promise_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \| .+? \| (kept|in part|not yet) \| ", PAGE, flags=re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, PROMISES + 1))


def test_what_is_kept_names_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if re.match(r"\| \d+ \|", line)]
    assert len(rows) == PROMISES
    assert not [
        row for row in rows if "| not yet |" not in row and not re.search(r"\btest_|\bTest[A-Z]|late device", row)
    ]
