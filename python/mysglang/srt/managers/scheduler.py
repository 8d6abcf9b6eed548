"""Scheduler: one rank's scheduler, and the loops that turn it.

A turn of a loop: take messages, plan a step, launch it, apply the result of the step before. The scheduler owns no
algorithm: it is the order of these calls, plus adding and aborting requests. How a step is planned, and what a worker
is, it does not know. Parts are made in `scheduler_builder.py`.

What a step changes, it changes at three places that stand here: positions and memory when it is planned, what the
device writes when it is launched, tokens and ends when its result is applied.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from mysglang.srt.forward.worker import Worker
from mysglang.srt.mem_cache.lower_tier import LowerTier
from mysglang.srt.messages.channels import Sender
from mysglang.srt.messages.codec import ToTokenizer
from mysglang.srt.messages.control import HeartBeat
from mysglang.srt.messages.outputs import RELEASED, Abort
from mysglang.srt.messages.requests import AbortReq, TokenizedGenerateReqInput
from mysglang.srt.scheduling.batch import Asked, Launched, ScheduleBatch
from mysglang.srt.scheduling.forward_builder import ForwardBuilder
from mysglang.srt.scheduling.intake import Gathering, Intake, Message, OutsideNews, Pace, Timeouts
from mysglang.srt.scheduling.jump_forward import Jumps
from mysglang.srt.scheduling.lane import Lane, Lanes, settle_first
from mysglang.srt.scheduling.output_streamer import Streamer, Timeline, WeightVersion
from mysglang.srt.scheduling.policy import WaitingQueue
from mysglang.srt.scheduling.prefill_planner import NewTokenRatio
from mysglang.srt.scheduling.request import NO_SLOT, Req
from mysglang.srt.scheduling.request_table import RequestTable
from mysglang.srt.scheduling.residency import Invariants
from mysglang.srt.scheduling.result_processor import ResultProcessor
from mysglang.srt.scheduling.role import Role
from mysglang.srt.scheduling.stats import SchedulerStats
from mysglang.srt.scheduling.step_planner import StepPlanner
from mysglang.srt.scheduling.token_masks import MakesMasks
from mysglang.srt.utils.outside import Outside

IDLE_WAIT_MS = 200
"""How long an idle scheduler sleeps at most before it looks around; a message wakes it at once."""
EXPECTING_WAIT_MS = 2
"""Milliseconds of the wait while its role expects an event without a message, such as a copy that ends."""
GATHER_MS = 2
"""Milliseconds that a step waits for the next request of an incomplete batch, each time, if the device may be idle."""
MOST_GATHER_MS = 10
"""Longest such wait in milliseconds, if the device is busy."""
GATHER_TIMES = 16
"""A step waits at most so many times."""
HEARTBEAT_S = 1.0
NO_SLOTS = np.zeros(0, dtype=np.int64)
Handlers = dict[type, Callable[..., None]]
"""Message type -> handler(message)."""


class Stepped(Protocol):
    """The scheduler as a loop sees it (managers/scheduler.py)."""

    def recv_requests(self) -> None: ...

    def get_next_batch_to_run(self, lane: Lane) -> ScheduleBatch | None: ...

    def run_batch(self, batch: ScheduleBatch) -> Launched: ...

    def choose_tokens(self, launched: Launched) -> None: ...

    def process_batch_result(self, launched: Launched, lane: Lane) -> None: ...

    def on_idle(self) -> None: ...


class Loop(Protocol):
    """Runs a scheduler, one turn after another."""

    scheduler: Stepped

    def step(self) -> None:
        """Runs one iteration of the loop."""
        ...


class SyncLoop:
    """Runs steps one after another: plan, run, take the result. Nothing is in flight between iterations. (SGLang's
    `event_loop_normal`.)
    """

    def __init__(self, scheduler: Stepped, lanes: Lanes) -> None:
        self.scheduler = scheduler
        """The scheduler that the loop drives. A recorder may take its place between two turns."""
        self._lanes = lanes.all

    def step(self) -> None:
        scheduler = self.scheduler
        scheduler.recv_requests()
        idle = True
        for lane in self._lanes:
            batch = scheduler.get_next_batch_to_run(lane)
            if batch is not None:
                idle = False
                launched = scheduler.run_batch(batch)
                scheduler.choose_tokens(launched)
                scheduler.process_batch_result(launched, lane)
        if idle:
            scheduler.on_idle()


class OverlapLoop:
    """Overlaps host and device: launches a step, then reads the one before while the device works. One step of each
    lane is in flight.

    (SGLang's `event_loop_overlap`.)
    """

    def __init__(self, scheduler: Stepped, lanes: Lanes) -> None:
        self.scheduler = scheduler
        """The scheduler that the loop drives. A recorder may take its place between two turns."""
        self._lanes = lanes.all

    def step(self) -> None:
        scheduler = self.scheduler
        scheduler.recv_requests()
        idle = True
        for lane in self._lanes:
            # The next step goes to the device first, so that the device has work while the host applies results. It is
            # planned without the newest tokens: these stay on the device as the inputs of the step.
            batch = scheduler.get_next_batch_to_run(lane)
            launched = scheduler.run_batch(batch) if batch is not None else None
            before, lane.pending = lane.pending, launched
            if before is not None:
                idle = False
                scheduler.process_batch_result(before, lane)
            # Masks depend on the tokens that were just applied, so they come last.
            if launched is not None:
                idle = False
                scheduler.choose_tokens(launched)
        if idle:
            scheduler.on_idle()


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerParts:
    """Parts of a scheduler, in the order in which a request meets them."""

    # Messages arrive, and become requests.
    intake: Intake
    timeouts: Timeouts
    gathering: Gathering
    pace: Pace
    make_req: Callable[[TokenizedGenerateReqInput], Req]
    role: Role
    waiting: WaitingQueue
    # A step is planned, built and launched.
    planner: StepPlanner
    builder: ForwardBuilder
    worker: Worker
    masks: MakesMasks
    # Its result is applied, and what is new is sent.
    results: ResultProcessor
    jumps: Jumps
    streamer: Streamer
    timeline: Timeline
    # Objects below the other parts, and the reports about the scheduler itself.
    lanes: Lanes
    table: RequestTable
    lower: LowerTier
    ratio: NewTokenRatio
    invariants: Invariants
    stats: SchedulerStats
    weight_version: WeightVersion
    to_tokenizer: Sender[ToTokenizer]
    rank: int


class Scheduler:
    """Receives, plans, launches and finishes requests. `reqs`: all requests that are not finished, by rid."""

    def __init__(self, parts: SchedulerParts) -> None:
        self._parts = parts
        self.lanes = parts.lanes
        self.reqs: dict[str, Req] = {}
        self._handlers: Handlers = {
            TokenizedGenerateReqInput: self.handle_generate_request,
            AbortReq: self.abort_request,
            OutsideNews: self.learn,
        }
        self._outside: tuple[Outside, ...] = (parts.lower, parts.role)
        self.paused = False
        """True while generation is paused: no step is launched, even if requests wait."""
        self.refuses = ""
        """Why no step is launched and requests that come are refused; empty if they are not."""
        self.step_observers: list[Callable[[], None]] = []
        """Called after each step."""
        self.turn_observers: list[Callable[[], None]] = []
        """Called on each turn of the loop."""
        self.beat_observers: list[Callable[[], None]] = []
        """Called with each heartbeat."""
        self.standstill = Standstill()
        self._beat_at = 0.0
        self._idle = False

    @property
    def busy(self) -> bool:
        """True if a request is open."""
        return bool(self.reqs)

    @property
    def in_flight(self) -> bool:
        """True if a step was launched whose result is not applied."""
        return self.lanes.in_flight

    @property
    def holders(self) -> int:
        """Requests that hold memory, or may get some at any moment; while generation is paused, none can get any."""
        return self.lanes.size if self.paused else len(self.reqs)

    def add_handlers(self, handlers: Handlers) -> None:
        """Adds rows to the dispatch table, contributed by a part: message type -> its handler."""
        self._handlers.update(handlers)

    def recv_requests(self) -> None:
        """Handles every message that has arrived, and ends requests whose time is over."""
        # What only this rank can see (time, finished copies) becomes messages: all ranks then act on it alike.
        own: list[Message] = [*self._parts.timeouts.expired(self.reqs)]
        for number, part in enumerate(self._outside):
            if news := part.look():
                own += [OutsideNews(number, each) for each in news]
        self.process_input_requests(self._parts.intake.drain(own))
        if self._parts.gathering.coming and not self.lanes.decode:
            self._gather()
        for observe in self.turn_observers:
            observe()
        self.standstill.turn(self)
        self.pulse()

    def _gather(self) -> None:
        """Waits for more requests of a batch that is arriving, while those that are there would not fill a step."""
        gathering = self._parts.gathering
        if self.paused or self.refuses or not gathering.worth_waiting:
            return
        for _ in range(GATHER_TIMES):
            spare_ms = int(self._parts.pace.spare() * 1e3)
            messages = self._parts.intake.drain_within(min(max(spare_ms, GATHER_MS), MOST_GATHER_MS))
            self.process_input_requests(messages)
            if not gathering.worth_waiting:
                return
            if not messages:
                break
        gathering.give_up()

    def process_input_requests(self, messages: list[Message]) -> None:
        """Handles messages in the order in which they arrived."""
        for message in messages:
            self._handlers[type(message)](message)

    def learn(self, message: OutsideNews) -> None:
        """Passes news to the part that it is for; see `utils/outside.py`."""
        self._outside[message.part].learn(message.news)

    def handle_generate_request(self, message: TokenizedGenerateReqInput) -> None:
        """Queues a request that arrived. It waits until its role says that it is ready and the planner admits it."""
        if self.standstill.holds(message):
            return
        req = self._parts.make_req(message)
        self.reqs[req.rid] = req
        self._parts.gathering.arrived(req, message.to_come)
        if self.refuses:
            req.finish = Abort(self.refuses, status=503, kind=RELEASED)
        if req.finish is not None:
            self._answer([req])
        else:
            self._parts.role.admit(req)

    def abort_request(self, message: AbortReq) -> None:
        """Ends a request in any state, and answers it with the tokens that it has. An unknown name is no error."""
        for held in self.standstill.give(None if message.abort_all else message.rid):
            self.reqs[held.rid] = self._parts.make_req(held)
        rids = list(self.reqs) if message.abort_all else [message.rid]
        reason = Abort(message.message, message.status, message.kind)
        aborted = [self.reqs[rid] for rid in rids if rid in self.reqs]
        waiting = []
        for req in aborted:
            if req.slot != NO_SLOT:
                self._parts.results.end(req.slot, reason)
            elif self._parts.role.abort(req.rid) is None:
                waiting.append(req)
            req.finish = reason
        self._parts.waiting.remove(waiting)
        self._answer(aborted)

    def get_next_batch_to_run(self, lane: Lane) -> ScheduleBatch | None:
        """Plans the next step of `lane`. Memory is taken and positions advance here; token values follow later."""
        unable = []
        for req in self._parts.role.ready():
            if req.finish is None:
                self._parts.waiting.add(req)
            else:
                unable.append(req)
        if self._parts.gathering.arrivals:
            self._parts.gathering.planned()
        if unable:
            self._answer(unable)
        halted = self.paused or bool(self.refuses)
        batch = None if halted else self._parts.planner.next_batch(lane)
        if failed := self._parts.planner.take_failed():
            self._answer(failed)
        if batch is not None:
            lane.decodes = batch.mode.is_decode or batch.decoding > 0
        if (reason := settle_first(lane, batch, self._parts.table, halted=halted)) is not None:
            self._parts.stats.settled_first(reason)
        return batch

    def run_batch(self, batch: ScheduleBatch) -> Launched:
        """Hands the step to the worker, which returns before the step is done if it can."""
        self._idle = False
        decodes = batch.mode.is_decode
        step = self._parts.builder.build(batch)
        self._parts.lower.launch()
        at = time.perf_counter()
        result = self._parts.worker.forward_batch_generation(step)
        if not decodes:
            self._parts.pace.launched(batch.new_tokens)
        return Launched(batch, Asked(step.logprobs, step.hidden, step.drafts), result, at)

    def choose_tokens(self, launched: Launched) -> None:
        """Makes the mask that a step waits for, so that it can sample. Called when the step before it is finished."""
        if launched.result.waits_for_mask:
            launched.result.sample(self._parts.masks.of(launched.batch, launched.asked.drafts))

    def process_batch_result(self, launched: Launched, lane: Lane) -> None:
        """Waits for the tokens of the oldest step of `lane`, applies them, and sends what is new."""
        parts = self._parts
        lane.short = lane.late = False
        output = launched.result.complete()
        if not launched.batch.mode.is_decode:
            parts.pace.finished(launched.batch.new_tokens, launched.at)
        ended = parts.results.apply(launched.batch, output, launched.asked)
        self._answer(ended, lane)
        parts.jumps.jump(lane)
        parts.timeline.applied(launched.batch)
        parts.stats.record(launched, parts.waiting)
        for observe in self.step_observers:
            observe()

    def on_idle(self) -> None:
        """Runs when there is nothing to compute: looks for leaks the first time, then sleeps until a message comes."""
        lower = self._parts.lower
        lower.launch()
        self.lanes.rest()
        if not self._idle and not lower.busy:
            self._idle = True
            self._parts.stats.fall_idle()
            self.self_check_during_idle()
        expecting = self._parts.role.expecting or lower.busy
        with self._parts.stats.idling():
            self._parts.intake.wait(EXPECTING_WAIT_MS if expecting else IDLE_WAIT_MS)

    def self_check_during_idle(self) -> None:
        """Checks that no memory is held if no request is open."""
        if not self.reqs and self.lanes.size == 0:
            self._parts.ratio.reset()
            self._parts.invariants.check()

    def _answer(self, ended: list[Req], lane: Lane | None = None) -> None:
        """Sends the requests that ended, and the new tokens of those that run in `lane`, to the detokenizer."""
        for req in ended:
            del self.reqs[req.rid]
        self._parts.streamer.send(NO_SLOTS if lane is None else lane.slots, ended)

    def rename_weights(self, name: str) -> None:
        """Gives the weights another name, with which tokens are told from now on."""
        self._parts.streamer.send_all(self.reqs.values())
        self._parts.weight_version.name = name
        # Before the reply, because its receiver may ask for the name at once.
        self.beat()

    def pulse(self) -> None:
        """Sends a heartbeat if the last one is a second old. Long work calls this, since the loop cannot."""
        if time.monotonic() - self._beat_at >= HEARTBEAT_S:
            self.beat()

    def beat(self) -> None:
        """Sends a heartbeat, with figures of this scheduler."""
        self._beat_at = time.monotonic()
        for observe in self.beat_observers:
            observe()
        parts = self._parts
        running = self.lanes.size
        compiling = max(len(self.reqs) - running - len(parts.waiting), 0)
        parts.to_tokenizer.send(
            HeartBeat(
                rank=parts.rank,
                forward_steps=parts.stats.forward_steps,
                num_running_reqs=running,
                num_waiting_reqs=len(parts.waiting) + len(self.standstill.held),
                weight_version=parts.weight_version.name,
                figures=parts.stats.figures(parts.waiting, compiling=compiling),
            )
        )


Work: TypeAlias = Callable[[], None]


class Standstill:
    """Holds work that no running step may overlap, such as weight updates. Requests that came before it are finished
    first, those after it wait.

    The scheduler asks it before it admits a request, and on each turn. While generation is paused the work is done as
    soon as no step is in flight, since nothing is launched anyway.
    """

    def __init__(self) -> None:
        self._works: deque[Work] = deque()
        self.held: dict[str, TokenizedGenerateReqInput] = {}
        """Requests that came after the work was asked for, by rid."""

    def ask(self, work: Work) -> None:
        """Queues `work`, which runs as soon as possible, after work that was queued before."""
        self._works.append(work)

    def holds(self, message: TokenizedGenerateReqInput) -> bool:
        """True if the request waits here; otherwise it proceeds."""
        if not self._works:
            return False
        self.held[message.rid] = message
        return True

    def give(self, rid: str | None) -> list[TokenizedGenerateReqInput]:
        """Removes and returns the request `rid` if it waits here, or all requests; they are to be aborted."""
        rids = list(self.held) if rid is None else [rid]
        return [self.held.pop(name) for name in rids if name in self.held]

    def turn(self, scheduler: Scheduler) -> None:
        """Runs the pending work whose turn it is (it may need an idle or paused scheduler). When none is left, admits
        the requests that waited for it.
        """
        while self._works and (scheduler.paused or not scheduler.busy) and not scheduler.in_flight:
            self._works[0]()
            self._works.popleft()
        if not self._works and self.held:
            held, self.held = list(self.held.values()), {}
            for message in held:
                scheduler.handle_generate_request(message)
