"""build_scheduler: the composition root. The only file that reads which features are on.

It turns options into parts and hands them to `assemble` (`scheduler_assembly.py`), which puts them together. Everything
else works with what it is given here and asks nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mysglang.srt.args.hicache import read_storage_config
from mysglang.srt.args.kv_events import KvEventsConfig, read_kv_events
from mysglang.srt.args.schedule import ScheduleArgs
from mysglang.srt.args.speculative import SpeculativeAlgorithm
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.constrained.backend import JsonStyle, compile_shares
from mysglang.srt.constrained.compile_messages import CompilerSetup
from mysglang.srt.constrained.factory import NO_BACKEND, choose_backend
from mysglang.srt.constrained.grammar_queue import QueueNews
from mysglang.srt.constrained.structured_output import StructuredOutput
from mysglang.srt.distributed.ranks import TRANSPORTS, RankContext
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.host_pages import HostPages
from mysglang.srt.forward.weights import ModelWeights, Occupation
from mysglang.srt.forward.worker import SpaceShape, StateShape, StepRates, Worker, WorkerCapacity
from mysglang.srt.managers.kv_event_publisher import EventPublisher, EventSockets, NoPublisher, ZmqPublisher
from mysglang.srt.managers.model_costs import cascade_costs, decoder_costs, prompt_cascade_costs
from mysglang.srt.managers.model_files import load_model_config
from mysglang.srt.managers.rank_links import (
    FollowShare,
    LeadShare,
    NoListener,
    NoRequests,
    PartNews,
    RankReplies,
    report_codec,
    turn_codec,
)
from mysglang.srt.managers.scheduler import Loop
from mysglang.srt.managers.scheduler_assembly import (
    Channels,
    SchedulerOptions,
    assemble,
    max_request_len,
)
from mysglang.srt.managers.tokenizer_files import load_tokenizer
from mysglang.srt.mem_cache.evict_policy import EVICT_POLICIES, EvictPolicy
from mysglang.srt.mem_cache.factory import PrefixCacheName, hierarchical_cache, prefix_cache
from mysglang.srt.mem_cache.host_tier import HostTier
from mysglang.srt.mem_cache.kv_events import KvEventLog, PageListener
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.lower_tier import LowerTier
from mysglang.srt.mem_cache.prefix_cache import MakePrefixCache
from mysglang.srt.mem_cache.storage.file_backend import FileBackend
from mysglang.srt.mem_cache.storage.interface import NoStorage, Storage
from mysglang.srt.mem_cache.storage.runner import ThreadRunner
from mysglang.srt.mem_cache.storage.storage_tier import FetchLimits, StorageTier
from mysglang.srt.mem_cache.storeless_manager import StorelessKvManager
from mysglang.srt.mem_cache.tier_reports import TierNews, TierReports
from mysglang.srt.messages.channels import Pull, Push
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.messages.requests import scheduler_codec
from mysglang.srt.messages.senders import to_detokenizers, to_fronts
from mysglang.srt.sampling.processor_params import BUILT_IN, own_name
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.scheduling.drafts import DeviceProposer, ForcedDrafts, MakeProposer, from_draft_model, from_own_text
from mysglang.srt.scheduling.intake import NoTimeouts, RequestTimeouts, Share, Timeouts
from mysglang.srt.scheduling.prefill_planner import PrefillLimits
from mysglang.srt.scheduling.request import MakeStopText, StopText
from mysglang.srt.scheduling.role import PrefetchQueue, Role, WaitedEnough
from mysglang.srt.scheduling.step_costs import NoCosts
from mysglang.srt.scheduling.step_planner import OrderName, PlanDigest
from mysglang.srt.server_args import PortArgs, ServerArgs
from mysglang.srt.utils.hardware import usable_cores
from mysglang.srt.utils.tokenizer import Tokenizer


class NamedWorker(Worker, Protocol):
    """A worker that reports the device and backend that it uses."""

    @property
    def device_name(self) -> str: ...

    @property
    def attention_backend(self) -> str: ...

    @property
    def device_profile(self) -> str: ...

    @property
    def weights(self) -> ModelWeights: ...

    @property
    def occupation(self) -> Occupation: ...

    @property
    def host_pages(self) -> HostPages: ...


def _make_worker(args: ServerArgs, model: ModelConfig, ranks: RankContext) -> NamedWorker:
    """Returns the worker of a real model. Only it needs torch, which takes two seconds to load."""
    from mysglang.srt.managers.worker_factory import make_worker

    return make_worker(args, model, ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Makers:
    """Factories of the objects below a scheduler. Tests replace them by smaller ones, or by ones that fail."""

    worker: Callable[[ServerArgs, ModelConfig, RankContext], NamedWorker] = _make_worker
    kv: Callable[[Sequence[SpaceShape], int, int, MakePrefixCache, StateShape | None], KvManager] = KvManager
    host_tier: Callable[[HostPages, int, EvictPolicy, PageListener], HostTier] = HostTier


THE_MAKERS = Makers()


def build_scheduler(
    args: ServerArgs, ports: PortArgs, ranks: RankContext, makers: Makers = THE_MAKERS
) -> tuple[Loop, SchedulerFacts]:
    """Returns the scheduler of one rank, connected and ready to turn, and what it found out about itself."""
    # 1. The model: its config, its tokenizer, and the grammars of its answers.
    model = load_model_config(args.model)
    tokenizer = load_tokenizer(args.model)
    structured = _structured_output(args, model, tokenizer, ranks)

    # 2. The GPU wing: a worker that computes steps. Endpoints are taken before it loads weights.
    sockets = _event_sockets(args, ranks)
    worker = makers.worker(args, model, ranks)
    capacity = worker.capacity

    # 3. The memory that the worker has, as pages of requests and of the prefix cache.
    events = _kv_events(sockets, capacity)
    kv = _kv_manager(capacity, _prefix_cache(args, model, ranks, worker, events, makers), makers)

    # 4. The links: to fronts and detokenizers, and to other ranks.
    digest = None if ranks.world.size == 1 else PlanDigest()
    share = _share(ports, ranks, digest)

    # 5. The scheduler around all that.
    options = _options(args, model, ranks, capacity.rates)
    assembled = assemble(
        worker,
        kv,
        _channels(ports, ranks),
        options,
        _stop_text_maker(tokenizer),
        role=_role(args, structured.role, kv.cache.lower),
        filler=structured.filler,
        weights=worker.weights,
        memory=worker.occupation,
        share=share,
        coordinator=digest,
    )
    if isinstance(share, FollowShare):
        share.pulse = assembled.scheduler.pulse
    scheduler = assembled.scheduler
    scheduler.beat_observers.append(lambda: worker.catch_up(idle=not scheduler.busy and not scheduler.in_flight))
    scheduler.turn_observers.append(events.flush)
    scheduler.step_observers.append(events.flush)
    return assembled.loop, _facts(args, model, worker, max_request_len(worker, kv, options.limits), ranks)


def _facts(
    args: ServerArgs, model: ModelConfig, worker: NamedWorker, max_len: int, ranks: RankContext
) -> SchedulerFacts:
    """Returns the facts about this rank that the fronts need. `max_len`: tokens of the longest request, output
    included.
    """
    capacity = worker.capacity
    return SchedulerFacts(
        max_total_num_tokens=capacity.num_tokens,
        max_total_num_tokens_swa=capacity.window_tokens,
        # A model that makes vectors needs no room for an answer.
        max_req_input_len=max_len - (model.pooling is None),
        context_len=model.context_len,
        max_running_requests=capacity.num_slots,
        page_size=capacity.page_size,
        vocab_size=capacity.vocab_size,
        device=worker.device_name,
        dtype=model.dtype,
        attention_backend=worker.attention_backend,
        transport=TRANSPORTS[ranks.transport],
        programs=dict(worker.programs),
        device_profile=worker.device_profile,
        priorities=args.schedule.has_priorities,
        eos_token_ids=list(model.eos_token_ids),
        hidden_states=args.kernels.enable_return_hidden_states and model.pooling is None,
        hidden_size=model.hidden_size,
        inputs_of_ids=model.decoder is not None and model.decoder.inputs is not None,
        logit_processors=[*BUILT_IN, *map(own_name, args.kernels.logit_processor)],
        estimates=_reckons(args, model),
        is_embedding=model.pooling is not None,
        req_running_timeout=args.schedule.req_running_timeout,
        memory_usage=capacity.memory_usage,
        startup_times=capacity.startup_times,
        rank_labels=ranks.labels,
    )


def _channels(ports: PortArgs, ranks: RankContext) -> Channels:
    """Returns the links to fronts and detokenizers. A rank that follows answers control requests alone."""
    to_tokenizer = to_fronts(ports.tokenizer_ipc_names)
    if not ranks.leads:
        return Channels(
            requests=NoRequests(),
            to_detokenizer=NoListener(),
            to_tokenizer=RankReplies(to_tokenizer, ranks.world.rank),
        )
    return Channels(
        requests=Pull(ports.scheduler_input_ipc_name, scheduler_codec()),
        to_detokenizer=to_detokenizers(ports.detokenizer_ipc_names),
        to_tokenizer=to_tokenizer,
    )


def _parts_with_news(ranks: RankContext) -> tuple[PartNews, PartNews]:
    """Returns the sources of news, in the scheduler's order: the tiers below the cache, and the role."""
    return PartNews(TierNews, TierReports(ranks.world.size)), PartNews(QueueNews | WaitedEnough)


