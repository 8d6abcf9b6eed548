"""docs/reliability.md lists the promises as the marks of the tests have them, and names no test that does not exist."""

import functools
import re
from pathlib import Path

import pytest

from fixtures import promises_page
from fixtures.promises_page import BEGIN, END, IN_PART, KEPT, NOT_YET, Marked, Promise, UnreadableMark, marks, state

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")
PROMISES = range(1, 51)

SERVER, GPU = Marked("server/test_a.py", "test_b"), Marked("gpu/test_a.py", "test_b")


@functools.cache
def all_marks() -> dict[int, list[Marked]]:
    """The marks of all tests, for which each of their files is parsed."""
    return marks()


def promise(**fields: str) -> Promise:
    return Promise(7, "A section", "A promise.", **fields)


def marked(tmp_path: Path, source: str) -> dict[int, list[str]]:
    """The names of the tests in `source` by the numbers of their marks."""
    folder = tmp_path / "unit"
    folder.mkdir()
    (folder / "test_it.py").write_text(source, encoding="utf-8")
    return {number: [test.name for test in tests] for number, tests in marks(tmp_path).items()}


def test_the_page_is_what_the_tests_say() -> None:
    written = PAGE[PAGE.index(BEGIN) : PAGE.index(END) + len(END)]
    assert written == promises_page.render(promises_page.load(), all_marks()), "run `make promises-page`"


def test_every_promise_is_listed_and_every_mark_has_one() -> None:
    promises = promises_page.load()
    assert [each.number for each in promises] == list(PROMISES)
    assert all_marks().keys() <= set(PROMISES)


def test_no_mark_is_overlooked() -> None:
    """All numbers of all marks, by their text, are found by the parser too."""
    written, found = set[tuple[str, int]](), set[tuple[str, int]]()
    for path in sorted((REPOSITORY / "test").rglob("test_*.py")):
        if path == Path(__file__):
            continue
        source = path.read_text(encoding="utf-8")
        for numbers in re.findall(r"pytest\.mark\.promise\(([^)]*)\)", source):
            written |= {(path.name, int(number)) for number in numbers.split(",") if number.strip()}
    for number, tests in all_marks().items():
        found |= {(test.file.rpartition("/")[2], number) for test in tests}
    assert written - found == set()


def test_every_named_test_exists() -> None:
    names = set()
    for path in (REPOSITORY / "test").rglob("test_*.py"):
        names.add(path.stem)
        names.update(re.findall(r"^ *(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE))
    named = re.findall(r"\b(test_\w+)", PAGE)
    assert len(named) > 200
    assert not [name for name in named if name not in names]


def test_every_named_module_exists() -> None:
    named = set(re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE))
    paths = [path.as_posix() for root in ("python", "test") for path in (REPOSITORY / root).rglob("*.py")]
    assert len(named) > 40
    assert not [name for name in named if not any(path.endswith(f"/{name}") for path in paths)]


@pytest.mark.parametrize(
    ("fields", "tests", "expected"),
    [
        ({}, [SERVER], KEPT),
        ({}, [SERVER, GPU], KEPT),
        ({"note": "generous"}, [SERVER], KEPT),
        ({"missing": "half of it"}, [SERVER], IN_PART),
        ({}, [], NOT_YET),
        ({"missing": "all"}, [], NOT_YET),
        ({}, [GPU], NOT_YET),
    ],
)
def test_a_state_is_earned(fields: dict[str, str], tests: list[Marked], expected: str) -> None:
    assert state(promise(**fields), tests) == expected
    page = promises_page.render([promise(**fields)], {7: tests})
    assert f"**7 · {expected}.** A promise.\n" in page and f"| {expected} | 7 | 1 |" in page


def test_marks_of_every_form(tmp_path: Path) -> None:
    source = """
import pytest
pytestmark = [pytest.mark.slow, pytest.mark.promise(1)]
@pytest.mark.promise(2, 3)
@pytest.mark.promise(4)
async def test_a(): ...
@pytest.mark.promise(5)
class TestB:
    pytestmark = pytest.mark.promise(6)
    @pytest.mark.promise(7)
    def test_c(self): ...
@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.promise(8))])
def test_d(x): ...
@pytest.mark.skipif(False, reason="")
@pytest.mark.promise(9)
def test_e(): ...
@pytest.mark.skip
@pytest.mark.promise(10)
def test_f(): ...
@pytest.mark.promise(11)
@pytest.mark.xfail(strict=True)
def test_g(): ...
"""
    assert marked(tmp_path, source) == {
        1: [""],
        2: ["test_a"],
        3: ["test_a"],
        4: ["test_a"],
        5: ["TestB"],
        6: ["TestB"],
        7: ["TestB.test_c"],
        8: ["test_d"],
        9: ["test_e"],
    }


def test_a_number_that_is_computed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableMark, match=r"test/unit/test_it\.py: pytest\.mark\.promise\(ONE\)"):
        marked(tmp_path, "ONE = 1\n@pytest.mark.promise(ONE)\ndef test_a(): ...\n")


def test_the_summary_counts_all(tmp_path: Path) -> None:
    promises = [Promise(number, "A section", "A promise.") for number in (1, 2, 3, 5, 6)]
    page = promises_page.render(promises, {number: [SERVER] for number in (1, 2, 3, 6)})
    assert "| kept | 1 to 3, 6 | 4 |" in page
    assert "| in part | none | 0 |" in page
    assert "| not yet | 5 | 1 |" in page
    assert "(`test_b`)" in page and "- Tests: none" in page
