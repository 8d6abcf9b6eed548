"""How batches are formed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

PolicyName = Literal[
    "fcfs", "lpm", "dfs-weight", "lof", "random", "priority", "hrrn", "shortest-prefill-first", "routing-key"
]
ShareKey = Literal["api_key", "extra_key", "routing_key"]
FairShareBy = Literal["api_key", "extra_key", "routing_key", "none"]

CHUNKING_OFF = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleArgs:
    """How batches are formed."""

    max_running_requests: int | None = arg(
        None, at_least=1, help="Requests that run at once; as many as memory holds if unset."
    )
    max_queued_requests: int = arg(
        4096, at_least=1, help="Requests that may wait; the next one is refused at once, to be retried later."
    )
    req_waiting_timeout: float | None = arg(
        None, at_least=0.001, help="Seconds that a request may wait to run until it is answered 503; no bound if unset."
    )
    req_running_timeout: float | None = arg(
        None, at_least=0.001, help="Seconds from when a request first runs until it is answered 503; no bound if unset."
    )
    chunked_prefill_size: int | None = arg(
        None,
        at_least=CHUNKING_OFF,
        help="Tokens of one prefill chunk, -1 for whole prompts; chosen by GPU memory if unset.",
    )
    enable_mixed_chunk: bool = arg(
        False,
        help="Let prompts and running requests share steps, so that these do not wait while prompts are computed.",
    )
    decode_wait_tokens: int = arg(
        32768,
        at_least=0,
        help="Prompt tokens for which running requests wait at most before they get a step; 0: for all there are.",
    )
    max_prefill_tokens: int = arg(16384, at_least=1, help="Prompt tokens of one prefill batch.")
    schedule_policy: PolicyName = arg("fcfs", help="Order of the waiting queue; docs/scheduling.md tells them apart.")
    enable_priority_scheduling: bool = arg(
        False, help="Let requests say how urgent they are: of those that wait, the largest `priority` is tried first."
    )
    schedule_low_priority_values_first: bool = arg(
        False, help="Try the request with the smallest priority first, not the one with the largest."
    )
    priority_scheduling_preemption_threshold: int = arg(
        10, at_least=0, help="A request displaces running ones whose priority it beats by more than this."
    )
    disable_priority_preemption: bool = arg(False, help="Never preempt a running request, whatever its priority.")
    abort_on_priority_when_disabled: bool = arg(
        False,
        help="No effect; accepted for compatibility with SGLang. Requests with a priority are always refused where "
        "priorities are off.",
    )
    fair_share_by: FairShareBy | None = arg(
        None,
        help="Let clients take turns by what they have used; this tells them apart. Default: api_key where there are "
        "several keys, else none.",
    )
    schedule_conservativeness: float = arg(
        1.0, at_least=0, help="Larger admits fewer requests at once and retracts fewer."
    )
    disable_overlap_schedule: bool = arg(False, help="Plan a step only when the step before it is over.")

    @property
    def shares_by(self) -> ShareKey | None:
        """What tells clients apart that take turns; None where all are one. Of resolved options."""
        return None if self.fair_share_by == "none" else self.fair_share_by

    @property
    def has_priorities(self) -> bool:
        """Whether requests may say how urgent they are."""
        return self.enable_priority_scheduling or self.schedule_policy == "priority"

    @property
    def preemption_threshold(self) -> int | None:
        """By how much more urgent one must be to displace another; None: nobody is displaced."""
        off = self.disable_priority_preemption or not self.has_priorities
        return None if off else self.priority_scheduling_preemption_threshold

    @property
    def priorities(self) -> Literal["none", "high_first", "low_first"]:
        """Which requests are tried first by what they say themselves."""
        if not self.has_priorities:
            return "none"
        return "low_first" if self.schedule_low_priority_values_first else "high_first"

    @property
    def prefill_chunk(self) -> int | None:
        """Tokens of one prefill chunk, None for whole prompts; of resolved options."""
        return None if self.chunked_prefill_size == CHUNKING_OFF else self.chunked_prefill_size