def _share(ports: PortArgs, ranks: RankContext, digest: PlanDigest | None) -> Share | None:
    """Returns the object by which this rank gets the messages of a turn from the first rank. `digest`: a digest of its
    plans; None: there is one rank. A rank that follows waits until the first rank can read its reports.
    """
    if digest is None:
        return None
    parts = _parts_with_news(ranks)
    if ranks.leads:
        followers = [Push(name, turn_codec()) for name in ports.turn_ipc_names]
        return LeadShare(followers, parts, Pull(ports.report_ipc_name, report_codec()), digest)
    number = ranks.world.rank
    turns = Pull(ports.turn_ipc_names[number - 1], turn_codec())
    reports = Push(ports.report_ipc_name, report_codec(), await_reader=True)
    return FollowShare(turns, parts, reports, digest, rank=number)


def _kv_manager(capacity: WorkerCapacity, prefix_cache: MakePrefixCache, makers: Makers) -> KvManager:
    """Returns the manager of the KV cache. For a model that keeps nothing in it, the manager has no pages."""
    if not capacity.num_pages:
        return StorelessKvManager(capacity.num_slots, capacity.max_context)
    return makers.kv(capacity.spaces, capacity.num_slots, capacity.max_context, prefix_cache, capacity.states)


def _prefix_cache(
    args: ServerArgs,
    model: ModelConfig,
    ranks: RankContext,
    worker: NamedWorker,
    events: EventPublisher,
    makers: Makers,
) -> MakePrefixCache:
    eviction, hicache = args.memory.radix_eviction_policy, args.hicache
    if not hicache.enable_hierarchical_cache:
        name: PrefixCacheName = "chunk" if args.memory.disable_radix_cache or model.needs_whole_prompts else "radix"
        return prefix_cache(name, eviction_policy=eviction, listener=events.listener)
    pages, page_size = worker.host_pages, worker.capacity.page_size
    host = makers.host_tier(pages, page_size, EVICT_POLICIES[eviction], events.host_listener(pages.num_pages))
    return hierarchical_cache(
        host,
        write_policy=hicache.hicache_write_policy,
        eviction_policy=eviction,
        listener=events.listener,
        storage=make_storage(args, pages, page_size, host),
    )


