"""Options of scheduling: how batches are formed."""

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
DECODE_WAIT_TOKENS = 32768


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleArgs:
    """Which requests run, in which order, and how steps are formed."""

    max_running_requests: int | None = arg(
        None,
        at_least=1,
        help="Largest number of requests that run at once. Lower it to bound the time between tokens. If unset, as "
        "many as memory allows.",
    )
    max_queued_requests: int = arg(
        4096,
        at_least=1,
        help="Requests that may be open at once beyond the running ones. A request beyond that is refused with a 429,"
        " unless it displaces one of lower priority.",
    )
    req_waiting_timeout: float | None = arg(
        None,
        at_least=0.001,
        help="Seconds that a request may wait until it first runs; after that it gets a 503. If unset, there is no"
        " limit.",
    )
    req_running_timeout: float | None = arg(
        None,
        at_least=0.001,
        help="Seconds from a request's first step until it must be complete; after that it gets a 503. If unset, "
        "there is no limit.",
    )
    chunked_prefill_size: int | None = arg(
        None,
        at_least=CHUNKING_OFF,
        help="Prompt tokens of one chunk. Smaller chunks interrupt running requests for a shorter time; larger "
        "ones compute prompts faster. -1: prompts are not cut. If unset, 2048 on a CPU, 2048 to 16384 by GPU "
        "memory.",
    )
    enable_mixed_chunk: bool = arg(
        False,
        help="Compute prompt chunks and running requests in the same steps. Use it if long prompts keep arriving "
        "while others generate.",
    )
    decode_wait_tokens: int | None = arg(
        None,
        at_least=0,
        help="Prompt tokens for which running requests wait at most before they get a step. 0: they wait for all "
        "prompts. If unset, it is 2048 on a CPU. On a GPU steps with prompts are then kept short while answers are "
        "streamed, and otherwise it is 32768.",
    )
    max_prefill_tokens: int = arg(16384, at_least=1, help="Prompt tokens of one prefill step, over all its requests.")
    schedule_policy: PolicyName = arg(
        "fcfs",
        help="Order in which waiting requests are tried. docs/scheduling.md says which policy suits which traffic.",
    )
    enable_priority_scheduling: bool = arg(
        False,
        help="Let requests have a `priority`; waiting requests with the largest value are tried first, and may "
        "preempt running ones.",
    )
    schedule_low_priority_values_first: bool = arg(
        False,
        help="Try requests with the smallest priority first, instead of the largest. Needs --enable-priority-"
        "scheduling.",
    )
    priority_scheduling_preemption_threshold: int = arg(
        10, at_least=0, help="A waiting request preempts running ones whose priority is lower by more than this."
    )
    disable_priority_preemption: bool = arg(
        False, help="Never preempt a running request, whatever its priority. Priorities then order the queue only."
    )
    abort_on_priority_when_disabled: bool = arg(
        False,
        help="No effect; accepted for compatibility with SGLang. Requests with a priority are always refused where"
        " priorities are off.",
    )
    fair_share_by: FairShareBy | None = arg(
        None,
        help="Divide the server fairly among clients, by the tokens that they have used. The value says what"
        " identifies a client. If unset, api_key if there are several API keys, else none.",
    )
    schedule_conservativeness: float = arg(
        1.0,
        at_least=0.001,
        help="How much memory is reserved for answers in progress. Raise it if the log shows many retracted "
        "requests; lower it if memory stays unused while requests wait.",
    )
    disable_overlap_schedule: bool = arg(
        False, help="Plan each step only after the step before it. Slower; use it to debug the scheduler."
    )

    @property
    def shares_by(self) -> ShareKey | None:
        """Key that distinguishes the clients that take turns; None if all requests belong to one client. Valid for
        resolved options.
        """
        return None if self.fair_share_by == "none" else self.fair_share_by

    @property
    def has_priorities(self) -> bool:
        """True if requests may have a priority."""
        return self.enable_priority_scheduling or self.schedule_policy == "priority"

    @property
    def preemption_threshold(self) -> int | None:
        """A request can preempt another whose priority is lower by more than this. None: no request is preempted."""
        off = self.disable_priority_preemption or not self.has_priorities
        return None if off else self.priority_scheduling_preemption_threshold

    @property
    def priorities(self) -> Literal["none", "high_first", "low_first"]:
        """The order that priorities give: high numbers first, low numbers first, or none."""
        if not self.has_priorities:
            return "none"
        return "low_first" if self.schedule_low_priority_values_first else "high_first"

    @property
    def most_wait_tokens(self) -> int:
        """Number of prompt tokens for which running requests wait at most, if steps are not kept short; 0: no limit."""
        return DECODE_WAIT_TOKENS if self.decode_wait_tokens is None else self.decode_wait_tokens

    @property
    def prefill_chunk(self) -> int | None:
        """Tokens of one prefill chunk, None for whole prompts; of resolved options."""
        return None if self.chunked_prefill_size == CHUNKING_OFF else self.chunked_prefill_size
