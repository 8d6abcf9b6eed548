"""Control messages: requests to the schedulers and their replies, in pairs. Routed back by `id`.

At the end: messages between the fronts of one server, for actions that all fronts must know. They are sent to a front
like replies.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self, TypeAlias

import msgspec

from mysglang.srt.errors import Conflict, InvalidRequest, PeerRefused, RequestError
from mysglang.srt.messages.weights import FIRST_VERSION, WeightCommand
from mysglang.srt.observability.instruments import SCHEDULER


class SetInternalStateReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Sets these options to new values; None leaves an option unchanged."""

    id: int
    schedule_conservativeness: float | None = None
    stream_interval: int | None = None
    decode_log_interval: int | None = None


class FlushCacheReqInput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks the scheduler to empty the prefix cache, if nothing runs or waits."""

    id: int


class FlushCacheReqOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """True in `success` if the cache was emptied; otherwise `message` says why not."""

    id: int
    success: bool
    message: str = ""
    rank: int = 0


class GetInternalStateReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks a scheduler for its sizes, counters and options."""

    id: int


class GetInternalStateReqOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Facts for /server_info. An idle scheduler has no request, no protected token and no locked node."""

    id: int
    num_running_reqs: int
    num_waiting_reqs: int
    free_tokens: int
    evictable_tokens: int
    protected_tokens: int
    max_total_num_tokens: int
    locked_nodes: int
    free_slots: int
    max_running_requests: int
    last_gen_throughput: float
    forward_steps: int
    num_retractions: int
    avg_spec_accept_length: float | None = None
    """Tokens that a decoding row got in a step since the start; None where no drafts are tried."""
    max_total_num_tokens_swa: int = 0
    """Tokens that the pools of layers with a sliding window hold; 0: there are no separate pools."""
    swa_free_tokens: int = 0
    swa_evictable_tokens: int = 0
    mamba_states: int = 0
    """States of layers that keep one for each request; 0: the model has no such layers."""
    mamba_free_states: int = 0
    mamba_evictable_states: int = 0
    """Checkpoints of the prefix cache."""
    host_tokens: int = 0
    """Largest number of tokens in the host tier of the cache; 0: there is none."""
    host_free_tokens: int = 0
    host_cached_tokens: int = 0
    host_locked_nodes: int = 0
    host_written_tokens: int = 0
    """Copied there since the start."""
    host_loaded_tokens: int = 0
    """Copied back since the start, instead of being computed."""
    host_dropped_tokens: int = 0
    """Tokens that should have been copied there, and found no room."""
    storage_written_tokens: int = 0
    """Written to storage below that, since the start."""
    storage_read_tokens: int = 0
    memory_usage: dict[str, float] = {}
    programs: dict[str, str] = {}
    """Name of each way to run steps, the fastest first -> the steps that it takes now, or why it is not used."""
    rank: int = 0
    ranks: list[GetInternalStateReqOutput] = []
    """Values of the other ranks. Ranks plan alike, so the numbers of pages, slots and requests are those of the first
    rank.
    """


MAX_PREVIEW_TOKENS = 64


class GetCacheTreeReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks for a bounded picture of the prefix cache. The reply's `details` are a `mem_cache.tree_view.TreeView`, in
    which nodes have `idle_s`, the seconds since they were used, in place of `last_use`.
    """

    id: int
    preview_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_PREVIEW_TOKENS)] = 0
    """Token ids to send of the beginning of each node that belongs to requests without a salt; 0: none."""


PauseMode: TypeAlias = Literal["abort", "retract", "in_place"]
"""How a pause treats running requests: they end, or give their memory back and wait, or keep it and wait."""


class PauseGenerationReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Tells the scheduler to launch no step until ContinueGenerationReq. Requests that arrive in between wait."""

    id: int
    mode: PauseMode = "abort"


class ContinueGenerationReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Tells the scheduler to launch steps again after a pause."""

    id: int


class FreezeGcReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Freezes the objects that are alive now, so that the garbage collector no longer visits them."""

    id: int


ProfileActivity: TypeAlias = Literal["CPU", "GPU", "STEPS"]
"""Events that a profile records: functions on the host, kernels on the device, or the phases of the scheduler's
steps.
"""

ProfileStage: TypeAlias = Literal["prefill", "decode"]


class StartProfileReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Asks the worker to record what it does, until StopProfileReq or for `num_steps` steps."""

    id: int
    output_dir: str
    """Directory on the scheduler's machine; made if it is not there."""
    name: str
    """The name of the trace's file, without its ending."""
    activities: list[ProfileActivity]
    with_stack: bool = False
    record_shapes: bool = False
    num_steps: int | None = None
    """Steps after which the recording ends by itself; None: StopProfileReq ends it."""
    start_step: int = 0
    """Number of scheduler steps since its start at which the recording begins; 0: at once."""
    stages: list[ProfileStage] = []
    """A recording for each of these stages, of `num_steps` of its steps each; empty: one for all steps."""


class StopProfileReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Tells the scheduler to stop recording and to write the trace."""

    id: int


class ControlReqOutput(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Result of a command; `message` says what was done, or why it failed."""

    id: int
    success: bool
    message: str = ""
    details: dict[str, Any] = {}
    """The requested values by name, as plain JSON."""
    param: str | None = None
    """The field of the command that is to blame for its not being carried out, if one is."""

    conflict: bool = False
    """True if the command failed because another one is under way, or was already done."""
    of_peer: bool = False
    """True if another rank refused it, so that the cause is in that rank's reply."""
    rank: int = 0

    @classmethod
    def refusing(cls, number: int, error: RequestError) -> Self:
        """Returns the reply that call `number` was not carried out, and why."""
        return cls(
            id=number,
            success=False,
            message=error.message,
            param=error.param,
            conflict=isinstance(error, Conflict),
            of_peer=isinstance(error, PeerRefused),
        )

    def carried_out(self) -> Self:
        """Returns this reply. Raises InvalidRequest or Conflict if the command was not carried out."""
        if not self.success:
            raise (Conflict if self.conflict else InvalidRequest)(self.message, param=self.param)
        return self


Command: TypeAlias = (
    PauseGenerationReq
    | ContinueGenerationReq
    | FreezeGcReq
    | GetCacheTreeReq
    | StartProfileReq
    | StopProfileReq
    | SetInternalStateReq
    | WeightCommand
)
"""Control messages that are answered by a ControlReqOutput."""


class DetokenizerBeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Sign of life: the detokenizer's loop runs. Sent about once a second, idle or busy."""

    detokenizer: int = 0
    """Which of several."""
    open_texts: int = 0
    """Requests of which it holds text."""


class Census(msgspec.Struct, frozen=True, array_like=True):
    """Numbers of a scheduler's requests, by their properties."""

    running_priorities: dict[int, int] = {}
    """Priority -> requests that hold a place. Empty where requests have no priorities."""
    waiting_priorities: dict[int, int] = {}
    """Priority -> requests that wait for a place."""
    running_keys: list[int] = []
    """Running requests of each routing key, one number for each key."""
    all_keys: list[int] = []
    """Running and waiting requests of each routing key."""


NOBODY = Census()


class SchedulerFigures(msgspec.Struct, frozen=True, array_like=True):
    """The current load of a scheduler, in figures."""

    num_grammar_queue_reqs: int = 0
    """Requests that wait for their grammar."""
    num_used_tokens: int = 0
    """Tokens of the KV cache that running requests hold."""
    gen_throughput: float = 0.0
    """Tokens per second lately; 0 while nothing runs."""
    host_used_tokens: int = 0
    """Tokens in the tier of the cache in the memory of the host."""
    host_total_tokens: int = 0
    cache_hit_rate: float = 0.0
    """The part of the prompts that began last which the prefix cache held, 0 to 1."""
    is_cuda_graph: bool = False
    """True if the last step was a captured graph, and a request runs."""
    num_free_tokens: int = 0
    """Tokens of the KV cache that nothing holds."""
    num_available_tokens: int = 0
    """Free tokens, and those that only the prefix cache holds, which may be evicted."""
    swa_used_tokens: int = 0
    """Tokens of the pools of layers with a window that running requests hold."""
    swa_free_tokens: int = 0
    swa_evictable_tokens: int = 0
    """Tokens of these pools that only the prefix cache holds."""
    mamba_usage: float = 0.0
    """The part of the states that running requests have, 0 to 1."""
    fwd_occupancy: float = 0.0
    """The part of the time in which steps were computed lately, in percent; 0 while nothing runs."""
    spec_accept_length: float = 0.0
    """Tokens that a decoding row got in a step lately; 0 where no drafts are tried."""
    spec_accept_rate: float = 0.0
    """The part of the drafts that was right lately, 0 to 1."""
    census: Census = NOBODY
    counted: list[float] = msgspec.field(default_factory=lambda: [0.0] * SCHEDULER.width)
    """A row of `observability.instruments.SCHEDULER`."""


Reply: TypeAlias = FlushCacheReqOutput | GetInternalStateReqOutput | ControlReqOutput
"""Answer of one rank. A control request is answered when all ranks have answered."""


class HeartBeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Sign of life: the scheduler's loop runs. Sent about once a second, idle or busy."""

    rank: int
    forward_steps: int
    num_running_reqs: int
    num_waiting_reqs: int
    weight_version: str = FIRST_VERSION
    figures: SchedulerFigures = SchedulerFigures()


class FrontBeat(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Sign of life: the front's loop runs. Sent about once a second to all other fronts."""

    front: int


class PeerAbortReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Reports that a client asked another front to abort `rid`, or everything, which may be at this front."""

    rid: str = ""
    abort_all: bool = False
    scope: str | None = None
    """API key whose requests are meant; None for all keys."""


class DrainReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Reports that the server is shutting down: accept no more requests."""


class EndReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Ends every open request now, with an error that says why."""

    why: str
    kind: Literal["died", "shutting_down"]


class RequestLogReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Sets which parts of requests are logged from now on."""

    log_requests: bool
    dump_folder: str


class FreezeFrontGcReq(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Freezes the objects that are alive now, so that the garbage collector no longer visits them."""


FrontOrder: TypeAlias = DrainReq | EndReq | RequestLogReq | FreezeFrontGcReq
"""A command to the whole front, not only to its TokenizerManager."""
