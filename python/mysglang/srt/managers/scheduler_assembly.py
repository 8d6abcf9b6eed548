"""assemble: the parts of a scheduler put together. Plain values in, a loop out; it reads no ServerArgs and no torch.

`scheduler_builder.py` decides what goes in; tests put a late device in the worker's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from mysglang.srt.distributed.ranks import RANKS_OF_ONE, RankContext
from mysglang.srt.forward.occupation import FixedOccupation, Occupation
from mysglang.srt.forward.weights import ModelWeights, NoWeights
from mysglang.srt.forward.worker import Worker, WorkerCapacity
from mysglang.srt.managers.cache_watch import CacheWatch
from mysglang.srt.managers.scheduler import Scheduler, SchedulerParts
from mysglang.srt.managers.scheduler_control import SchedulerControl
from mysglang.srt.managers.scheduler_memory import SchedulerMemory
from mysglang.srt.managers.scheduler_profiler import Profiled, SchedulerProfiler
from mysglang.srt.managers.scheduler_settings import SchedulerSettings
from mysglang.srt.managers.scheduler_weights import SchedulerWeights
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts, NoPrefixGroups, PrefixGroups
from mysglang.srt.messages.channels import Receiver, Sender
from mysglang.srt.messages.codec import ToDetokenizer, ToScheduler, ToTokenizer, unpack_ids, unpack_vectors
from mysglang.srt.messages.outputs import Abort
from mysglang.srt.messages.requests import ShareKey, TokenizedGenerateReqInput
from mysglang.srt.messages.weights import FIRST_VERSION
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.accounts import Accounts, NoAccounts
from mysglang.srt.scheduling.admission import AdmissionRule
from mysglang.srt.scheduling.census import UrgentSign
from mysglang.srt.scheduling.coordinator import Coordinator, SoloCoordinator
from mysglang.srt.scheduling.decode_planner import DecodePlanner
from mysglang.srt.scheduling.distrust import Distrust
from mysglang.srt.scheduling.fair_shares import FairShares
from mysglang.srt.scheduling.finish import StopText, StopWatch
from mysglang.srt.scheduling.follower import NoMasks, SilentStreamer
from mysglang.srt.scheduling.forward_builder import ForwardBuilder
from mysglang.srt.scheduling.gathering import Gathering
from mysglang.srt.scheduling.grammar import MaskFiller, NoGrammars
from mysglang.srt.scheduling.growth import Growth, growth_of
from mysglang.srt.scheduling.hidden_states import HiddenBook
from mysglang.srt.scheduling.intake import Intake, OneRank, Share
from mysglang.srt.scheduling.invariants import Invariants
from mysglang.srt.scheduling.jump_forward import JumpForward, NoJumps
from mysglang.srt.scheduling.lane import Lanes
from mysglang.srt.scheduling.logprobs import LogprobBook
from mysglang.srt.scheduling.loops import OverlapLoop, SyncLoop
from mysglang.srt.scheduling.new_token_ratio import NewTokenRatio
from mysglang.srt.scheduling.output_streamer import OutputStreamer
from mysglang.srt.scheduling.pace import Pace
from mysglang.srt.scheduling.policy import POLICIES, ByPriority, PromptClock, SchedulePolicy, Surroundings
from mysglang.srt.scheduling.preemption import NoPreemption, Preemption, PriorityPreemption
from mysglang.srt.scheduling.prefill_planner import PrefillLimits, PrefillPlanner
from mysglang.srt.scheduling.proposals import DeviceProposer, MakeProposer
from mysglang.srt.scheduling.request import Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Residency
from mysglang.srt.scheduling.result_processor import ResultProcessor
from mysglang.srt.scheduling.retraction import Retraction
from mysglang.srt.scheduling.role import Role, UnifiedRole
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.scheduling.step_costs import NoCosts, StepCosts
from mysglang.srt.scheduling.step_planner import OrderName, StepPlanner, step_order
from mysglang.srt.scheduling.timeline import NoTimeline, RequestTimeline
from mysglang.srt.scheduling.timeouts import NoTimeouts, Timeouts
from mysglang.srt.scheduling.token_masks import TokenMasks
from mysglang.srt.scheduling.token_rules import token_rules
from mysglang.srt.scheduling.waiting_queue import WaitingQueue
from mysglang.srt.scheduling.weight_version import WeightVersion

Priorities = Literal["none", "high_first", "low_first"]

MakeStopText = Callable[[SamplingParams], StopText]
"""Watches a request's text for its stop strings; asked only for requests that have some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """How a scheduler schedules."""

    limits: PrefillLimits
    eos_token_ids: tuple[int, ...]
    policy: str = "fcfs"
    priorities: Priorities = "none"
    """Whether a request's priority comes before the policy."""
    preemption_threshold: int | None = None
    """By how much more urgent a request must be than one that runs, to displace it; None: nobody is displaced."""
    fair_share_by: ShareKey | None = None
    """Between whom shares are fair; None: nobody is looked at."""
    conservativeness: float = 1.0
    overlap: bool = True
    lanes: int = 1
    """Batches that take turns on the device: as many as the stages of a pipeline."""
    proposer: MakeProposer = DeviceProposer
    """Where drafts come from, if the worker takes any."""
    jump_forward: bool = False
    """Whether what a grammar forces is computed together where few run."""
    order: OrderName = "prefill_first"
    """Of prompts and running requests."""
    decode_wait_tokens: int = 0
    """Prompt tokens for which running requests wait at most, in the order `bounded`."""
    cascade: CascadeCosts | None = None
    """What reading shared pages once costs beside; None: every row reads for itself."""
    stream_interval: int = 1
    decode_log_interval: int = 40
    costs: StepCosts = field(default_factory=NoCosts)
    """Reckons what steps compute, read and write."""
    timed: bool = False
    """Whether it is told with each answer when its request stood where."""
    ranks: RankContext = RANKS_OF_ONE
    weight_version: str = FIRST_VERSION
    rules: tuple[AdmissionRule, ...] = ()
    timeouts: Timeouts = field(default_factory=NoTimeouts)
    strict: bool = False
    """Leaks raise instead of being logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The scheduler's ends of its links."""

    requests: Receiver[ToScheduler]
    to_detokenizer: Sender[ToDetokenizer]
    to_tokenizer: Sender[ToTokenizer]


