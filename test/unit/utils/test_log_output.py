"""A log without a reader never makes a process wait: lines that cannot be written are dropped, counted and reported."""

import os
import re
import select
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fixtures.patience import PATIENCE_S
from fixtures.processes import running
from mysglang.srt.utils import log_output
from mysglang.srt.utils.log_output import LogStream, LogWriter, PipeLog, log_pipe

NOTICE = re.compile(
    rb"\[[\d: -]+\] WARNING: (\d+) lines of this log were dropped, because its reader did not take them.\n"
)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


def fill(writing: int) -> int:
    """Fill a pipe to the last byte; how many it took."""
    os.set_blocking(writing, False)
    taken = 0
    try:
        while True:
            taken += os.write(writing, b"." * 4096)
    except BlockingIOError:
        return taken
    finally:
        os.set_blocking(writing, True)


def read_until(reading: int, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        assert select.select([reading], [], [], PATIENCE_S)[0], data[-200:]
        data += os.read(reading, 1 << 20)
    return data


def line(number: int) -> bytes:
    return b"line %06d %s\n" % (number, b"x" * 100)


@pytest.mark.promise(45)
def test_a_full_pipe_takes_no_time_and_loses_a_known_number(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    taken = fill(writing)
    writer = LogWriter(writing)
    for number in range(20_000):
        writer.put(line(number))
    assert not writer._written.is_set()
    writer.flush(0.01)  # a bounded wait
    kept = read_until(reading, line(log_output.MAX_WAITING // len(line(0)) - 1))[taken:]
    assert kept == b"".join(line(number) for number in range(kept.count(b"\n")))
    lost = 20_000 - kept.count(b"\n")
    assert writer.drops.total == lost > 0
    writer.flush(PATIENCE_S)
    writer.put(b"the next\n")
    told = read_until(reading, b"the next\n")
    found = NOTICE.match(told)
    assert found is not None and int(found[1]) == lost
    assert told[found.end() :] == b"the next\n"
    writer.put(b"and another\n")
    assert read_until(reading, b"another\n") == b"and another\n"


@pytest.mark.promise(45)
def test_a_full_disk() -> None:
    writer = LogWriter(os.open("/dev/full", os.O_WRONLY))
    for number in range(5):
        writer.put(line(number))
        writer.flush(PATIENCE_S)
    assert (writer.drops.total, writer.drops.unreported) == (5, 5)


@pytest.mark.promise(45)
def test_a_reader_that_is_gone_and_a_closed_descriptor(pipe: tuple[int, int]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    for descriptor in (writing, 1 << 20):
        writer = LogWriter(descriptor)
        writer.put(b"one\ntwo\n")
        writer.flush(PATIENCE_S)
        assert writer.drops.total == 2


def test_a_descriptor_that_somebody_made_nonblocking(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    taken = fill(writing)
    os.set_blocking(writing, False)
    writer = LogWriter(writing)
    writer.put(b"after all\n")
    assert len(read_until(reading, b"after all\n")) == taken + len(b"after all\n")
    assert writer.drops.total == 0


@pytest.mark.promise(45)
def test_a_child_whose_parent_does_not_read() -> None:
    reading, writing = log_pipe()
    log = PipeLog(writing)
    number = 0
    while not log.drops.total:
        log.put(line(number))
        number += 1
    for _ in range(9):
        log.put(b"lost\n")
    log.flush(0)
    kept = os.read(reading, 1 << 20)
    assert kept == b"".join(line(at) for at in range(number))[: len(kept)]
    log.put(b"y" * 100_000 + b"\n")
    log.put(b"last\n")
    rest = read_until(reading, b"last\n")
    found = NOTICE.search(rest)
    assert found is not None and int(found[1]) == log.drops.total == 10
    assert rest.endswith(b"y\nlast\n")
    os.close(reading)
    log.put(b"nobody\n")
    assert log.drops.total == 11


def test_pieces_of_lines_come_as_whole_lines(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing)
    stream = LogStream(writer, writing, on_terminal=False)
    print("a", "b", end="", file=stream)
    assert writer._written.is_set()
    print("\nc \udc80", file=stream)
    stream.write("\r 50 %")
    stream.flush()
    assert read_until(reading, b"50 %") == b"a b\nc \\udc80\n\r 50 %"


def test_a_fork_has_a_writer_of_its_own(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = LogWriter(writing)
    writer.put(b"parent\n")
    writer.flush(PATIENCE_S)
    pid = os.fork()
    if pid == 0:
        writer.put(b"child\n")
        writer.flush(PATIENCE_S)
        os._exit(0)
    os.waitpid(pid, 0)
    assert read_until(reading, b"child\n") == b"parent\nchild\n"


@pytest.mark.promise(45)
@pytest.mark.parametrize("read", [True, False])
def test_the_last_words_of_a_process(read: bool) -> None:
    """They are written if there is a reader; if not, the process ends all the same."""
    code = """
import sys
from mysglang.srt.utils.log_output import never_wait_for_readers
never_wait_for_readers()
for number in range(3000):
    print("x" * 100, number)
raise ValueError("the cause")
"""
    with running(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={"PYTHONPATH": _path()}
    ) as process:
        assert process.stdout is not None
        if read:
            said = process.stdout.read()
            assert said.endswith(b"ValueError: the cause\n")
            assert said.count(b"\n") > 3000
        assert process.wait(PATIENCE_S) == 1


@pytest.mark.promise(45)
def test_closed_descriptors_are_not_left_to_the_next_file() -> None:
    code = """
import os
from mysglang.srt.utils.log_output import open_standard_files
open_standard_files()
assert os.open("/dev/zero", os.O_RDONLY) > 2
"""
    closed = f"exec {sys.executable} -c '{code}' <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", closed], env={"PYTHONPATH": _path()}).returncode == 0


def _path() -> str:
    return ":".join(sys.path)
