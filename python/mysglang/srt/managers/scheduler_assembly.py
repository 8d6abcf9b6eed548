"""assemble: the parts of a scheduler put together. Plain values in, a loop out; it reads no ServerArgs and no torch.

`scheduler_builder.py` decides what goes in; tests put a late device in the worker's place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from mysglang.srt.distributed.ranks import RANKS_OF_ONE, RankContext
from mysglang.srt.forward.weights import FixedOccupation, ModelWeights, NoWeights, Occupation
from mysglang.srt.forward.worker import StepRates, Worker
from mysglang.srt.managers.scheduler import Loop, OverlapLoop, Scheduler, SchedulerParts, SyncLoop
from mysglang.srt.managers.scheduler_control import CacheWatch, SchedulerControl, SchedulerMemory, SchedulerSettings
from mysglang.srt.managers.scheduler_profiler import Profiled, SchedulerProfiler
from mysglang.srt.managers.scheduler_weights import SchedulerWeights
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts, NoPrefixGroups, PrefixGroups
from mysglang.srt.messages.channels import Receiver, Sender
from mysglang.srt.messages.codec import ToDetokenizer, ToTokenizer
from mysglang.srt.messages.requests import ShareKey, ToScheduler
from mysglang.srt.messages.weights import FIRST_VERSION
from mysglang.srt.scheduling.decode_planner import DecodePlanner, Growth
from mysglang.srt.scheduling.drafts import DeviceProposer, MakeProposer, growth_of
from mysglang.srt.scheduling.fair_shares import Accounts, FairShares, NoAccounts
from mysglang.srt.scheduling.forward_builder import ForwardBuilder
from mysglang.srt.scheduling.grammar import MaskFiller, NoGrammars
from mysglang.srt.scheduling.intake import Gathering, Intake, NoTimeouts, OneRank, Pace, Share, Timeouts
from mysglang.srt.scheduling.jump_forward import JumpForward, NoJumps
from mysglang.srt.scheduling.lane import Lanes
from mysglang.srt.scheduling.output_streamer import (
    NoTimeline,
    OutputStreamer,
    RequestTimeline,
    SilentStreamer,
    Streamer,
    Timeline,
    WeightVersion,
)
from mysglang.srt.scheduling.policy import POLICIES, ByPriority, PromptClock, SchedulePolicy, Surroundings, WaitingQueue
from mysglang.srt.scheduling.prefill_planner import AdmissionRule, NewTokenRatio, PrefillLimits, PrefillPlanner
from mysglang.srt.scheduling.request import MakeStopText, ReqMaker, UrgentSign
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Invariants, Residency, Retraction
from mysglang.srt.scheduling.result_processor import Distrust, ResultProcessor
from mysglang.srt.scheduling.role import Role, UnifiedRole
from mysglang.srt.scheduling.sampling_builder import SamplingBuilder
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.scheduling.step_costs import NoCosts, StepCosts
from mysglang.srt.scheduling.step_planner import (
    Coordinator,
    NoPreemption,
    OrderName,
    Preemption,
    PriorityPreemption,
    SoloCoordinator,
    StepPlanner,
    step_order,
)
from mysglang.srt.scheduling.token_masks import MakesMasks, NoMasks, TokenMasks

Priorities = Literal["none", "high_first", "low_first"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """The options of a scheduler."""

    limits: PrefillLimits
    eos_token_ids: tuple[int, ...]
    policy: str = "fcfs"
    priorities: Priorities = "none"
    """True if a request's priority comes before the policy."""
    preemption_threshold: int | None = None
    """A request preempts running ones whose priority is lower by more than this; None: no request is preempted."""
    fair_share_by: ShareKey | None = None
    """Key of the tenants between which shares are fair; None: tenants are ignored."""
    conservativeness: float = 1.0
    overlap: bool = True
    lanes: int = 1
    """Batches that take turns on the device: as many as the stages of a pipeline."""
    proposer: MakeProposer = DeviceProposer
    """Source of drafts, if the worker takes any."""
    jump_forward: bool = False
    """True if tokens that a grammar forces are computed together when few requests run."""
    order: OrderName = "prefill_first"
    """Order of prompts and running requests."""
    decode_wait_tokens: int = 0
    """Prompt tokens for which running requests wait at most, in the order `bounded`; in the order `short` while
    no answer is streamed.
    """
    rates: StepRates | None = None
    """Costs of steps, which the order `short` must know."""
    cascade: CascadeCosts | None = None
    """Additional cost of reading shared pages once; None: every row reads for itself."""
    prompt_cascade: CascadeCosts | None = None
    """Additional cost of reading shared pages once in steps with prompts; None: these have no use for it."""
    stream_interval: int = 1
    decode_log_interval: int = 40
    costs: StepCosts = field(default_factory=NoCosts)
    """Reckons what steps compute, read and write."""
    timed: bool = False
    """True if the times of each request are reported with its end."""
    ranks: RankContext = RANKS_OF_ONE
    weight_version: str = FIRST_VERSION
    rules: tuple[AdmissionRule, ...] = ()
    timeouts: Timeouts = field(default_factory=NoTimeouts)
    strict: bool = False
    """True: a leak raises an error. False: it is logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Channels:
    """The scheduler's ends of its links."""

    requests: Receiver[ToScheduler]
    to_detokenizer: Sender[ToDetokenizer]
    to_tokenizer: Sender[ToTokenizer]


