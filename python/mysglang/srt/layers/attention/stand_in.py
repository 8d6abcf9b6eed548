"""StandIn: steps with prompts go to a backend that is ready at once, until the kernels of a faster one are compiled.

    start ── stand-in ── stand-in ──┬── wanted ── wanted …
    compile in the background ──────┘ between two steps

A server is ready before that, and never waits for the compiler. Where the compiler fails, the stand-in stays.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

from torch import Tensor

from mysglang.srt.forward.forward_batch import AttentionBackend, AttentionMetadata, AttentionSpec, ForwardBatch, KvStore
from mysglang.srt.layers.attention.graph import PromptCapture, prompt_capture

logger = logging.getLogger(__name__)

NICENESS = 10
"""The compiler gives way to all that the start waits for."""

MakeBackend = Callable[[], AttentionBackend]


class StandIn:
    """An attention backend of which `wanted` takes the place of `now` between two steps."""

    def __init__(self, now: AttentionBackend, wanted: AttentionBackend) -> None:
        """Both must read the same pool."""
        self._backend = now
        self._wanted = wanted

    @property
    def kv_pool(self) -> KvStore:
        return self._backend.kv_pool

    def plan(self, batch: ForwardBatch) -> AttentionMetadata:
        return self._backend.plan(batch)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        return self._backend.forward(q, k, v, spec, batch)

    def prompt_capture(self, specs: Sequence[AttentionSpec]) -> PromptCapture | None:
        """Returns the prompt capture of the backend that runs now, if it has one."""
        return prompt_capture(self._backend, specs)

    def replace(self) -> None:
        """Sends later steps to the wanted backend."""
        self._backend = self._wanted


class KernelBuild(Protocol):
    """Kernels for prompts that may not be compiled yet."""

    @property
    def waits_for(self) -> str:
        """The event that prompts on the wanted backend wait for, a clause; empty if they wait for none."""
        ...

    def backend(self, now: MakeBackend, wanted: MakeBackend) -> AttentionBackend:
        """Returns the backend for prompts: `wanted`, or `now` until the kernels of `wanted` are compiled."""
        ...

    def catch_up(self) -> bool:
        """Returns True once, when the kernels are compiled: the wanted backend runs from now on. Called between
        steps.
        """
        ...


class NothingToBuild:
    """A null object: all kernels are compiled, or the first step waits for the compiler."""

    waits_for = ""

    def backend(self, now: MakeBackend, wanted: MakeBackend) -> AttentionBackend:
        return wanted()

    def catch_up(self) -> bool:
        return False


NOTHING_TO_BUILD = NothingToBuild()


class BackgroundBuild:
    """Kernels that a thread compiles, and the backends that wait for them (a `KernelBuild`)."""

    def __init__(self, name: str, stand_in: str, compile_them: Callable[[], None]) -> None:
        """Starts to compile. `name` and `stand_in`: names of backends, for the log."""
        self._name = name
        self._stand_in = stand_in
        self._waiting: list[StandIn] = []
        self._compiled: Future[None] = Future()
        self._over = False
        logger.info(
            "The kernels of %s for prompts are being compiled in the background. Until then, prompts run on %s.",
            name,
            stand_in,
        )
        thread = threading.Thread(target=self._compile, args=(compile_them,), name=f"{name} build", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for a thread
            self._compiled.set_exception(error)

    @property
    def waits_for(self) -> str:
        return "" if self._over else f"the kernels of {self._name} are compiled, which the log reports"

    def backend(self, now: MakeBackend, wanted: MakeBackend) -> AttentionBackend:
        # Both are made at the start, while memory for them is planned.
        stand_in = StandIn(now(), wanted())
        self._waiting.append(stand_in)
        return stand_in

    def catch_up(self) -> bool:
        if self._over or not self._compiled.done():
            return False
        if (error := self._compiled.exception()) is not None:
            self._over = True
            logger.warning(
                "The kernels of %s could not be compiled, so prompts stay on %s, which is slower: %s",
                self._name,
                self._stand_in,
                error,
            )
            return False
        for each in self._waiting:
            each.replace()
        self._over = True
        logger.info("The kernels of %s are compiled. Prompts run on them from now on.", self._name)
        return True

    def _compile(self, compile_them: Callable[[], None]) -> None:
        began = time.perf_counter()
        try:
            # Linux keeps a niceness for each thread, and the compiler's processes inherit it.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
            compile_them()
        except Exception as error:  # a compiler fails in many ways, and none may end the server
            self._compiled.set_exception(error)
            return
        logger.info("Compiling the kernels of %s took %.0f s.", self._name, time.perf_counter() - began)
        self._compiled.set_result(None)
