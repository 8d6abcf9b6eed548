"""LoggedManager: the TokenizerManager with a line in the log for each request that comes and each answer that ends.

Sizes, parameters and times; never what a request or an answer says. Lines of one call have its number: a rid may only
be made after the first of them, and a call may have several. The operator may also have whole requests kept in files
(`request_dump.py`). Both can be switched while the server runs, and cost nothing while they are off.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections.abc import AsyncGenerator, Callable

from mysglang.srt.entrypoints.crash_records import CrashRecords
from mysglang.srt.entrypoints.front import Manager, RequestLogSettings, Signs, TextCoder
from mysglang.srt.entrypoints.request_dump import dumped
from mysglang.srt.managers.fronts import FrontHeld
from mysglang.srt.managers.request_state import GenerationChunk
from mysglang.srt.managers.response_dict import finish_reason_dict
from mysglang.srt.messages.control import (
    Command,
    ControlReqOutput,
    FlushCacheReqOutput,
    FrontOrder,
    GetInternalStateReqOutput,
)
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

MAX_RID_SHOWN = 300
"""Characters."""

_UNITS: dict[type, str] = {str: "characters", list: "entries", dict: "entries"}
"""Types of parameters that may hold a client's words, and what is counted of them."""


class LoggedManager:
    """Wraps a manager and logs its requests (an `entrypoints.front.Manager`)."""

    def __init__(self, manager: Manager, settings: RequestLogSettings, crash_records: CrashRecords) -> None:
        self._manager = manager
        self._crash_records = crash_records
        self._settings = settings
        self._calls = itertools.count(1)

    @property
    def signs(self) -> Signs:
        return self._manager.signs

    @property
    def input_tokenizer(self) -> TextCoder:
        return self._manager.input_tokenizer

    @property
    def open_requests(self) -> int:
        return self._manager.open_requests

    def generate_request(self, obj: GenerateReqInput) -> AsyncGenerator[GenerationChunk, None]:
        """Does what the manager's `generate_request` does, with log lines. A request with `no_logs` has none."""
        settings = self._settings
        chunks = self._crash_records.watched(obj, self._manager.generate_request(obj))
        if settings.dump_folder and not obj.no_logs:
            chunks = dumped(obj, chunks, settings.dump_folder)
        return self._logged(obj, chunks) if settings.log_requests else chunks

    async def _logged(
        self, obj: GenerateReqInput, coming: AsyncGenerator[GenerationChunk, None]
    ) -> AsyncGenerator[GenerationChunk, None]:
        begun, call = time.perf_counter(), next(self._calls)
        if not obj.no_logs:
            logger.info("Receive: call %d, %s", call, _coming(obj))
        try:
            async with contextlib.aclosing(coming) as chunks:
                async for chunk in chunks:
                    if chunk.finish_reason is not None and not obj.no_logs:
                        logger.info("Finish: call %d, %s, %.3f s", call, _ending(chunk), time.perf_counter() - begun)
                    yield chunk
        except Exception as error:
            if not obj.no_logs:
                kind, seconds = type(error).__name__, time.perf_counter() - begun
                logger.info("Fail: call %d, rid=%s, %s, %.3f s", call, _shown(obj), kind, seconds)
            raise

    def notify_fronts(self, order: FrontOrder) -> None:
        self._manager.notify_fronts(order)

    def abort_request(self, rid: str = "", *, abort_all: bool = False) -> int:
        return self._manager.abort_request(rid, abort_all=abort_all)

    def held(self) -> FrontHeld:
        return self._manager.held()

    async def flush_cache(self) -> FlushCacheReqOutput:
        return await self._manager.flush_cache()

    async def get_internal_state(self) -> GetInternalStateReqOutput:
        return await self._manager.get_internal_state()

    async def command(self, make: Callable[[int], Command], *, patience_s: float | None = None) -> ControlReqOutput:
        return await self._manager.command(make, patience_s=patience_s)


def _coming(obj: GenerateReqInput) -> str:
    """Describes a request for the log, with sizes in characters for text, in tokens for ids."""
    if obj.text is not None:
        texts = [obj.text] if isinstance(obj.text, str) else obj.text
        size = f"text of {', '.join(str(len(text)) for text in texts[:8])} characters"
        count = len(texts)
    else:
        name = "input_ids" if obj.input_embeds is None else "input_embeds"
        sizes = _lengths(obj)
        size = f"{name} of {', '.join(map(str, sizes[:8]))} tokens"
        count = len(sizes)
    params = obj.sampling_params[0] if isinstance(obj.sampling_params, list) else obj.sampling_params
    return f"rid={_shown(obj)}, {count} x {size}, stream={obj.stream}, {_not_default(params)}"


def _lengths(obj: GenerateReqInput) -> list[int]:
    """Returns the number of tokens of each prompt that is not text."""
    ids, embeds = obj.input_ids or [], obj.input_embeds
    if embeds is None:
        return [len(entry) for entry in ids if isinstance(entry, list)] or [len(ids)]
    several = bool(embeds) and any(isinstance(entry, list) for entry in embeds[0])
    return [len(entry) for entry in embeds] if several else [len(embeds)]


def _shown(obj: GenerateReqInput) -> str:
    """Returns the rid on one short line, whatever its characters: it has not been checked yet."""
    text = str(obj.rid)[:MAX_RID_SHOWN]
    return text if text.isprintable() else ascii(text)


def _not_default(params: SamplingParams) -> str:
    """Describes the parameters that were set. Those that may hold a client's words are told by their size alone."""
    default, shown = SamplingParams(), []
    for name in params.__struct_fields__:
        value = getattr(params, name)
        if value != getattr(default, name):
            unit = _UNITS.get(type(value))
            shown.append(f"{name}={value}" if unit is None else f"{name}={len(value)} {unit}")
    return " ".join(shown) or "default sampling"


def _ending(chunk: GenerationChunk) -> str:
    reason = finish_reason_dict(chunk.finish_reason) or {}
    numbers = f"{chunk.prompt_tokens} prompt tokens ({chunk.cached_tokens} cached), {chunk.completion_tokens} new"
    return f"rid={chunk.rid}, {reason.get('type')}, {numbers}"
