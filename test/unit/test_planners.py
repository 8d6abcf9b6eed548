"""Limits of a scheduler's knowledge, read from its source: planners read no clock, and nothing here reaches the device.

All ranks must plan the same steps from the same messages. Whatever depends on time, on another thread or process, or on
how far the device is, is looked at in the places named here, which make a message of it, measure, or only wait.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from mysglang.srt.forward import outputs, shared_prefix, worker_batch
from mysglang.srt.forward.worker import Worker
from mysglang.srt.managers import scheduler_builder
from mysglang.srt.sampling import feature

SOURCES = Path(__file__).parents[2] / "python/mysglang/srt"

# Code in the scheduler's process and thread. Work of other processes or threads is exempt.
PARTS = ("scheduling/*.py", "mem_cache/*.py", "mem_cache/storage/*.py", "constrained/*.py", "managers/scheduler*.py")
PARTS_BESIDE = ("managers/kv_event_publisher.py",)
ELSEWHERE = {
    *("constrained/compile_process.py", "constrained/compiler.py"),
    *("mem_cache/storage/file_backend.py", "mem_cache/storage/runner.py"),
}

OUTSIDE_MODULES = {
    *("time", "datetime", "random", "secrets", "uuid", "threading", "queue", "concurrent.futures", "selectors"),
    *("socket", "select", "os", "psutil", "mysglang.srt.utils.awake"),
}
OUTSIDE_CALLS = {
    *("done", "is_ready", "qsize", "get_nowait", "poll", "query", "is_past", "elapsed_time", "is_set", "is_alive"),
    *("result", "wait", "synchronize", "drain", "drain_within", "clock", "_clock", "mem_get_info", "spare"),
}

MAY_LOOK = {
    # It becomes a message, which every rank learns.
    "constrained/grammar_queue.py": "GrammarQueue.__init__ GrammarQueue.admit GrammarQueue.look GrammarCache.__init__",
    "mem_cache/host_tier.py": "HostTier.look HostTier.settle HostTier.reset",
    "mem_cache/storage/storage_tier.py": "StorageTier.__init__ StorageTier.fetch StorageTier.look "
    "StorageTier.weights_changed",
    "scheduling/intake.py": "Intake.drain Intake.drain_within Intake.wait RequestTimeouts.__init__ "
    # How long to wait for messages.
    "RequestTimeouts.expired Pace.__init__ Pace.launched Pace.finished Pace.spare",
    "scheduling/role.py": "PrefetchQueue.__init__ PrefetchQueue.look",
    # It is measured and told, and what was measured changes nothing until it is learned.
    "constrained/answer_grammar.py": "AnswerGrammar.accept AnswerMasks._fill _fill_one",
    "constrained/patience.py": "Patience.__init__",
    "managers/kv_event_publisher.py": "ZmqPublisher.flush Handover.__init__ Handover.end EventSockets.serve",
    "managers/scheduler_weights.py": "SchedulerWeights.__init__ SchedulerWeights.on_turn _joined",
    "scheduling/request.py": "Req",
    "scheduling/stats.py": "SchedulerStats.__init__ SchedulerStats.started SchedulerStats.figures "
    "SchedulerStats.fall_idle SchedulerStats.idling SchedulerStats._time SchedulerStats._log_prefill "
    "SchedulerStats._log_decode",
    "scheduling/output_streamer.py": "RequestTimeline.__init__ RequestTimeline.applied RequestTimeline.of",
    # How long to wait for messages, and whether to give a sign of life.
    "managers/scheduler.py": "Scheduler.recv_requests Scheduler._gather Scheduler.run_batch Scheduler.on_idle "
    "Scheduler.pulse Scheduler.beat",
    "managers/scheduler_control.py": "SchedulerControl.on_step CacheWatch.__init__ CacheWatch.on_beat "
    "CacheWatch.get_cache_tree",
    "managers/scheduler_process.py": "run_scheduler_process",
    # A seed that never changes.
    "scheduling/policy.py": "Random.__init__",
}
"""File -> the functions in it that may look outside."""

# Parts that turn requests into steps, or act for them between two steps.
DRIVERS = ("scheduling/*.py", "managers/scheduler.py", "managers/scheduler_[acms]*.py")
DEVICE_WORDS = {
    *("model", "model_runner", "runner", "executor", "platform", "programs", "pool", "kv_pool", "pools"),
    *("attention_backend", "attn_backend", "backend", "graphs", "device"),
}

# How far a row is, and what of a lane is in flight.
STATE = {"known", "low", "high", "life", "pending"}
MAY_ADVANCE = {
    # A request gets a slot, and leaves it.
    "RequestTable.open": "known low high",
    "RequestTable.close": "life",
    # A step is planned: `Scheduler.get_next_batch_to_run`.
    "PrefillPlanner._take": "low high",
    "OneToken.begin": "high",
    "Drafts.begin": "low high",
    # It is in flight.
    "Lane.__init__": "pending",
    "OverlapLoop.step": "pending",
    # Its result is applied: `Scheduler.process_batch_result`.
    "Drafts.settle": "low high",
    "ResultProcessor._accept": "known",
}
"""Function -> what of that it writes."""


def files(*patterns: str) -> list[Path]:
    return sorted(path for pattern in patterns for path in SOURCES.glob(pattern) if path.name != "__init__.py")


def place(path: Path) -> str:
    return path.relative_to(SOURCES).as_posix()


def nodes(tree: ast.AST, inside: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Each node, and the class and function around it."""
    for child in ast.iter_child_nodes(tree):
        here = inside
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and inside.count(".") == 0:
            here = f"{inside}.{child.name}" if inside else child.name
        yield inside, child
        yield from nodes(child, here)


