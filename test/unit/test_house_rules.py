"""Rules about the source text itself: no file outgrows its limit in silence, and nothing loads what could run code."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("python", "test", "sgl-kernel", "benchmark", "examples", "scripts", "docker")
SOURCE = {".py", ".cu", ".cuh", ".cpp", ".cc", ".h", ".sh", ".js"}

MAX_LINES = 500
REASON = "Long because"  # within the first lines of a longer file
REASON_WITHIN = 15

# Loading with any of these can run what the bytes say.
UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
UNSAFE_CALLS = {"torch.load", "torch.jit.load", "torch.package.PackageImporter", "yaml.unsafe_load"}
UNSAFE_METHODS = {"recv_pyobj", "send_pyobj"}  # of a ZMQ socket

# Reading a clock, or waiting for one. A test waits for a state (fixtures/patience.py) and counts steps.
CLOCKS = {
    *("time.sleep", "time.time", "time.monotonic", "time.perf_counter", "time.monotonic_ns", "time.perf_counter_ns"),
    *("sleep", "monotonic", "perf_counter", "monotonic_ns", "perf_counter_ns", "asyncio.sleep"),
}
LIMITS = {"asyncio.timeout": 0, "asyncio.wait_for": 1}
"""Index of each call's limit among its arguments. A limit that a name stands for, such as PATIENCE_S, is no figure."""
# A limit of a second or more is one that must not be exceeded, so it is PATIENCE_S; a shorter one is there to expire.
LIMIT_IN_FIGURES = re.compile(
    r"(?:\.(?:join|result|wait|acquire|communicate|flush)\(|\.(?:wait|join|result), |\btimeout=)[1-9][\d_.]*\)"
)

# What all tests of a process share: threads and objects of earlier tests are among them.
PROCESS_WIDE = {"threading.enumerate", "threading.active_count", "gc.isenabled", "gc.get_objects", "asyncio.all_tasks"}
MAY_ASK_THE_PROCESS = {
    "test/fixtures/text_pools.py": "waits until nothing keeps the garbage collector off",
    "test/fixtures/warm_start.py": "a process of its own",
    "test/unit/distributed/test_joining.py": "waits for threads besides those that were there",
    "test/unit/model_executor/test_executor.py": "tensors besides those that were there",
    "test/unit/utils/test_process.py": "about the garbage collector; waits first until it is on",
    "test/unit/utils/test_quiet_heap.py": "about the garbage collector; waits first until it is on",
    "sgl-kernel/tests/unit/workshop.py": "waits for threads of a name that no other tests use",
}
"""Files of tests that read such a state: path -> why what other tests leave there changes nothing."""
MAY_READ_CLOCKS = {
    "test/fixtures/patience.py": "how all others wait",
    "test/fixtures/terminal.py": "waits for what a terminal shows, as long as patience.py does",
    "test/fixtures/schema_suites.py": "a child that judges schemas has a limit of its own",
    "test/fixtures/scripted_engine.py": "stamps a sign of life",
    "test/fixtures/scripted_server.py": "gives signs of life while it serves",
    "test/fixtures/toy_scheduler.py": "steps that take a time, as a test of a server asks for them",
    "test/fixtures/raw_http.py": "a client that reads slowly",
    "test/fixtures/swarm.py": "clients that come, pause and leave; it lasts for a time",
    "test/chaos": "attacks that pause, in a storm that lasts for a time",
    "test/mutants/run.py": "a tool, which says how long it took",
    "test/server/test_backpressure.py": "nobody is cut off before the time that a flag says: bounds from below",
    "test/server/test_body_bombs.py": "how long others wait beside hostile bodies, against waits alone",
    "test/server/test_grammar_bombs.py": "how long others wait beside hostile grammars, against waits alone",
    "test/server/test_http.py": "a probe's part of the time that a long prompt takes",
    "test/server/test_leaving.py": "a client that leaves while the server reads or tokenizes, which nothing shows",
    "test/server/test_processes.py": "a server that is frozen for longer than its watchdog waits",
    "test/server/test_slow_readers.py": "gaps between tokens beside readers that are stuck; a silent connection",
    "test/unit/bench/test_load.py": "stamps what a load generator sent, which is about times",
    "test/unit/scheduling/test_timeline.py": "stamps of requests stand before the clock that made them",
    "test/unit/utils/test_tokenizer.py": "sleeping gives the GIL away, which the other thread must not keep",
}
"""Files of tests, or folders of them, in which a time is what is tested or what the tool is for: path -> why."""


def source_files(suffixes: set[str]) -> list[Path]:
    files = (path for folder in FOLDERS for path in (REPOSITORY / folder).rglob("*") if path.suffix in suffixes)
    return sorted(path for path in files if path.is_file())


def too_long(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) > MAX_LINES and not any(REASON in line for line in lines[:REASON_WITHIN])


