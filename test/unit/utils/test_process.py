"""Children start, tell, are watched and ended; and never outlive who started them."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from fixtures.patience import PATIENCE_S, settled, until
from fixtures.processes import those_left, wait_until_gone
from fixtures.text_pools import wait_for_collector
from mysglang.srt.utils.process import DUMP_SIGNAL, Child, describe_exit, paused_gc, stop_children

TESTS = Path(__file__).parents[2]
MODULE = "fixtures.obedient_child"


@pytest.fixture(autouse=True)
def _children_find_the_fixtures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))


def start(order: str) -> Child:
    return Child(MODULE, "obedient", order.encode())


async def wait(future: asyncio.Future[object] | asyncio.Future[bytes] | asyncio.Future[int]) -> object:
    return await asyncio.wait_for(asyncio.shield(future), PATIENCE_S)


async def test_a_child_gets_its_spec_and_tells() -> None:
    child = start("echo hello there")
    assert await wait(child.first_message) == b"hello there\n"
    assert await wait(child.exited) == 1, "a child has no end of its own"


async def test_last_words_are_heard_before_the_end() -> None:
    child = start("config")
    await wait(child.exited)
    assert child.last_message == b'{"type":"failed","problems":["one reason","another"],"follows":false}\n'


@pytest.mark.promise(46)
async def test_promise_46_a_child_ends_with_its_service_thread_and_says_why() -> None:
    child = start("thread")
    assert await wait(child.exited) == 1
    assert child.last_message is not None and b"'worker' died: ZeroDivisionError" in child.last_message


@pytest.mark.promise(46)
async def test_promise_46_a_child_that_cannot_be_watched_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread can be started for it."""
    # Process numbers start again after the last one, so the newest child need not have the highest.
    earlier = set(psutil.Process().children())
    born: set[psutil.Process] = set()

    def no_room(name: str, *_: object) -> None:
        born.update(set(psutil.Process().children()) - earlier)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("mysglang.srt.utils.process.ServiceThread", no_room)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start("wait")
    assert born
    wait_until_gone([*born])


async def test_a_bug_is_told_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    child = start("bug")
    await wait(child.exited)
    assert child.last_message == b'{"type":"failed","problems":["ZeroDivisionError: first line"],"follows":false}\n'
    assert "Traceback" in capfd.readouterr().err


async def test_a_silent_end_shows_its_code() -> None:
    child = start("exit 0")
    assert await wait(child.exited) == 0
    assert child.last_message is None


def ignores(pid: int, number: signal.Signals) -> bool:
    (mask,) = re.findall(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(mask, 16) >> (number - 1) & 1)


async def test_title_and_signals() -> None:
    child = start("wait")
    await wait(child.first_message)
    assert psutil.Process(child.pid).cmdline()[0].startswith("mysglang::obedient")
    for number in (signal.SIGINT, signal.SIGTERM):
        os.killpg(child.pid, number)
    assert ignores(child.pid, signal.SIGINT) and ignores(child.pid, signal.SIGTERM)
    await settled()
    assert not child.exited.done(), "to ask to end is to ask the parent"
    # Long before it would be killed.
    await asyncio.wait_for(stop_children([child], grace=10 * PATIENCE_S), PATIENCE_S)
    assert child.exited.done()
    child.send_signal(signal.SIGTERM)
    child.let_go()


async def test_stacks_on_demand(capfd: pytest.CaptureFixture[str]) -> None:
    child = start("wait")
    await wait(child.first_message)
    child.send_signal(DUMP_SIGNAL)
    written: list[str] = []

    def is_written() -> bool:
        written.append(capfd.readouterr().err)
        return "obedient_child.py" in "".join(written)

    await until(is_written)
    assert not child.exited.done()
    await stop_children([child], grace=PATIENCE_S)


async def test_the_stubborn_are_killed() -> None:
    children = [start("wait"), start("busy")]
    for child in children:
        await wait(child.first_message)
    children[0].send_signal(signal.SIGSTOP)
    await stop_children(children, grace=0.5)
    assert [child.exited.result() for child in children] == [-signal.SIGKILL] * 2


async def test_last_work_is_done_before_the_end(tmp_path: Path) -> None:
    diligent, clumsy = start(f"last {tmp_path / 'said'}"), start("clumsy")
    for child in (diligent, clumsy):
        await wait(child.first_message)
    assert not (tmp_path / "said").exists()
    await stop_children([diligent, clumsy], grace=10)
    assert (tmp_path / "said").read_text() == "done"
    assert diligent.exited.result() == clumsy.exited.result() == -signal.SIGKILL


