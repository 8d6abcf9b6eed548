"""The Protocol that HTTP routes need: the runtime of this process implements it, and so does a test's fake.

Knows no route, and neither sockets nor processes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.managers.fronts import FrontHeld
from mysglang.srt.managers.request_metrics import RequestMetrics
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.managers.text_pool import TextPool
from mysglang.srt.messages.control import (
    Command,
    ControlReqOutput,
    FlushCacheReqOutput,
    FrontOrder,
    GetInternalStateReqOutput,
    HeartBeat,
)
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.parser.template_manager import TemplateManager
from mysglang.srt.utils.tokenizer import Tokenizer


@dataclass(slots=True)
class RequestLogSettings:
    """Which parts of requests are logged; may change while the server runs."""

    log_requests: bool = False
    """True: one log line when a request comes, and one when it ends. Sizes, parameters and times, never the text."""
    dump_folder: str = ""
    """Directory in which every finished request is kept whole, to be asked again; none if empty."""


class Signs(Protocol):
    """When the engine was last heard from, and what it reported."""

    @property
    def heartbeat(self) -> HeartBeat | None:
        """The scheduler's last heartbeat."""
        ...

    @property
    def last_heartbeat(self) -> float:
        """Time of the last heartbeat in seconds of the AWAKE clock; 0 if there was none."""
        ...

    def quietest(self) -> tuple[str, float]:
        """Returns the process that has been silent for longest, and when it was last heard from: seconds of the AWAKE
        clock, 0 for never.
        """
        ...


class TextCoder(Protocol):
    """Text to ids and back, off the event loop. Raises InvalidRequest, also for a server without a tokenizer."""

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]: ...

    async def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]: ...

    async def starts(self, text: str) -> list[int]: ...

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str: ...


class Manager(Protocol):
    """The TokenizerManager, as the routes see it."""

    @property
    def signs(self) -> Signs: ...

    @property
    def input_tokenizer(self) -> TextCoder: ...

    @property
    def open_requests(self) -> int:
        """Number of answers that are not complete."""
        ...

    def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]: ...

    def notify_fronts(self, order: FrontOrder) -> None:
        """Makes the other fronts of this server do the same."""
        ...

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> int: ...

    def held(self) -> FrontHeld:
        """Returns the resources that this front holds for requests now."""
        ...

    async def flush_cache(self) -> FlushCacheReqOutput: ...

    async def get_internal_state(self) -> GetInternalStateReqOutput: ...

    async def command(self, make: Callable[[int], Command], *, patience_s: float | None = None) -> ControlReqOutput: ...


class Front(Protocol):
    """All objects that serve requests in this process."""

    @property
    def tokenizer_manager(self) -> Manager: ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """None for a server that takes token ids only."""
        ...

    @property
    def template_manager(self) -> TemplateManager | None:
        """The chat templates; None if the server has no tokenizer."""
        ...

    @property
    def text_pool(self) -> TextPool: ...

    @property
    def facts(self) -> SchedulerFacts: ...

    @property
    def request_log(self) -> RequestLogSettings: ...

    @property
    def metrics(self) -> RequestMetrics:
        """Counters of requests."""
        ...