def any_of(names: set[str]) -> re.Pattern[str]:
    """Finds any of these names in source text. A file without one is not parsed, which takes twenty times longer."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(names)))})\b")


UNSAFE_NAMES = any_of(UNSAFE_MODULES | UNSAFE_METHODS | {call.rpartition(".")[2] for call in UNSAFE_CALLS})


def unsafe_loading(text: str) -> Iterator[str]:
    """Each place that imports or calls something that loads objects by running code, as `line: what`."""
    if not UNSAFE_NAMES.search(text) and "allow_pickle" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            case ast.Attribute(attr=attr):
                names = [attr if attr in UNSAFE_METHODS else ast.unparse(node)]
            case ast.keyword(arg="allow_pickle", value=ast.Constant(value=True)):
                names = ["allow_pickle"]
            case _:
                continue
        for name in names:
            if name.split(".")[0] in UNSAFE_MODULES or name in UNSAFE_CALLS | UNSAFE_METHODS | {"allow_pickle"}:
                yield f"{node.lineno}: {name}"


CLOCK_NAMES = any_of(CLOCKS | LIMITS.keys() | {"AWAKE"})


def clocks_read(text: str) -> Iterator[str]:
    """Each place that reads a clock or waits for one, as `line: what`."""
    if not CLOCK_NAMES.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Name() | ast.Attribute() as func, args=args):
                name = ast.unparse(func)
                gives_way = name in ("asyncio.sleep", "sleep") and ast.unparse(args[0]) == "0"
                limit = args[LIMITS[name]] if name in LIMITS and len(args) > LIMITS[name] else None
                is_figure = limit is not None and has_figure(limit)
                if (name in CLOCKS and not gives_way) or is_figure:
                    yield f"{node.lineno}: {name}"
            case ast.Name(id="AWAKE"):
                yield f"{node.lineno}: the clock of this process, which all tests before share"


def has_figure(limit: ast.expr) -> bool:
    """True if it has a number, alone or in a calculation; a multiple of a name's value is none."""
    if any(isinstance(node, ast.Name) and node.id.endswith("PATIENCE_S") for node in ast.walk(limit)):
        return False
    return any(isinstance(node, ast.Constant) and isinstance(node.value, int | float) for node in ast.walk(limit))


PROCESS_WIDE_NAMES = any_of({name.rpartition(".")[2] for name in PROCESS_WIDE})


def asked_of_process(text: str) -> Iterator[str]:
    """Each place that reads what all tests of a process share, as `line: what`."""
    if not PROCESS_WIDE_NAMES.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute) and (name := ast.unparse(node)) in PROCESS_WIDE:
            yield f"{node.lineno}: {name}"


def pages_in(nav: object) -> Iterator[str]:
    """The pages that the `nav` of mkdocs.yml names, at any depth."""
    match nav:
        case str():
            yield nav
        case list():
            yield from (page for entry in nav for page in pages_in(entry))
        case dict():
            yield from (page for entry in nav.values() for page in pages_in(entry))