def _role(args: ServerArgs, inner: Role, lower: LowerTier) -> Role:
    """Returns `inner`; with a storage backend, wrapped so that requests first wait for their pages from the storage."""
    if args.hicache.hicache_storage_backend is None:
        return inner
    return PrefetchQueue(inner, lower, args.hicache.hicache_storage_prefetch_policy)


PROPOSERS: Mapping[SpeculativeAlgorithm | None, MakeProposer] = {
    None: DeviceProposer,
    "NGRAM": from_own_text,
    "STANDALONE": from_draft_model,
}
"""Algorithm -> factory of the proposer, which decides which rows try drafts. Without an algorithm no step has
drafts.
"""


def _reckons(args: ServerArgs, model: ModelConfig) -> bool:
    """True if the server must estimate the cost of each step: the option is set, and the model is a decoder with
    logits, run by our own code.
    """
    return args.observability.enable_mfu_metrics and model.pooling is None and model.decoder is not None


def _options(args: ServerArgs, model: ModelConfig, ranks: RankContext, rates: StepRates | None) -> SchedulerOptions:
    """Returns the scheduler's options. `rates`: what steps cost on this device, if that is known."""
    schedule = args.schedule
    return SchedulerOptions(
        limits=PrefillLimits(
            max_prefill_tokens=schedule.max_prefill_tokens,
            chunked_prefill_size=None if model.needs_whole_prompts else schedule.prefill_chunk,
        ),
        eos_token_ids=model.eos_token_ids,
        policy=schedule.schedule_policy,
        priorities=schedule.priorities,
        preemption_threshold=schedule.preemption_threshold,
        fair_share_by=schedule.shares_by,
        conservativeness=schedule.schedule_conservativeness,
        stream_interval=args.serving.stream_interval,
        cascade=None if args.kernels.disable_cascade_attention else cascade_costs(model),
        prompt_cascade=None if args.kernels.disable_cascade_attention else prompt_cascade_costs(model),
        order=order_of(args, ranks, rates),
        decode_wait_tokens=schedule.most_wait_tokens,
        rates=rates,
        overlap=not schedule.disable_overlap_schedule,
        lanes=ranks.pp.size,
        proposer=_proposer(args),
        # With drafts, forced tokens are drafts, and nothing must be computed again for them.
        jump_forward=args.grammar.enable_jump_forward and not args.speculative.drafts,
        timeouts=_timeouts(schedule),
        decode_log_interval=args.observability.decode_log_interval,
        costs=decoder_costs(model, ranks) if _reckons(args, model) else NoCosts(),
        timed=args.observability.enable_trace,
        ranks=ranks,
        weight_version=args.model.weight_version,
    )


