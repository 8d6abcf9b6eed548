"""SchedulerMemory: handlers of the control messages that give memory back and take it again.

While something is released no step runs, and requests that come are refused: nobody knows how long it will be.
"""

from __future__ import annotations

from collections.abc import Callable

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.forward.occupation import Occupation
from mysglang.srt.managers.scheduler import Handlers, Scheduler
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput
from mysglang.srt.messages.weights import ReleaseMemoryOccupationReq, ResumeMemoryOccupationReq

GIB = 1 << 30

REFUSED = "The engine has given its memory back; it serves again when that is resumed."


class SchedulerMemory:
    """Sees to it that nobody needs what is given back."""

    def __init__(
        self, scheduler: Scheduler, kv: KvManager, memory: Occupation, to_tokenizer: Sender[ToTokenizer]
    ) -> None:
        self._scheduler = scheduler
        self._kv = kv
        self._memory = memory
        self._to_tokenizer = to_tokenizer

    def handlers(self) -> Handlers:
        """The rows that this part contributes to the dispatch table."""
        return {ReleaseMemoryOccupationReq: self.release, ResumeMemoryOccupationReq: self.resume}

    def release(self, message: ReleaseMemoryOccupationReq) -> None:
        """If nobody is here, or all who are wait for a pause to end and hold nothing."""

        def release() -> str:
            busy = self._scheduler.holders
            if busy:
                raise InvalidRequest(f"{busy} requests are running or waiting; memory is given back by an idle engine.")
            freed = self._memory.release(frozenset(message.tags), self._scheduler.pulse)
            flushed = self._kv.flush()
            assert flushed, "nobody runs"
            self._scheduler.refuses = REFUSED
            return f"{freed / GIB:.2f} GiB were given back; released now: {self._released()}."

        self._settle(message.id, release)

    def resume(self, message: ResumeMemoryOccupationReq) -> None:
        """Serve again once all is there."""

        def resume() -> str:
            self._memory.resume(frozenset(message.tags), self._scheduler.pulse)
            if not self._memory.released:
                self._scheduler.refuses = ""
            return f"Taken again; released now: {self._released() or 'nothing'}."

        self._settle(message.id, resume)

    def _released(self) -> str:
        return ", ".join(sorted(self._memory.released))

    def _settle(self, number: int, work: Callable[[], str]) -> None:
        try:
            reply = ControlReqOutput(id=number, success=True, message=work())
        except InvalidRequest as error:
            reply = ControlReqOutput.refusing(number, error)
        self._to_tokenizer.send(reply)