async def test_grandchildren_go_with_a_stopped_child() -> None:
    child = start("grandchild")
    grandchild = int(str(await wait(child.first_message), "ascii"))  # type: ignore[arg-type]
    await stop_children([child], grace=PATIENCE_S)
    assert child.exited.done()
    wait_until_gone(those_left([grandchild]))


@pytest.mark.parametrize("order", ["wait", "busy"])
def test_children_go_with_a_killed_parent(order: str) -> None:
    """Also one that is in the middle of something and hears no signal but the last."""
    program = f"""
import asyncio, os, signal
from mysglang.srt.utils.process import Child
async def main():
    child = Child({MODULE!r}, "obedient", {order.encode()!r})
    await child.first_message
    print(child.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "python")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.returncode == -signal.SIGKILL
    wait_until_gone(those_left([int(done.stdout)]))


async def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import asyncio
import gc
from mysglang.srt.utils.process import Child
print("run")
async def main():
    child = Child({MODULE!r}, "obedient", b"echo told")
    print((await child.first_message).decode())
    await child.exited
asyncio.run(main())
"""
    )
    paths = os.pathsep.join([str(TESTS), str(TESTS.parent / "python")])
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout.split() == ["run", "told"], done.stderr


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with code 0"), (3, "exited with code 3"), (-15, "was ended by SIGTERM"), (-9, "want of memory")],
)
def test_describe_exit(code: int, words: str) -> None:
    assert words in describe_exit(code)


def test_the_collector_pauses_and_goes_on() -> None:
    wait_for_collector()
    with pytest.raises(RuntimeError), paused_gc():
        with paused_gc():
            pass
        assert not gc.isenabled()
        raise RuntimeError
    assert gc.isenabled()


LARGE_OBJECTS = """
import ctypes, sys
from mysglang.srt.utils.process import keep_heap_small

if sys.argv[1] == "small":
    keep_heap_small()
for _ in range(8):
    large = bytearray(1 << 20)
    address = ctypes.addressof(ctypes.c_char.from_buffer(large))
    del large
heap = next(line for line in open("/proc/self/maps") if "[heap]" in line)
first, last = (int(bound, 16) for bound in heap.split()[0].split("-"))
print(first <= address < last)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="of glibc")
def test_a_small_heap_has_no_large_objects_in_it() -> None:
    """glibc by itself takes the second megabyte from the heap, since the first was freed."""
    found = {
        kind: subprocess.run([sys.executable, "-c", LARGE_OBJECTS, kind], check=True, capture_output=True, text=True)
        for kind in ("small", "usual")
    }
    assert {kind: run.stdout.strip() for kind, run in found.items()} == {"small": "False", "usual": "True"}


FREED_OBJECTS = """
import sys
from mysglang.srt.utils.process import freeze_heap

def resident():
    return int(open("/proc/self/statm").read().split()[1])

pieces = [bytes(1000) for _ in range(100_000)]
last = bytes(1000)
full = resident()
del pieces
if sys.argv[1] == "frozen":
    freeze_heap()
print((full - resident()) * 4096 > 50_000_000)
"""


@pytest.mark.skipif(sys.platform != "linux" or os.confstr("CS_GNU_LIBC_VERSION") is None, reason="of glibc")
def test_a_frozen_heap_holds_no_freed_memory() -> None:
    """glibc by itself keeps the free memory below an object that is still used."""
    found = {
        kind: subprocess.run([sys.executable, "-c", FREED_OBJECTS, kind], check=True, capture_output=True, text=True)
        for kind in ("frozen", "usual")
    }
    assert {kind: run.stdout.strip() for kind, run in found.items()} == {"frozen": "True", "usual": "False"}


KEPT_IMPORTS = """
import gc, weakref
from mysglang.srt.utils.process import freeze_heap, keep_imports

class Cycle:
    def __init__(self):
        self.itself = self

gc.disable()
gc.collect()
kept = weakref.ref(Cycle())
before = gc.get_freeze_count()
keep_imports()
made = weakref.ref(Cycle())
assert gc.get_freeze_count() - before > 1000
freeze_heap()
print(kept() is not None, made() is None)
"""


def test_what_imports_made_is_not_searched_and_what_came_later_is() -> None:
    done = subprocess.run([sys.executable, "-c", KEPT_IMPORTS], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True"]
