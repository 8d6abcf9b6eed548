"""Kernels that are compiled while another backend stands in for theirs."""

import logging
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from fixtures.attention_cases import PLAIN
from mysglang.srt.layers.attention import factory
from mysglang.srt.layers.attention.factory import AskedBackends, AttentionTask, ChosenBackends, without_waiting
from mysglang.srt.layers.attention.stand_in import NOTHING_TO_BUILD, BackgroundBuild

ALL = ("sgl_kernel", "flashinfer", "triton", "torch_native")
CHOSEN = ChosenBackends("flashinfer", "sgl_kernel")
TASK = AttentionTask([PLAIN], torch.bfloat16, torch.bfloat16)
CPU = torch.device("cpu")


class Backend:
    """A backend that says its name."""

    kv_pool = None

    def __init__(self, name: str) -> None:
        self.name = name

    def plan(self, batch: Any) -> Any:
        return self.name

    def forward(self, *_: Any) -> Any:
        return self.name


def started(compile_them: Callable[[], None]) -> tuple[BackgroundBuild, Any]:
    build = BackgroundBuild("fast", "slow", compile_them)
    return build, build.backend(lambda: Backend("slow"), lambda: Backend("fast"))  # type: ignore[arg-type, return-value]


def waits(event: threading.Event) -> None:
    event.wait()


def caught_up(build: BackgroundBuild) -> bool:
    """Waits for the compiler, and returns the answer of `catch_up` then."""
    while build.waits_for:
        if build.catch_up():
            return True
    return False


def test_the_wanted_backend_runs_once_its_kernels_are_there() -> None:
    may_end = threading.Event()
    build, backend = started(lambda: waits(may_end))
    assert not build.catch_up() and "fast" in build.waits_for
    assert backend.plan(None) == "slow"
    may_end.set()
    assert caught_up(build)
    assert backend.plan(None) == "fast" and backend.forward(None, None, None, None, None) == "fast"
    assert not build.catch_up(), "it is said once"


def test_where_the_compiler_fails_the_stand_in_stays(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise RuntimeError("there is no nvcc")

    build, backend = started(fails)
    with caplog.at_level(logging.WARNING):
        assert not caught_up(build)
    assert backend.plan(None) == "slow"
    assert [each.getMessage() for each in caplog.records] == [
        "The kernels of fast could not be compiled, so prompts stay on slow, which is slower: there is no nvcc"
    ]


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Kernels that FlashInfer has not compiled, on a machine where everything is installed."""
    names = ["prompts"]
    build = ModuleType("flashinfer_build")
    build.missing = lambda *_: [*names]  # type: ignore[attr-defined]
    build.compile_all = lambda modules: names.clear()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mysglang.srt.layers.attention.flashinfer_build", build)
    monkeypatch.setattr(factory.importlib.util, "find_spec", lambda name: name)
    return names


def test_kernels_that_are_not_compiled_are_compiled_beside_a_stand_in(missing: list[str]) -> None:
    chosen = without_waiting(CHOSEN, AskedBackends(), ALL, TASK, CPU)
    assert (chosen.prefill, chosen.decode, chosen.stand_in) == ("flashinfer", "sgl_kernel", "triton")
    assert str(chosen) == str(CHOSEN)
    build = chosen.build
    assert isinstance(build, BackgroundBuild)
    assert caught_up(build) and missing == []


@pytest.mark.parametrize(
    ("chosen", "asked", "available"),
    [
        (CHOSEN, AskedBackends(prefill="flashinfer"), ALL),
        (CHOSEN, AskedBackends("flashinfer"), ALL),
        (ChosenBackends("flashinfer", "flashinfer"), AskedBackends(), ALL),
        (ChosenBackends("triton", "sgl_kernel"), AskedBackends(), ALL),
        (CHOSEN, AskedBackends(), ("sgl_kernel", "flashinfer")),
    ],
    ids=["asked for prompts", "asked for both", "decodes, too", "another", "nothing else runs here"],
)
def test_otherwise_the_first_step_waits_for_the_compiler(
    missing: list[str], chosen: ChosenBackends, asked: AskedBackends, available: tuple[str, ...]
) -> None:
    found = without_waiting(chosen, asked, available, TASK, CPU)
    assert found == chosen and found.build is NOTHING_TO_BUILD and missing == ["prompts"]


def test_nothing_is_late_where_all_is_compiled(missing: list[str]) -> None:
    missing.clear()
    assert without_waiting(CHOSEN, AskedBackends(), ALL, TASK, CPU).build is NOTHING_TO_BUILD