def _proposer(args: ServerArgs) -> MakeProposer:
    """Returns the factory of the proposer, which decides which rows try drafts."""
    make = PROPOSERS[args.speculative.speculative_algorithm]
    return ForcedDrafts.around(make) if args.grammar.enable_jump_forward else make


def _event_sockets(args: ServerArgs, ranks: RankContext) -> EventSockets | None:
    """Opens the sockets of KV events, on the first rank if they are published. Raises ConfigError."""
    given = args.observability.kv_events_config
    config = KvEventsConfig() if given is None else read_kv_events(given)
    return None if config.publisher == "null" or ranks.world.rank else EventSockets(config)


def _kv_events(sockets: EventSockets | None, capacity: WorkerCapacity) -> EventPublisher:
    if sockets is None:
        return NoPublisher()
    return ZmqPublisher(sockets, KvEventLog(capacity.num_pages, capacity.page_size))


def _timeouts(schedule: ScheduleArgs) -> Timeouts:
    waiting, running = schedule.req_waiting_timeout, schedule.req_running_timeout
    return NoTimeouts() if waiting is None and running is None else RequestTimeouts(waiting, running)


def order_of(args: ServerArgs, ranks: RankContext, rates: StepRates | None) -> OrderName:
    """Returns the order of steps that the options choose. By default it keeps steps as short as is efficient, if the
    costs of steps are known.

    Steps with drafts and steps of several stages cost other times than `rates` says.
    """
    schedule = args.schedule
    if schedule.enable_mixed_chunk:
        return "mixed"
    if schedule.decode_wait_tokens is not None or rates is None or args.speculative.drafts or ranks.pp.size > 1:
        return "bounded" if schedule.most_wait_tokens else "prefill_first"
    return "short"