def outside_names(tree: ast.AST) -> set[str]:
    """Names that stand for something of an outside module, or for the module."""
    names = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names |= {alias.asname or alias.name for alias in node.names if alias.name in OUTSIDE_MODULES}
            case ast.ImportFrom(module=module) if module in OUTSIDE_MODULES:
                names |= {alias.asname or alias.name for alias in node.names}
    return names


def looks_outside(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(function, what it looks at)."""
    names = outside_names(tree)
    for inside, node in nodes(tree):
        match node:
            case ast.Name(id=name) if name in names:
                yield inside, name
            case ast.Call(func=ast.Attribute(attr=attr)) if attr in OUTSIDE_CALLS:
                yield inside, f".{attr}()"


def test_planners_look_at_no_clock() -> None:
    wrong = []
    for path in files(*PARTS, *PARTS_BESIDE):
        if place(path) in ELSEWHERE:
            continue
        allowed = MAY_LOOK.get(place(path), "").split()
        found = list(looks_outside(ast.parse(path.read_text())))
        wrong += [f"{place(path)}: {inside} looks at {what}" for inside, what in found if inside not in allowed]
        unused = set(allowed) - {inside for inside, _ in found}
        wrong += [f"{place(path)}: {inside} looks at nothing any more" for inside in unused]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "import time\nclass Planner:\n    def plan(self): return time.monotonic()",
        "from time import monotonic\ndef plan(): return monotonic()",
        "from mysglang.srt.utils.awake import AWAKE\ndef plan(): return AWAKE.now()",
        "def plan(copy): return copy.event.query()",
        "class Planner:\n    def plan(self):\n        def inner(): return self._future.done()\n        return inner()",
    ],
)
def test_a_look_is_found(source: str) -> None:
    [found] = {inside for inside, _ in looks_outside(ast.parse(source))}
    assert found in ("plan", "Planner.plan")


def reaches(tree: ast.AST) -> Iterator[str]:
    """Uses of a worker other than its operations, and names of parts of the device."""
    operations = members(Worker)
    for _, node in nodes(tree):
        match node:
            case ast.Attribute(attr=attr, value=ast.Name(id="worker") | ast.Attribute(attr="worker" | "_worker")):
                if attr not in operations:
                    yield f"{node.lineno}: worker.{attr}"
            case ast.Attribute(attr=attr) if attr.lstrip("_") in DEVICE_WORDS:
                yield f"{node.lineno}: .{attr}"


def members(protocol: type) -> set[str]:
    """Members that it requires."""
    return {name for name in {*vars(protocol), *protocol.__annotations__} if not name.startswith("_")}


def test_the_loop_cannot_reach_the_device() -> None:
    """It has facts and operations, and no name for a model, a backend or a pool."""
    assert {"capacity", "forward_batch_generation"} <= members(Worker)
    paths = files(*DRIVERS)
    assert len(paths) > 25
    assert not [f"{place(path)}:{found}" for path in paths for found in reaches(ast.parse(path.read_text()))]


@pytest.mark.parametrize(
    "line", ["self._parts.worker.model.eval()", "worker.host_pages.copy()", "self.kv_pool.free()", "batch.device"]
)
def test_a_reach_is_found(line: str) -> None:
    assert list(reaches(ast.parse(line)))


def test_what_a_worker_has_beside_its_operations_are_facts_and_handles() -> None:
    """The composition root hands them to the parts that they are for. None is of a type of the GPU wing's."""
    for name in members(scheduler_builder.NamedWorker):
        handle = typing.get_type_hints(inspect.getattr_static(scheduler_builder.NamedWorker, name).fget)["return"]
        kind = typing.get_origin(handle) or handle
        assert kind.__module__.startswith(("mysglang.srt.forward.", "builtins", "collections.abc")), name


def writes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(function, what of a row's or a lane's state it writes)."""
    for inside, node in nodes(tree):
        match node:
            case ast.Assign(targets=targets):
                pass
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                targets = [target]
            case _:
                continue
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                match part:
                    case ast.Subscript(value=ast.Attribute(attr=attr)) if attr in STATE:
                        yield inside, attr
                    case ast.Attribute(attr="pending"):
                        yield inside, "pending"


def test_state_advances_at_visible_places() -> None:
    """State advances where steps are planned, launched, and where their results are applied, and nowhere between."""
    found: dict[str, set[str]] = {}
    for path in files("scheduling/*.py", "managers/scheduler*.py"):
        for inside, what in writes(ast.parse(path.read_text())):
            found.setdefault(inside, set()).add(what)
    assert found == {inside: set(what.split()) for inside, what in MAY_ADVANCE.items()}


@pytest.mark.parametrize("module", [worker_batch, shared_prefix, outputs, feature])
def test_a_submitted_step_is_frozen(module: ModuleType) -> None:
    own = [each for each in vars(module).values() if inspect.isclass(each) and each.__module__ == module.__name__]
    frozen = [
        each.__dataclass_params__.frozen if dataclasses.is_dataclass(each) else each.__struct_config__.frozen
        for each in own
        if dataclasses.is_dataclass(each) or issubclass(each, msgspec.Struct)
    ]
    assert frozen and all(frozen)