URGENT_SIGNS: dict[Priorities, UrgentSign] = {"none": 0, "high_first": 1, "low_first": -1}


class ReqMaker:
    """Message -> Req. What the scheduler cannot serve is refused here, so that planning never meets it."""

    def __init__(
        self, max_req_len: int, vocab_size: int, make_stop_text: MakeStopText, options: SchedulerOptions
    ) -> None:
        self._max_req_len = max_req_len
        self._vocab_size = vocab_size
        self._make_stop_text = make_stop_text
        self._urgent_sign = URGENT_SIGNS[options.priorities]
        self._share_by: ShareKey = options.fair_share_by or "api_key"

    def __call__(self, message: TokenizedGenerateReqInput) -> Req:
        params = message.sampling_params
        ids = unpack_ids(message.input_ids)
        room = self._max_req_len - len(ids)
        max_new = room if params.max_new_tokens is None else params.max_new_tokens
        req = Req(
            rid=message.rid,
            ids=ids,
            prompt_len=len(ids),
            sampling=params,
            max_new=max_new,
            stream=message.stream,
            extra_key=message.extra_key,
            urgency=self._urgent_sign * message.priority,
            routing_key=message.routing_key,
            tenant=getattr(message, self._share_by),
            stop_watch=StopWatch(
                token_ids=params.stop_token_ids,
                text=self._make_stop_text(params) if params.stop or params.stop_regex else None,
                min_new=params.min_new_tokens,
            ),
            logprobs=LogprobBook(message.logprobs) if message.logprobs is not None else None,
            hidden=None
            if message.hidden_states is None
            else HiddenBook(0 if message.hidden_states == "all" else len(ids) - 1),
            embeds=unpack_vectors(message.input_embeds, len(ids)) if message.input_embeds else None,
            rules=token_rules(params.allowed_token_ids, map(unpack_ids, message.bad_words), self._vocab_size),
            logit_processor=message.logit_processor,
            grammar_after=unpack_ids(message.grammar_after),
            thought_start=message.thought_start,
            second_text=message.second_text,
            tail_end=message.tail_end,
        )
        if not len(ids) or max_new > room:
            text = f"A prompt of {len(ids)} tokens and max_new_tokens {max_new} exceed the {self._max_req_len} tokens"
            param = "max_new_tokens" if 0 < len(ids) < self._max_req_len else "text"
            req.finish = Abort(f"{text} that a request may hold.", 400, "BadRequestError", param)
        return req