def _structured_output(
    args: ServerArgs, model: ModelConfig, tokenizer: Tokenizer | None, ranks: RankContext
) -> StructuredOutput:
    """Starts to load the grammar library, which continues while the model is loaded. Raises ConfigError."""
    grammar = args.grammar
    backend = choose_backend(grammar.grammar_backend)
    if tokenizer is None or backend == NO_BACKEND or model.pooling is not None:
        return StructuredOutput.none()
    if backend == "xgrammar" and grammar.constrained_json_whitespace_pattern is not None:
        raise ConfigError(
            "--constrained-json-whitespace-pattern: xgrammar knows no such pattern; give --grammar-backend llguidance "
            "or outlines, or --constrained-json-max-whitespace-cnt."
        )
    if backend != "xgrammar" and grammar.enable_jump_forward:
        raise ConfigError("--enable-jump-forward: only xgrammar reports the text that it forces.")
    assert args.model.tokenizer_path is not None, "there is a tokenizer"
    at_once, threads = compile_shares(usable_cores())
    setup = CompilerSetup(
        backend=backend,
        tokenizer_path=args.model.tokenizer_path,
        vocab_size=model.vocab_size,
        eos_ids=model.eos_token_ids,
        style=JsonStyle(
            any_whitespace=not grammar.constrained_json_disable_any_whitespace,
            max_whitespace=grammar.constrained_json_max_whitespace_cnt,
            whitespace_pattern=grammar.constrained_json_whitespace_pattern,
        ),
        timeout_s=grammar.grammar_compile_timeout,
        at_once=at_once,
        threads=threads,
    )
    if not ranks.leads:
        return StructuredOutput.follow(setup, tokenizer, jump_forward=grammar.enable_jump_forward)
    return StructuredOutput.start(
        setup,
        tokenizer,
        patience_s=grammar.grammar_queue_timeout,
        jump_forward=grammar.enable_jump_forward,
        followed=ranks.world.size > 1,
    )


def _stop_text_maker(tokenizer: Tokenizer | None) -> MakeStopText:
    """Returns a function that watches requests for stop strings with the tokenizer. Without one, the front refuses such
    requests.
    """
    if tokenizer is None:
        return _no_tokenizer

    def make(params: SamplingParams) -> StopText:
        skips, min_new = params.skip_special_tokens, params.min_new_tokens
        return tokenizer.output_text(params.stop, params.stop_regex, skip_special_tokens=skips, min_new=min_new)

    return make


def _no_tokenizer(_params: SamplingParams) -> StopText:
    raise AssertionError("stop strings reached a scheduler without a tokenizer")


def make_storage(args: ServerArgs, pages: HostPages, page_size: int, host: HostTier) -> Storage:
    """Returns the storage below `host`, as the options say. Raises ConfigError.

    The worker says what tells its pages from those of other models (`pages.identity`).
    """
    if args.hicache.hicache_storage_backend is None:
        return NoStorage()
    config = read_storage_config(args.hicache.hicache_storage_backend_extra_config)
    assert config.path is not None, "validated"
    block_tokens = -(-config.block_tokens // page_size) * page_size
    if (largest := int(config.size_gb * 1e9)) < 2 * block_tokens // page_size * pages.page_bytes:
        raise ConfigError(
            f"--hicache-storage-backend-extra-config: size_gb {config.size_gb} holds no two blocks of {block_tokens} "
            "tokens; raise it, or lower block_tokens."
        )
    return StorageTier(
        host,
        pages,
        FileBackend(config.path, largest),
        pages.identity,
        FetchLimits(
            block_tokens=block_tokens,
            at_least=config.prefetch_threshold,
            wait_base_s=config.prefetch_timeout_base,
            wait_per_ki_token_s=config.prefetch_timeout_per_ki_token,
        ),
        reader=ThreadRunner("kv-storage-read"),
        writer=ThreadRunner("kv-storage-write"),
    )
