"""/metrics: what Prometheus asks for, open to everybody like the probes. There with --enable-metrics only.

What fronts count is of all fronts, whichever is asked; what the scheduler counts is as of its last heartbeat, about a
second ago at most.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import psutil
from fastapi import APIRouter
from starlette.responses import Response

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.front_launch import FRONT_TITLE
from mysglang.srt.messages.control import HeartBeat
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.observability.exposition import CONTENT_TYPE, Gauge, Page, render
from mysglang.srt.observability.instruments import ESTIMATES, FRONT, HTTP_RESPONSES, SCHEDULER
from mysglang.srt.utils.log_output import dropped_lines

LOG_LINES_DROPPED = Gauge("sglang:log_lines_dropped", "Lines of the log that this process could not write so far.")
NUM_RUNNING_REQS = Gauge("sglang:num_running_reqs", "Requests that hold a place.")
NUM_QUEUE_REQS = Gauge("sglang:num_queue_reqs", "Requests that wait for a place.")
NUM_GRAMMAR_QUEUE_REQS = Gauge("sglang:num_grammar_queue_reqs", "Requests that wait for their grammar.")
NUM_USED_TOKENS = Gauge("sglang:num_used_tokens", "Tokens of the KV cache that running requests hold.")
TOKEN_USAGE = Gauge("sglang:token_usage", "The part of the KV cache that running requests hold, 0 to 1.")
FULL_TOKEN_USAGE = Gauge("sglang:full_token_usage", "The same, where layers with a sliding window have a pool apart.")
SWA_TOKEN_USAGE = Gauge("sglang:swa_token_usage", "The part of that pool that running requests hold, 0 to 1.")
MAMBA_USAGE = Gauge("sglang:mamba_usage", "The part of the states that running requests have, 0 to 1.")
SWA_AVAILABLE_TOKENS = Gauge("sglang:swa_available_tokens", "Tokens of that pool that are neither in use nor cached.")
SWA_EVICTABLE_TOKENS = Gauge("sglang:swa_evictable_tokens", "Tokens of that pool that only the prefix cache holds.")
SWA_USED_TOKENS = Gauge("sglang:swa_used_tokens", "Tokens of that pool that running requests hold.")
GEN_THROUGHPUT = Gauge("sglang:gen_throughput", "Tokens generated per second lately; 0 while nothing runs.")
CACHE_HIT_RATE = Gauge("sglang:cache_hit_rate", "Cached share of the prompts that began last, 0 to 1.")
KV_AVAILABLE_TOKENS = Gauge("sglang:kv_available_tokens", "Tokens of the KV cache that are neither in use nor cached.")
KV_EVICTABLE_TOKENS = Gauge("sglang:kv_evictable_tokens", "Tokens that only the prefix cache holds.")
KV_USED_TOKENS = Gauge("sglang:kv_used_tokens", "Tokens that running requests hold.")
IS_CUDA_GRAPH = Gauge("sglang:is_cuda_graph", "1 if the last step was a captured graph, else 0.")
HOST_USED_TOKENS = Gauge("sglang:hicache_host_used_tokens", "Tokens in the tier of the cache on the host.")
HOST_TOTAL_TOKENS = Gauge("sglang:hicache_host_total_tokens", "Tokens that this tier holds at most.")
UTILIZATION = Gauge("sglang:utilization", "Running requests, as a part of those that may run at once.")
MAX_TOTAL_NUM_TOKENS = Gauge("sglang:max_total_num_tokens", "Tokens that the KV cache holds.")
MAX_TOTAL_NUM_TOKENS_SWA = Gauge(
    "sglang:max_total_num_tokens_swa", "Tokens that the pool of layers with a sliding window holds."
)
CONTEXT_LEN = Gauge("sglang:context_len", "Tokens of the longest request that the model allows.")
PAGE_SIZE = Gauge("sglang:page_size", "Tokens of a page of the KV cache.")
NUM_PAGES = Gauge("sglang:num_pages", "Pages of the KV cache.")
FWD_OCCUPANCY = Gauge(
    "sglang:fwd_occupancy",
    "The part of the time in which steps were computed lately, in percent; 0 while nothing runs.",
)
SPEC_ACCEPT_LENGTH = Gauge(
    "sglang:spec_accept_length", "Tokens that a decoding request got in a step lately; 0 where no drafts are tried."
)
SPEC_ACCEPT_RATE = Gauge("sglang:spec_accept_rate", "The part of the drafts that was right lately, 0 to 1.")
NUM_UNIQUE_RUNNING_ROUTING_KEYS = Gauge(
    "sglang:num_unique_running_routing_keys", "Different routing keys of requests that hold a place."
)
ROUTING_KEY_RUNNING = Gauge(
    "sglang:routing_key_running_req_count", "Routing keys by their running requests (gt < count <= le)."
)
ROUTING_KEY_ALL = Gauge(
    "sglang:routing_key_all_req_count", "Routing keys by their running and waiting requests (gt < count <= le)."
)
ROUTING_KEY_BOUNDS = (1, 2, 3, 5, 7, 10, 20, 50, 100, 200)
PROCESS_CPU_SECONDS = Gauge("sglang:process_cpu_seconds_total", "Processor time of the server's processes.")
STARTUP_TIME = Gauge("sglang:startup_time_seconds", "Time that a phase of the start took.")
STARTUP_CUDA_GRAPH_TIME = Gauge("sglang:startup_cuda_graph_time_seconds", "Time that capturing graphs took.")
GRAPH_PHASE = "cuda_graph_"
CPU_SECONDS_AGE_S = 1.0
COMPONENTS = {"scheduler": "scheduler", "detokenizer": "detokenizer", "grammar_compiler": "grammar_compiler"}
"""The beginning of a child's title -> its component; every other process of a server is a tokenizer, as SGLang says."""
MEMORY = {
    "weights": Gauge("sglang:weight_memory_usage_gb", "GiB that the weights take."),
    "kvcache": Gauge("sglang:kv_cache_memory_usage_gb", "GiB that the KV cache takes."),
    "graph": Gauge("sglang:graph_memory_usage_gb", "GiB that captured graphs take."),
}