def max_request_len(worker: Worker, kv: KvManager, limits: PrefillLimits) -> int:
    """Tokens, output included, of the longest request that can run alone.

    The last token of a request needs no KV entry, but a step in flight may reserve for it.
    """
    return kv.longest_row(limits.row_chunk(kv.page_size), worker.capacity.max_context)


def _policy(
    options: SchedulerOptions, table: RequestTable, kv: KvManager, clock: PromptClock
) -> tuple[SchedulePolicy, Accounts]:
    """The order of the queue, from the inside out: a policy, urgency before it, tenants before that."""
    surroundings = Surroundings(
        prefix_length=lambda req: req.cached_prefix(kv).reach,
        prefix_path=lambda req: kv.cache.path(req.cached_prefix(kv)),
        running=lambda: (req for req in table.reqs if req is not None),
        clock=clock,
    )
    policy = POLICIES[options.policy](surroundings)
    if options.priorities != "none":
        policy = ByPriority(policy)
    if options.fair_share_by is None:
        return policy, NoAccounts()
    shares = FairShares(table, policy)
    return shares, shares


@dataclass(frozen=True, slots=True, kw_only=True)
class Residents:
    """The requests that wait or run, and the parts that move them in and out of rows."""

    table: RequestTable
    growth: Growth
    lanes: Lanes
    kv: KvManager
    waiting: WaitingQueue
    residency: Residency
    retraction: Retraction
    ratio: NewTokenRatio
    stats: SchedulerStats
    sampling: SamplingBuilder
    clock: PromptClock

    @classmethod
    def make(cls, worker: Worker, kv: KvManager, options: SchedulerOptions) -> Residents:
        """With as many rows as the worker holds."""
        capacity = worker.capacity
        table = RequestTable(
            capacity.num_slots,
            capacity.max_context,
            stream_interval=options.stream_interval,
            tokens_per_step=worker.tokens_per_step,
        )
        lanes = Lanes(capacity.num_slots, options.lanes)
        stats = SchedulerStats(
            table,
            kv,
            lanes,
            decode_log_interval=options.decode_log_interval,
            urgent_sign=URGENT_SIGNS[options.priorities],
            costs=options.costs,
        )
        clock, sampling = PromptClock(), SamplingBuilder(table, options.eos_token_ids)
        policy, accounts = _policy(options, table, kv, clock)
        residency, waiting = Residency(table, kv, lanes, sampling, accounts, stats), WaitingQueue(policy)
        return cls(
            table=table,
            growth=growth_of(worker, table, kv, options.proposer),
            lanes=lanes,
            kv=kv,
            waiting=waiting,
            residency=residency,
            retraction=Retraction(table, lanes, residency, waiting, stats),
            ratio=NewTokenRatio(options.conservativeness),
            stats=stats,
            sampling=sampling,
            clock=clock,
        )

    def results(self, options: SchedulerOptions) -> ResultProcessor:
        """What is done with the tokens of a step."""
        distrust = Distrust(self.table, self.kv, self.lanes, self.residency, self.retraction)
        return ResultProcessor(self.table, self.growth, self.residency, distrust, options.eos_token_ids)

    def planner(self, options: SchedulerOptions, results: ResultProcessor, coordinator: Coordinator) -> StepPlanner:
        """Chooses the rows of each step."""
        table, kv, lanes, waiting, retraction = self.table, self.kv, self.lanes, self.waiting, self.retraction
        prefill = PrefillPlanner(
            table,
            kv,
            lanes,
            self.residency,
            waiting,
            self.ratio,
            limits=options.limits,
            clock=self.clock,
            rules=options.rules,
        )
        preemption: Preemption = NoPreemption()
        if (threshold := options.preemption_threshold) is not None:
            preemption = PriorityPreemption(table, kv, lanes, waiting, prefill, retraction, threshold=threshold)
        decode = DecodePlanner(table, kv, lanes, self.ratio, retraction, growth=self.growth, end=results.end)
        order = step_order(options.order, prefill, decode, decode_wait_tokens=options.decode_wait_tokens)
        return StepPlanner(order, decode, preemption, coordinator)

    def counters(self) -> dict[str, dict[str, int]]:
        """What a trace of steps shows beside them."""
        kv = self.kv.state()
        return {
            "requests": {"running": self.lanes.size, "waiting": len(self.waiting)},
            "KV tokens": {"protected": kv.protected, "evictable": kv.evictable},
        }


@dataclass(frozen=True, slots=True)
class Assembled:
    """A scheduler ready to turn."""

    scheduler: Scheduler
    loop: SyncLoop | OverlapLoop
    kv: KvManager = field(repr=False)
    rows: Residents = field(repr=False)


