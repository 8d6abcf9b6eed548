"""The table of mutants fits the code: each can be applied, its test is there, and no promise is left out.

`make mutants` runs them, which takes long. These tests run none: they notice when code or tests move away from the
table.
"""

import ast
from pathlib import Path
from subprocess import CalledProcessError

import pytest

from fixtures import promises_page
from mutants import run
from mutants.table import REPOSITORY, Mutant, NoMatch, load, names_in

MUTANTS = load()
SOURCE = "def test_a():\n    a = 1\n    b = 1\n"


def mutant(**fields: object) -> Mutant:
    known = {"name": "m", "promise": 7, "file": "it.py", "text": "a = 1", "instead": "a = 2", "test": "unit/x.py::y"}
    return Mutant(**(known | fields))  # type: ignore[arg-type]


def test_every_mutant_fits_the_code() -> None:
    """A complaint says what to do."""
    complaints = []
    for each in MUTANTS:
        try:
            changed = each.applied()
        except NoMatch as error:
            complaints.append(str(error))
            continue
        ast.parse(changed)
        assert each.text != each.instead, each.name
    assert not complaints, "\n".join(complaints)


def test_every_named_test_is_there() -> None:
    names = {file: names_in(file) for file in {REPOSITORY / "test" / each.file_of_test for each in MUTANTS}}
    gone = [
        f"{each.table}: mutant {each.name!r}: test/{each.test} is not there any more: name the test that does its work"
        for each in MUTANTS
        if each.function not in names[REPOSITORY / "test" / each.file_of_test]
    ]
    assert not gone, "\n".join(gone)


def test_every_promise_has_a_mutant() -> None:
    numbers = {promise.number for promise in promises_page.load()}
    assert {each.promise for each in MUTANTS} - {0} == numbers


def test_names_are_given_once() -> None:
    names = [mutant.name for mutant in MUTANTS]
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
    (tmp_path / "python").mkdir()
    (tmp_path / "it.py").rename(tmp_path / "python" / "there.py")
    with pytest.raises(NoMatch, match=r"no such file\. It occurs in python/there\.py\. "):
        mutant().applied(tmp_path)


class Scripted:
    """A copy of the repository whose tests end as was written down."""

    def __init__(self, root: Path, unchanged: int, changed: int) -> None:
        self.root = root
        self._file = root / "it.py"
        self._file.write_text(SOURCE)
        self._statuses = {SOURCE: unchanged, SOURCE.replace("a = 1", "a = 2"): changed}

    mutated = run.Copy.mutated
    _write = run.Copy._write

    def run(self, tests: list[str], limit_s: float, *options: str) -> run.Run:
        status = self._statuses[self._file.read_text()]
        return run.Run(status, False, 1.0, f"FAILED test/{tests[0]}[0] - assert False" if status else "1 passed")


@pytest.mark.parametrize(
    ("unchanged", "changed", "state"),
    [(0, 1, run.CAUGHT), (0, 0, run.SURVIVED), (1, 1, run.RED), (0, 4, run.BROKEN)],
)
def test_a_mutant_is_judged_by_its_test(tmp_path: Path, unchanged: int, changed: int, state: str) -> None:
    trial = run.Trial(Scripted(tmp_path, unchanged, changed), [mutant()])  # type: ignore[arg-type]
    verdict = trial.judge(mutant())
    assert verdict.state == state
    if changed == 1:
        assert verdict.detail == "unit/x.py::y[0] - assert False"
    assert (tmp_path / "it.py").read_text() == SOURCE


def test_a_mutant_that_does_not_apply_is_told(tmp_path: Path) -> None:
    gone = mutant(text="c")
    trial = run.Trial(Scripted(tmp_path, 4, 1), [gone])  # type: ignore[arg-type]
    assert trial.judge(gone).state == run.NO_MATCH


def test_tests_that_cannot_run_end_it(tmp_path: Path) -> None:
    with pytest.raises(CalledProcessError):
        run.Trial(Scripted(tmp_path, 4, 1), [mutant()])  # type: ignore[arg-type]


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