class ProcessorTime:
    """Processor time of the server's processes, looked up at most once in `CPU_SECONDS_AGE_S`.

    Anybody may ask for the page, and each look goes through all processes of the machine.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._looked_at: float | None = None
        self._spent: dict[str, float] = {}

    async def by_component(self) -> dict[str, float]:
        """Returns the seconds by component. Callers that come during a look-up wait for its result."""
        async with self._lock:
            if self._looked_at is None or time.monotonic() - self._looked_at >= CPU_SECONDS_AGE_S:
                self._spent = await asyncio.to_thread(_cpu_seconds)
                self._looked_at = time.monotonic()
            return self._spent


def metrics_router(front: Front, served_model_name: str) -> APIRouter:
    """Builds the route /metrics. `served_model_name`: the label that distinguishes servers."""
    router = APIRouter(tags=["health"])
    labels = {"model_name": served_model_name, "engine_type": "unified"}
    # With priorities, each figure of the scheduler has a priority label, which is empty for the total.
    ranks = {**labels, **front.facts.rank_labels, **({"priority": ""} if front.facts.priorities else {})}
    # Routes are made when the engine is ready.
    processor_time = ProcessorTime()
    startup_s = time.time() - _server_process().create_time()

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Return counters, gauges and histograms, in Prometheus' text format."""
        requests, scheduler = Page(labels), Page(ranks)
        counted = front.metrics.total_row()
        never = [answers for answers in HTTP_RESPONSES.values() if not FRONT.part(counted, answers)[0]]
        requests.row(FRONT, counted, without=never)
        for component, seconds in (await processor_time.by_component()).items():
            requests.counter(PROCESS_CPU_SECONDS, seconds, component=component)
        _gauge_start(requests, {**front.facts.startup_times, "e2e": startup_s})
        requests.gauge(LOG_LINES_DROPPED, dropped_lines())
        _gauge_facts(scheduler, front.facts)
        beat = front.tokenizer_manager.signs.heartbeat
        if beat is not None:
            _gauge_scheduler(scheduler, beat, front.facts)
            scheduler.row(SCHEDULER, beat.figures.counted, without=() if front.facts.estimates else ESTIMATES)
        return Response(render([requests, scheduler]), headers={"content-type": CONTENT_TYPE})

    return router