URGENT_SIGNS: dict[Priorities, UrgentSign] = {"none": 0, "high_first": 1, "low_first": -1}


def max_request_len(worker: Worker, kv: KvManager, limits: PrefillLimits) -> int:
    """Returns the number of tokens, output included, of the longest request that can run alone.

    The last token of a request needs no KV entry, but a step in flight may reserve for it.
    """
    return kv.longest_row(limits.row_chunk(kv.page_size), worker.capacity.max_context)


def _policy(
    options: SchedulerOptions, table: RequestTable, kv: KvManager, clock: PromptClock
) -> tuple[SchedulePolicy, Accounts]:
    """Returns the order of the queue, which combines a policy with urgency, and both with fairness among clients."""
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
        """Returns the residents, with as many rows as the worker holds."""
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
        """Returns the processor of the tokens of a step."""
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
        order = step_order(
            options.order,
            prefill,
            decode,
            table,
            decode_wait_tokens=options.decode_wait_tokens,
            rates=options.rates,
        )
        return StepPlanner(order, decode, preemption, coordinator)

    def jumps(self) -> JumpForward:
        """Lets answers jump over what their grammars force."""
        return JumpForward(self.table, self.kv, self.lanes, self.residency, self.waiting)

    def counters(self) -> dict[str, dict[str, int]]:
        """Returns the counters that a trace of steps shows."""
        kv = self.kv.state()
        return {
            "requests": {"running": self.lanes.size, "waiting": len(self.waiting)},
            "KV tokens": {"protected": kv.protected, "evictable": kv.evictable},
        }


@dataclass(frozen=True, slots=True)
class Assembled:
    """A scheduler with its loop, ready to run."""

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
    """Builds every part of a scheduler around `worker` and `kv`.

    `role` gives requests their grammars, if any have some, and `filler` knows these grammars. `weights` and `memory`:
    those of the worker. `share`: how this rank gets the messages of each iteration from the first rank, and
    `coordinator`: what it does with the plans of other ranks.
    """
    # 1. The requests that wait or run, and the ways into a slot and out of it.
    rows = Residents.make(worker, kv, options)

    # 2. The parts of a turn, in the order in which a request meets them.
    version = WeightVersion(options.weight_version)
    results = rows.results(options)
    answers = _answers(rows, channels, options, version)
    step_tokens = options.limits.budget(0)
    scheduler = Scheduler(
        SchedulerParts(
            # Messages arrive, and become requests.
            intake=Intake(channels.requests, share or OneRank()),
            timeouts=options.timeouts,
            gathering=Gathering(rows.waiting, step_tokens, cached=lambda req: req.cached_prefix(kv).reach),
            pace=Pace(step_tokens),
            make_req=_req_maker(worker, kv, make_stop_text, options),
            role=role or UnifiedRole(),
            waiting=rows.waiting,
            # A step is planned, built and launched.
            planner=rows.planner(options, results, coordinator or SoloCoordinator()),
            builder=_builder(rows, options),
            worker=worker,
            masks=_masks(worker, rows, filler or NoGrammars(), options),
            # Its result is applied, and what is new is sent.
            results=results,
            jumps=rows.jumps() if options.jump_forward else NoJumps(),
            streamer=answers.streamer,
            timeline=answers.timeline,
            # Objects below the other parts, and the reports about the scheduler itself.
            lanes=rows.lanes,
            table=rows.table,
            lower=kv.cache.lower,
            ratio=rows.ratio,
            invariants=Invariants(kv, strict=options.strict),
            stats=rows.stats,
            weight_version=version,
            to_tokenizer=channels.to_tokenizer,
            rank=options.ranks.world.rank,
        )
    )

    # 3. The loop that turns it.
    loop = OverlapLoop(scheduler, rows.lanes) if options.overlap else SyncLoop(scheduler, rows.lanes)

    # 4. What it can be asked beside generation.
    replies, rank = channels.to_tokenizer, options.ranks.world.rank
    updates = SchedulerWeights(scheduler, kv, weights or NoWeights(), replies, rank=rank)
    _answer_control_requests(scheduler, rows, updates, memory or FixedOccupation(), replies, worker)
    _record_on_demand(scheduler, rows, loop, answers.streamer, replies, options.ranks)
    return Assembled(scheduler, loop, kv, rows)


