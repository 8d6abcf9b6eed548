"""The table of mutants fits the code: each can be applied, and its test is there.

`make mutants` runs them, which takes long. These tests run none: they notice when code or tests move away from the
table.
"""

import ast
from pathlib import Path

import pytest

from mutants import run
from mutants.table import REPOSITORY, Mutant, NoMatch, load, names_in

TABLE = load()
SOURCE = "def test_a():\n    a = 1\n    b = 1\n"


def mutant(**fields: object) -> Mutant:
    known = {"name": "m", "promise": 7, "file": "it.py", "text": "a = 1", "instead": "a = 2", "test": "unit/x.py::y"}
    return Mutant(**(known | fields))  # type: ignore[arg-type]


def test_every_mutant_fits_the_code() -> None:
    """A complaint says what to do."""
    complaints = []
    for each in TABLE.mutants:
        try:
            changed = each.applied()
        except NoMatch as error:
            complaints.append(str(error))
            continue
        ast.parse(changed)
        assert each.text != each.instead, each.name
    assert not complaints, "\n".join(complaints)


def test_every_named_test_is_there() -> None:
    names = {file: names_in(file) for file in {REPOSITORY / "test" / each.file_of_test for each in TABLE.mutants}}
    gone = [
        f"{each.table}: mutant {each.name!r}: test/{each.test} is not there any more: name the test that does its work"
        for each in TABLE.mutants
        if each.function not in names[REPOSITORY / "test" / each.file_of_test]
    ]
    assert not gone, "\n".join(gone)


def test_names_are_given_once() -> None:
    names = [mutant.name for mutant in TABLE.mutants]
    assert sorted(set(names)) == sorted(names)


def test_a_text_that_is_not_there_once_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "it.py").write_text(SOURCE)
    assert mutant().applied(tmp_path) == SOURCE.replace("a = 1", "a = 2")
    for fields, says in (
        ({"text": "c = 1"}, "occurs 0 times"),
        ({"text": " = 1"}, "occurs 2 times"),
        ({"file": "gone.py"}, "there is no such file"),
    ):
        with pytest.raises(NoMatch, match=rf"{says}.*make mutants ARGS=\"'m'\""):
            mutant(**fields).applied(tmp_path)


class Scripted:
    """A copy of the repository whose tests end as was written down."""

    def __init__(self, root: Path, unchanged: int, changed: int) -> None:
        self.root = root
        self._file = root / "it.py"
        self._file.write_text(SOURCE)
        self._statuses = {SOURCE: unchanged, SOURCE.replace("a = 1", "a = 2"): changed}
        self.runs = 0

    mutated = run.Copy.mutated
    _write = run.Copy._write

    def run(self, test: str, limit_s: float) -> run.Run:
        self.runs += 1
        return run.Run(self._statuses[self._file.read_text()], False, 1.0, f"FAILED test/{test} - assert False")


@pytest.mark.parametrize(
    ("unchanged", "changed", "state"),
    [(0, 1, run.CAUGHT), (0, 0, run.SURVIVED), (1, 1, run.RED), (0, 4, run.BROKEN)],
)
def test_a_mutant_is_judged_by_its_test(tmp_path: Path, unchanged: int, changed: int, state: str) -> None:
    copy = Scripted(tmp_path, unchanged, changed)
    trial = run.Trial(copy)  # type: ignore[arg-type]
    assert [trial.judge(each).state for each in (mutant(), mutant(name="again"))] == [state, state]
    assert copy.runs == (1 if unchanged else 3), "without a mutant a test runs once"
    assert (tmp_path / "it.py").read_text() == SOURCE


def test_a_mutant_that_does_not_apply_is_told(tmp_path: Path) -> None:
    trial = run.Trial(Scripted(tmp_path, 0, 1))  # type: ignore[arg-type]
    assert trial.judge(mutant(text="c")).state == run.NO_MATCH


def test_old_bytecode_goes_with_the_source(tmp_path: Path) -> None:
    """Both sources are equally long, and written within one second."""
    copy = Scripted(tmp_path, 0, 1)
    stale = tmp_path / "__pycache__" / "it.cpython-311.pyc"
    stale.parent.mkdir()
    stale.touch()
    with copy.mutated(mutant()):
        assert not stale.exists()
        stale.touch()
    assert not stale.exists()


def test_some_can_be_chosen() -> None:
    some = [mutant(name="a", promise=1), mutant(name="b", promise=1), mutant(name="c", promise=11)]
    assert run.chosen(some, []) == some
    assert run.chosen(some, ["1"]) == some[:2]
    assert run.chosen(some, ["c", "b"]) == some[1:]