def relative(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def test_files_are_short_or_say_why() -> None:
    assert not [relative(path) for path in source_files(SOURCE) if too_long(path.read_text(encoding="utf-8"))]


def test_every_page_of_docs_is_in_the_nav_of_the_site() -> None:
    nav = yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    docs = REPOSITORY / "docs"
    missing = {str(page.relative_to(docs)) for page in docs.rglob("*.md")} - set(pages_in(nav))
    assert not missing, "each page of docs/ needs a line under `nav` in mkdocs.yml"


@pytest.mark.promise(37)
def test_nothing_loads_code() -> None:
    found = [(path, place) for path, text in python_texts().items() for place in unsafe_loading(text)]
    assert not found


def test_homes_of_unknown_users_are_no_exception() -> None:
    """Paths keep a `~` that is no home by os.path; pathlib raises RuntimeError."""
    found = [path for path, text in python_texts().items() if ".expanduser()" in text]
    assert set(found) <= {relative(Path(__file__))}, "use os.path.expanduser"


def texts_of_tests(word: str) -> dict[str, str]:
    """Path -> text of each file of tests that has this word."""
    return {
        path: text
        for path, text in python_texts().items()
        if path.startswith(("test/", "sgl-kernel/tests/")) and word in text
    }


@functools.cache
def python_texts() -> dict[str, str]:
    """Path -> text of each file of Python."""
    return {relative(path): path.read_text(encoding="utf-8") for path in source_files({".py"})}


def test_tests_wait_for_states_and_not_for_times() -> None:
    texts = texts_of_tests("time") | texts_of_tests("asyncio") | texts_of_tests("AWAKE")
    tests = {path: places for path, text in texts.items() if (places := list(clocks_read(text)))}
    excuses = {path: {path, path.rpartition("/")[0]} & MAY_READ_CLOCKS.keys() for path in tests}
    assert not {path: places for path, places in tests.items() if not excuses[path]}
    assert set().union(*excuses.values()) == MAY_READ_CLOCKS.keys(), "an exception that nothing needs any more"


@pytest.mark.parametrize(
    "text",
    [
        "time.sleep(1)",
        "await asyncio.sleep(0.01)",
        "assert time.monotonic() < end",
        "asyncio.timeout(0.5)",
        "await asyncio.wait_for(f(), 0.1)",
        "asyncio.timeout(float(draw.uniform(0, 0.3)))",
        "assert AWAKE.paused_s == 0",
    ],
)
def test_a_clock_is_found(text: str) -> None:
    assert list(clocks_read(f"async def test():\n    {text}"))


@pytest.mark.parametrize(
    "text",
    [
        *("await asyncio.sleep(0)", "asyncio.timeout(PATIENCE_S)", "await asyncio.wait_for(f(), PATIENCE_S)"),
        "asyncio.timeout(2 * PATIENCE_S)",
    ],
)
def test_what_waits_for_a_state_is_not(text: str) -> None:
    assert not list(clocks_read(f"async def test():\n    {text}"))


def test_limits_of_waits_are_the_one_patience() -> None:
    texts = {path: text for path, text in texts_of_tests("").items() if path != relative(Path(__file__))}
    found = {path: places for path, text in texts.items() if (places := LIMIT_IN_FIGURES.findall(text))}
    assert not found, "a machine may stand still for longer: fixtures/patience.py"


@pytest.mark.parametrize(
    "text", ["thread.join(30)", "done.result(60)", "run(call, timeout=5)", "to_thread(e.wait, 20)"]
)
def test_a_limit_in_figures_is_found(text: str) -> None:
    assert LIMIT_IN_FIGURES.search(text)


@pytest.mark.parametrize(
    "text", ["thread.join()", "done.result(0)", "run(timeout=0.01)", "wait(PATIENCE_S)", "x.join(y)"]
)
def test_a_limit_that_may_expire_is_not(text: str) -> None:
    assert not LIMIT_IN_FIGURES.search(text)


def test_no_test_reads_what_all_tests_of_a_process_share() -> None:
    texts = texts_of_tests("threading") | texts_of_tests("gc.") | texts_of_tests("asyncio.all_tasks")
    found = {path: places for path, text in texts.items() if (places := list(asked_of_process(text)))}
    assert not {path: places for path, places in found.items() if path not in MAY_ASK_THE_PROCESS}
    assert found.keys() == MAY_ASK_THE_PROCESS.keys(), "an exception that nothing needs any more"


@pytest.mark.parametrize("name", sorted(PROCESS_WIDE))
def test_what_is_read_of_the_process_is_found(name: str) -> None:
    assert list(asked_of_process(f"def test():\n    assert not {name}()"))


def test_ports_of_other_processes_stay_reserved() -> None:
    """A port that is free now may be a connection's of another worker before the server listens there."""
    texts = texts_of_tests('.bind(("127.0.0.1", 0))')
    assert texts.keys() - {relative(Path(__file__))} == {"test/fixtures/ports.py"}


def test_processes_of_tests_end_with_them() -> None:
    """`fixtures/processes.py` starts them; besides, a child has a child of its own, and a tool is no test."""
    starting = {path for path, text in texts_of_tests("Popen").items() if "subprocess.Popen(" in text}
    besides = {"test/fixtures/obedient_child.py", "test/mutants/run.py", "test/unit/test_cut_off.py"}
    assert starting - {relative(Path(__file__))} == {"test/fixtures/processes.py", *besides}


def test_drawn_tests_have_one_profile() -> None:
    """A profile is global: one that a folder loads changes the tests of all others."""
    found = {
        (path, name)
        for path, text in texts_of_tests("hypothesis").items()
        for name in ("load_profile(", "register_profile(", "deadline=")
        if name in text and path != relative(Path(__file__))
    }
    assert {path for path, _ in found} == {"test/conftest.py"}, found


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "import dill as d",
        "def f():\n    from marshal import loads",
        "import torch\nw = torch.load('x', weights_only=True)",
        "from torch import load",
        "socket.recv_pyobj()",
        "numpy.load('x', allow_pickle=True)",
    ],
)
def test_unsafe_loading_is_found(text: str) -> None:
    assert list(unsafe_loading(text))


def test_safe_loading_is_not() -> None:
    assert not list(
        unsafe_loading("import json\njson.load(f)\nfrom safetensors.torch import load_file\nload_file('x')")
    )


def test_a_long_file_needs_a_reason() -> None:
    body = "x = 1\n" * MAX_LINES
    assert not too_long(body)
    assert too_long(body + "y = 2\n")
    assert not too_long('"""A table. Long because it is one."""\n' + body)