def assemble(
    worker: Worker,
    kv: KvManager,
    channels: Channels,
    options: SchedulerOptions,
    make_stop_text: MakeStopText,
    *,
    role: Role | None = None,
    filler: MaskFiller | None = None,
    weights: ModelWeights | None = None,
    memory: Occupation | None = None,
    share: Share | None = None,
    coordinator: Coordinator | None = None,
) -> Assembled:
    """Every part of a scheduler around `worker` and `kv`; reads like a parts list.

    `role` gives requests their grammars, if any have some, and `filler` knows these grammars. `weights` and
    `memory`: the worker's. `share`: how this rank has the messages of a turn from the first one, and
    `coordinator`: what it has to do with their plans.
    """
    capacity = worker.capacity
    rows = Residents.make(worker, kv, options)
    table, lanes, waiting = rows.table, rows.lanes, rows.waiting
    leads = options.ranks.leads
    timeline = RequestTimeline(table) if options.timed and leads else NoTimeline()
    version = WeightVersion(options.weight_version)
    groups = NoPrefixGroups() if options.cascade is None else PrefixGroups(kv, options.cascade)
    results = rows.results(options)
    streamer = OutputStreamer(table, channels.to_detokenizer, version, timeline) if leads else SilentStreamer()
    scheduler = Scheduler(
        SchedulerParts(
            worker=worker,
            lanes=lanes,
            table=table,
            intake=Intake(channels.requests, share or OneRank()),
            timeouts=options.timeouts,
            role=role or UnifiedRole(),
            waiting=waiting,
            gathering=Gathering(
                waiting,
                options.limits.budget(0),
                cached=lambda req: req.cached_prefix(kv).reach,
            ),
            pace=Pace(options.limits.budget(0)),
            planner=rows.planner(options, results, coordinator or SoloCoordinator()),
            builder=ForwardBuilder(table, kv, rows.growth, rows.sampling, groups),
            masks=TokenMasks(
                table, filler or NoGrammars(), vocab_size=capacity.vocab_size, eos_token_ids=options.eos_token_ids
            )
            if leads
            else NoMasks(capacity.vocab_size),
            results=results,
            jumps=JumpForward(table, kv, lanes, rows.residency, waiting) if options.jump_forward else NoJumps(),
            streamer=streamer,
            ratio=rows.ratio,
            invariants=Invariants(kv, strict=options.strict),
            stats=rows.stats,
            timeline=timeline,
            lower=kv.cache.lower,
            to_tokenizer=channels.to_tokenizer,
            make_req=ReqMaker(
                max_request_len(worker, kv, options.limits), capacity.vocab_size, make_stop_text, options
            ),
            weight_version=version,
            rank=options.ranks.world.rank,
        )
    )
    updates = SchedulerWeights(
        scheduler, kv, weights or NoWeights(), version, channels.to_tokenizer, rank=options.ranks.world.rank
    )
    _answer_control_requests(scheduler, rows, updates, memory or FixedOccupation(), channels, capacity)
    loop = OverlapLoop(scheduler, lanes) if options.overlap else SyncLoop(scheduler, lanes)
    ranks = options.ranks
    profiled = Profiled(
        loop,
        streamer,
        figures=rows.counters,
        steps_done=lambda: rows.stats.forward_steps,
        rank_name=ranks.title if ranks.world.size > 1 else "",
    )
    scheduler.add_handlers(SchedulerProfiler(channels.to_tokenizer, profiled).handlers())
    return Assembled(scheduler, loop, kv, rows)


def _answer_control_requests(
    scheduler: Scheduler,
    rows: Residents,
    updates: SchedulerWeights,
    memory: Occupation,
    channels: Channels,
    capacity: WorkerCapacity,
) -> None:
    """Add the parts that answer what is asked beside generation, each for its own kinds of requests."""
    replies = channels.to_tokenizer
    control = SchedulerControl(scheduler, rows.kv, rows.retraction, rows.stats, replies, capacity=capacity)
    settings = SchedulerSettings(rows.table, rows.ratio, rows.stats, replies)
    lent = SchedulerMemory(scheduler, rows.kv, memory, replies)
    watch = CacheWatch(rows.kv.cache, replies)
    for part in (control, updates, settings, lent, watch):
        scheduler.add_handlers(part.handlers())
    scheduler.turn_observers.append(updates.on_turn)
    scheduler.step_observers.append(control.on_step)
    scheduler.beat_observers.append(watch.on_beat)
