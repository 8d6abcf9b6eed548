"""SchedulerSettings: options that may be changed while a scheduler runs, and what each of them is to its parts."""

from __future__ import annotations

from mysglang.srt.managers.scheduler import Handlers
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import ControlReqOutput
from mysglang.srt.messages.settings import SetInternalStateReq
from mysglang.srt.scheduling.new_token_ratio import NewTokenRatio
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.stats import SchedulerStats


class SchedulerSettings:
    """Changes options of a scheduler."""

    def __init__(
        self, table: RequestTable, ratio: NewTokenRatio, stats: SchedulerStats, to_tokenizer: Sender[ToTokenizer]
    ) -> None:
        self._table = table
        self._ratio = ratio
        self._stats = stats
        self._to_tokenizer = to_tokenizer

    def handlers(self) -> Handlers:
        """The row that this part contributes to the dispatch table."""
        return {SetInternalStateReq: self.set_internal_state}

    def set_internal_state(self, message: SetInternalStateReq) -> None:
        """Requests that run keep the stream interval that they began with."""
        if message.schedule_conservativeness is not None:
            self._ratio.change(message.schedule_conservativeness)
        if message.stream_interval is not None:
            self._table.stream_interval = message.stream_interval
        if message.decode_log_interval is not None:
            self._stats.decode_log_interval = message.decode_log_interval
        settings = {
            "schedule_conservativeness": self._ratio.conservativeness,
            "stream_interval": self._table.stream_interval,
            "decode_log_interval": self._stats.decode_log_interval,
        }
        done = ControlReqOutput(id=message.id, success=True, message="Options changed.", details=settings)
        self._to_tokenizer.send(done)