def _gauge_facts(page: Page, facts: SchedulerFacts) -> None:
    """Writes the facts that do not change while a server runs."""
    page.gauge(MAX_TOTAL_NUM_TOKENS, facts.max_total_num_tokens)
    if facts.max_total_num_tokens_swa:
        page.gauge(MAX_TOTAL_NUM_TOKENS_SWA, facts.max_total_num_tokens_swa)
    page.gauge(CONTEXT_LEN, facts.context_len)
    page.gauge(PAGE_SIZE, facts.page_size)
    page.gauge(NUM_PAGES, facts.max_total_num_tokens // facts.page_size)
    for rank in (facts.of_rank, *facts.ranks):
        for purpose, gauge in MEMORY.items():
            if purpose in rank.memory_usage:
                page.gauge(gauge, rank.memory_usage[purpose], **rank.labels)


def _gauge_scheduler(page: Page, beat: HeartBeat, facts: SchedulerFacts) -> None:
    figures = beat.figures
    page.gauge(NUM_RUNNING_REQS, beat.num_running_reqs)
    page.gauge(NUM_QUEUE_REQS, beat.num_waiting_reqs)
    for priority, count in figures.census.running_priorities.items():
        page.gauge(NUM_RUNNING_REQS, count, priority=str(priority))
    for priority, count in figures.census.waiting_priorities.items():
        page.gauge(NUM_QUEUE_REQS, count, priority=str(priority))
    page.gauge(NUM_UNIQUE_RUNNING_ROUTING_KEYS, len(figures.census.running_keys))
    _gauge_keys(page, ROUTING_KEY_RUNNING, figures.census.running_keys)
    _gauge_keys(page, ROUTING_KEY_ALL, figures.census.all_keys)
    page.gauge(FWD_OCCUPANCY, figures.fwd_occupancy)
    page.gauge(NUM_GRAMMAR_QUEUE_REQS, figures.num_grammar_queue_reqs)
    page.gauge(NUM_USED_TOKENS, figures.num_used_tokens)
    usage = figures.num_used_tokens / max(facts.max_total_num_tokens, 1)
    if facts.max_total_num_tokens_swa:
        swa_usage = figures.swa_used_tokens / facts.max_total_num_tokens_swa
        page.gauge(FULL_TOKEN_USAGE, usage)
        page.gauge(SWA_TOKEN_USAGE, swa_usage)
        page.gauge(SWA_AVAILABLE_TOKENS, figures.swa_free_tokens)
        page.gauge(SWA_EVICTABLE_TOKENS, figures.swa_evictable_tokens)
        page.gauge(SWA_USED_TOKENS, figures.swa_used_tokens)
        usage = max(usage, swa_usage)
    if "states" in facts.memory_usage:
        page.gauge(MAMBA_USAGE, figures.mamba_usage)
    page.gauge(TOKEN_USAGE, usage)
    page.gauge(GEN_THROUGHPUT, figures.gen_throughput)
    page.gauge(CACHE_HIT_RATE, figures.cache_hit_rate)
    page.gauge(SPEC_ACCEPT_LENGTH, figures.spec_accept_length)
    page.gauge(SPEC_ACCEPT_RATE, figures.spec_accept_rate)
    page.gauge(KV_AVAILABLE_TOKENS, figures.num_free_tokens)
    page.gauge(KV_EVICTABLE_TOKENS, figures.num_available_tokens - figures.num_free_tokens)
    page.gauge(KV_USED_TOKENS, figures.num_used_tokens)
    page.gauge(IS_CUDA_GRAPH, figures.is_cuda_graph)
    page.gauge(HOST_USED_TOKENS, figures.host_used_tokens)
    page.gauge(HOST_TOTAL_TOKENS, figures.host_total_tokens)
    page.gauge(UTILIZATION, beat.num_running_reqs / facts.max_running_requests)


def _gauge_keys(page: Page, gauge: Gauge, counts: Sequence[int]) -> None:
    """Writes how many routing keys have a number of requests between two bounds. `counts`: the number of requests of
    each key.
    """
    keys = Counter(bisect_left(ROUTING_KEY_BOUNDS, count) for count in counts)
    bounds = ["0", *map(str, ROUTING_KEY_BOUNDS), "+Inf"]
    for bucket, (above, upto) in enumerate(pairwise(bounds)):
        page.gauge(gauge, keys[bucket], gt=above, le=upto)


def _gauge_start(page: Page, times: Mapping[str, float]) -> None:
    """Writes the seconds that each phase of the start took; for graphs, each capture is a phase."""
    for phase, seconds in times.items():
        if phase.startswith(GRAPH_PHASE):
            page.gauge(STARTUP_CUDA_GRAPH_TIME, seconds, phase=phase.removeprefix(GRAPH_PHASE))
        else:
            page.gauge(STARTUP_TIME, seconds, phase=phase)


def _cpu_seconds() -> dict[str, float]:
    """Returns the processor seconds of all processes of this server by component, including children that have ended.

    A process that ends during the call is left out.
    """
    server = _server_process()
    spent: dict[str, float] = defaultdict(float)
    for process in [server, *server.children(recursive=True)]:
        try:
            with process.oneshot():
                title = (process.cmdline() or [process.name()])[0].removeprefix("mysglang::")
                times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        name = next((name for begin, name in COMPONENTS.items() if title.startswith(begin)), "tokenizer")
        spent[name] += times.user + times.system + times.children_user + times.children_system
    return dict(spent)


def _server_process() -> psutil.Process:
    """Returns the process that all others of this server are children of: this one, or the parent of a further
    front.
    """
    me = psutil.Process()
    parent = me.parent()
    is_worker = (me.cmdline() or [""])[0].startswith(FRONT_TITLE)
    return parent if is_worker and parent is not None else me