class _Answers(NamedTuple):
    """The sender of answers, and the recorder of their times."""

    streamer: Streamer
    timeline: Timeline


def _answers(rows: Residents, channels: Channels, options: SchedulerOptions, version: WeightVersion) -> _Answers:
    """Builds the parts that send answers. Only the first rank sends them."""
    if not options.ranks.leads:
        return _Answers(SilentStreamer(channels.to_detokenizer), NoTimeline())
    timeline = RequestTimeline(rows.table) if options.timed else NoTimeline()
    return _Answers(OutputStreamer(rows.table, channels.to_detokenizer, version, timeline), timeline)


def _req_maker(worker: Worker, kv: KvManager, make_stop_text: MakeStopText, options: SchedulerOptions) -> ReqMaker:
    return ReqMaker(
        max_request_len(worker, kv, options.limits),
        worker.capacity.vocab_size,
        make_stop_text,
        urgent_sign=URGENT_SIGNS[options.priorities],
        share_by=options.fair_share_by or "api_key",
    )


def _builder(rows: Residents, options: SchedulerOptions) -> ForwardBuilder:
    decode, prompts = (
        NoPrefixGroups() if costs is None else PrefixGroups(rows.kv, costs)
        for costs in (options.cascade, options.prompt_cascade)
    )
    return ForwardBuilder(rows.table, rows.kv, rows.growth, rows.sampling, decode, prompts)


def _masks(worker: Worker, rows: Residents, filler: MaskFiller, options: SchedulerOptions) -> MakesMasks:
    """Builds the part that makes masks. Only the first rank makes them."""
    vocab_size = worker.capacity.vocab_size
    if not options.ranks.leads:
        return NoMasks(vocab_size)
    return TokenMasks(rows.table, filler, vocab_size=vocab_size, eos_token_ids=options.eos_token_ids)


def _answer_control_requests(
    scheduler: Scheduler,
    rows: Residents,
    updates: SchedulerWeights,
    memory: Occupation,
    replies: Sender[ToTokenizer],
    worker: Worker,
) -> None:
    """Adds the parts that answer control requests, each for its own kinds of requests."""
    control = SchedulerControl(scheduler, rows.kv, rows.retraction, rows.stats, replies, worker=worker)
    settings = SchedulerSettings(rows.table, rows.ratio, rows.stats, replies)
    lent = SchedulerMemory(scheduler, rows.kv, memory, replies)
    watch = CacheWatch(rows.kv.cache, replies)
    for part in (control, updates, settings, lent, watch):
        scheduler.add_handlers(part.handlers())
    scheduler.turn_observers.append(updates.on_turn)
    scheduler.step_observers.append(control.on_step)
    scheduler.beat_observers.append(watch.on_beat)


def _record_on_demand(
    scheduler: Scheduler,
    rows: Residents,
    loop: Loop,
    streamer: Streamer,
    replies: Sender[ToTokenizer],
    ranks: RankContext,
) -> None:
    """Adds the part that records profiles of the loop."""
    profiled = Profiled(
        loop,
        streamer,
        figures=rows.counters,
        steps_done=lambda: rows.stats.forward_steps,
        rank_name=ranks.title if ranks.world.size > 1 else "",
    )
    scheduler.add_handlers(SchedulerProfiler(replies, profiled).handlers())
