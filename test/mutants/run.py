"""Apply each mutant of the table to a copy of the repository, and see that its test fails: `python -m mutants.run`.

A test that fails without the mutant too has caught nothing, so all tests run on the unchanged copy first. The mutants
run one at a time. The last line of the output is a JSON object; the exit status is 0 if all were caught.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from mutants.table import REPOSITORY, Mutant, NoMatch, load

CAUGHT = "caught"
HUNG = "caught by its time limit"
SURVIVED = "survived"
NO_MATCH = "does not apply"
RED = "test fails without it"
BROKEN = "test cannot run with it"
GOOD = (CAUGHT, HUNG)

FAILED = 1
"""The exit status of pytest when tests ran and some of them failed."""
LIMIT_S, SERVER_LIMIT_S = 60.0, 180.0
"""Seconds for a test, and for one that starts servers. A test that waits for what never comes fails by it."""
GRACE_S = 30.0
"""Seconds more until a run that does not end gets SIGKILL."""
TAIL = 30
"""Lines of pytest's output that are shown when a mutant was not caught."""


@dataclass(frozen=True)
class Run:
    """One run of a test."""

    status: int
    hung: bool
    seconds: float
    output: str

    @property
    def failures(self) -> list[str]:
        """For each test that failed, its node id relative to test/, and why."""
        lines = [line.partition(" test/") for line in self.output.splitlines()]
        return [what for word, _, what in lines if word in ("FAILED", "ERROR")]


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    state: str
    seconds: float = 0.0
    detail: str = ""


class Copy:
    """A copy of the repository in a temporary folder, in which the mistakes are made."""

    def __init__(self, root: Path) -> None:
        self.root = root
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            source, target = REPOSITORY / name, root / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)

    @contextmanager
    def mutated(self, mutant: Mutant) -> Iterator[None]:
        """The copy with one mistake. Raises NoMatch."""
        path, changed = self.root / mutant.file, mutant.applied(self.root)
        before = path.read_bytes()
        self._write(path, changed.encode())
        try:
            yield
        finally:
            self._write(path, before)

    def run(self, tests: Sequence[str], limit_s: float, *options: str) -> Run:
        """Run these tests. `limit_s`: for each of them. A run that does not end gets SIGKILL, with its group."""
        folders = [self.root / folder for folder in ("python", "sgl-kernel/python", "test")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
        always = ("-q", "-p", "no:cacheprovider", "--tb=short", f"--timeout={limit_s:g}")
        started = time.monotonic()
        with subprocess.Popen(
            [sys.executable, "-m", "pytest", *always, *options, *(f"test/{test}" for test in tests)],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        ) as process:
            try:
                output, _ = process.communicate(timeout=limit_s * len(tests) + GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                output = process.stdout.read() if process.stdout else ""
                return Run(FAILED, True, time.monotonic() - started, output)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return Run(process.returncode, "Failed: Timeout" in output, time.monotonic() - started, output)

    def _write(self, path: Path, content: bytes) -> None:
        """Bytecode is compared by seconds and size, so that of a mutant could pass for that of the unchanged file."""
        path.write_bytes(content)
        for stale in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            stale.unlink()


class Trial:
    """Judges one mutant after the other."""

    def __init__(self, copy: Copy, mutants: Iterable[Mutant]) -> None:
        """Runs the tests of these mutants on the unchanged copy. Raises CalledProcessError if they cannot run."""
        self._copy = copy
        tests = sorted({mutant.test for mutant in mutants if _applies(mutant, copy.root)})
        self._red: list[str] = []
        """Lines of pytest about the tests that fail without any mutant."""
        if tests:
            run = copy.run(tests, SERVER_LIMIT_S)
            if run.status not in (0, FAILED):
                raise subprocess.CalledProcessError(run.status, "pytest", run.output)
            self._red = run.failures

    def judge(self, mutant: Mutant) -> Verdict:
        try:
            with self._copy.mutated(mutant):
                if red := next((line for line in self._red if _is_of(mutant.test, line)), None):
                    return Verdict(mutant, RED, detail=red)
                is_server = not mutant.test.startswith("unit/")
                run = self._copy.run([mutant.test], SERVER_LIMIT_S if is_server else LIMIT_S, "-x")
        except NoMatch as error:
            return Verdict(mutant, NO_MATCH, detail=str(error))
        if run.status == 0:
            return Verdict(mutant, SURVIVED, run.seconds, run.output)
        if run.status != FAILED:
            return Verdict(mutant, BROKEN, run.seconds, run.output)
        return Verdict(mutant, HUNG if run.hung else CAUGHT, run.seconds, next(iter(run.failures), ""))


def _is_of(test: str, failure: str) -> bool:
    """True if a line of `Run.failures` is about `test`, or about one of its cases."""
    node = failure.partition(" - ")[0]
    return node == test or node.startswith((f"{test}[", f"{test}::"))


def _applies(mutant: Mutant, root: Path) -> bool:
    try:
        mutant.applied(root)
    except NoMatch:
        return False
    return True


def chosen(mutants: Iterable[Mutant], asked: Sequence[str]) -> list[Mutant]:
    """Mutants with one of the asked names or numbers of promises; all of them if nothing is asked."""
    return [mutant for mutant in mutants if not asked or {mutant.name, str(mutant.promise)} & set(asked)]


def report(verdicts: Sequence[Verdict]) -> str:
    """A JSON object: how many had which state, and each mutant with its state."""
    told = [
        {field: value for field, value in asdict(each.mutant).items() if field not in ("text", "instead", "table")}
        | {"state": each.state, "seconds": round(each.seconds, 1), "by": each.detail if each.state in GOOD else ""}
        for each in verdicts
    ]
    return json.dumps({"states": Counter(each.state for each in verdicts), "mutants": told})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants.run", description=__doc__)
    parser.add_argument("only", nargs="*", help="names of mutants, or numbers of promises; all if none is given")
    mutants = chosen(load(), parser.parse_args().only)
    if not mutants:
        parser.error("no mutant has this name or number")
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        try:
            trial = Trial(Copy(Path(folder)), mutants)
        except subprocess.CalledProcessError as error:
            print(error.output)
            parser.error("the tests cannot run without a mutant either")
        for mutant in mutants:
            verdict = trial.judge(mutant)
            verdicts.append(verdict)
            print(f"{mutant.promise:2}  {mutant.name:56} {verdict.state:24} {verdict.seconds:6.1f} s  {mutant.test}")
            if verdict.state not in GOOD:
                print(textwrap.indent("\n".join(verdict.detail.splitlines()[-TAIL:]), "    "))
            sys.stdout.flush()
    print(report(verdicts))
    return 0 if all(verdict.state in GOOD for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
