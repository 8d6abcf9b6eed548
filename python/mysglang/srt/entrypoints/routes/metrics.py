"""/metrics: what Prometheus asks for, open to everybody like the probes. There with --enable-metrics only.

What fronts count is of all fronts, whichever is asked; what the scheduler counts is as of its last heartbeat, about a
second ago at most.
"""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from mysglang.srt.entrypoints.front import Front
from mysglang.srt.messages.control import HeartBeat
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.observability.exposition import CONTENT_TYPE, Gauge, Page, render
from mysglang.srt.observability.instruments import FRONT, SCHEDULER

RANKS = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}

NUM_RUNNING_REQS = Gauge("sglang:num_running_reqs", "Requests that hold a place.")
NUM_QUEUE_REQS = Gauge("sglang:num_queue_reqs", "Requests that wait for a place.")
NUM_GRAMMAR_QUEUE_REQS = Gauge("sglang:num_grammar_queue_reqs", "Requests that wait for their grammar.")
NUM_USED_TOKENS = Gauge("sglang:num_used_tokens", "Tokens of the KV cache that running requests hold.")
TOKEN_USAGE = Gauge("sglang:token_usage", "The part of the KV cache that running requests hold, 0 to 1.")
FULL_TOKEN_USAGE = Gauge("sglang:full_token_usage", "The same, where layers with a sliding window have a pool apart.")
SWA_TOKEN_USAGE = Gauge("sglang:swa_token_usage", "The part of that pool that running requests hold, 0 to 1.")
SWA_AVAILABLE_TOKENS = Gauge("sglang:swa_available_tokens", "Tokens of that pool that nobody and nothing holds.")
SWA_EVICTABLE_TOKENS = Gauge("sglang:swa_evictable_tokens", "Tokens of that pool that only the prefix cache holds.")
SWA_USED_TOKENS = Gauge("sglang:swa_used_tokens", "Tokens of that pool that running requests hold.")
GEN_THROUGHPUT = Gauge("sglang:gen_throughput", "Tokens generated per second lately; 0 while nothing runs.")
CACHE_HIT_RATE = Gauge("sglang:cache_hit_rate", "Of the prompts that began last, the part that was cached, 0 to 1.")
KV_AVAILABLE_TOKENS = Gauge("sglang:kv_available_tokens", "Tokens of the KV cache that nobody and nothing holds.")
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
MEMORY = {
    "weights": Gauge("sglang:weight_memory_usage_gb", "GiB that the weights take."),
    "kvcache": Gauge("sglang:kv_cache_memory_usage_gb", "GiB that the KV cache takes."),
    "graph": Gauge("sglang:graph_memory_usage_gb", "GiB that captured graphs take."),
}


def metrics_router(front: Front, served_model_name: str) -> APIRouter:
    """`served_model_name`: the label by which one tells servers apart."""
    router = APIRouter(tags=["health"])
    labels = {"model_name": served_model_name, "engine_type": "unified"}

    @router.get("/metrics", response_class=Response)
    async def metrics() -> Response:
        """Counters, gauges and histograms, in Prometheus' text format."""
        requests, scheduler = Page(labels), Page({**labels, **RANKS})
        requests.row(FRONT, front.metrics.total_row())
        _gauge_facts(scheduler, front.facts)
        beat = front.tokenizer_manager.signs.heartbeat
        if beat is not None:
            _gauge_scheduler(scheduler, beat, front.facts)
            scheduler.row(SCHEDULER, beat.figures.counted)
        return Response(render([requests, scheduler]), headers={"content-type": CONTENT_TYPE})

    return router


def _gauge_facts(page: Page, facts: SchedulerFacts) -> None:
    """What does not change while a server runs."""
    page.gauge(MAX_TOTAL_NUM_TOKENS, facts.max_total_num_tokens)
    if facts.max_total_num_tokens_swa:
        page.gauge(MAX_TOTAL_NUM_TOKENS_SWA, facts.max_total_num_tokens_swa)
    page.gauge(CONTEXT_LEN, facts.context_len)
    page.gauge(PAGE_SIZE, facts.page_size)
    page.gauge(NUM_PAGES, facts.max_total_num_tokens // facts.page_size)
    for purpose, gauge in MEMORY.items():
        if purpose in facts.memory_usage:
            page.gauge(gauge, facts.memory_usage[purpose])


def _gauge_scheduler(page: Page, beat: HeartBeat, facts: SchedulerFacts) -> None:
    figures = beat.figures
    page.gauge(NUM_RUNNING_REQS, beat.num_running_reqs)
    page.gauge(NUM_QUEUE_REQS, beat.num_waiting_reqs)
    page.gauge(NUM_GRAMMAR_QUEUE_REQS, figures.num_grammar_queue_reqs)
    page.gauge(NUM_USED_TOKENS, figures.num_used_tokens)
    usage = figures.num_used_tokens / facts.max_total_num_tokens
    if facts.max_total_num_tokens_swa:
        swa_usage = figures.swa_used_tokens / facts.max_total_num_tokens_swa
        page.gauge(FULL_TOKEN_USAGE, usage)
        page.gauge(SWA_TOKEN_USAGE, swa_usage)
        page.gauge(SWA_AVAILABLE_TOKENS, figures.swa_free_tokens)
        page.gauge(SWA_EVICTABLE_TOKENS, figures.swa_evictable_tokens)
        page.gauge(SWA_USED_TOKENS, figures.swa_used_tokens)
        usage = max(usage, swa_usage)
    page.gauge(TOKEN_USAGE, usage)
    page.gauge(GEN_THROUGHPUT, figures.gen_throughput)
    page.gauge(CACHE_HIT_RATE, figures.cache_hit_rate)
    page.gauge(KV_AVAILABLE_TOKENS, figures.num_free_tokens)
    page.gauge(KV_EVICTABLE_TOKENS, figures.num_available_tokens - figures.num_free_tokens)
    page.gauge(KV_USED_TOKENS, figures.num_used_tokens)
    page.gauge(IS_CUDA_GRAPH, figures.is_cuda_graph)
    page.gauge(HOST_USED_TOKENS, figures.host_used_tokens)
    page.gauge(HOST_TOTAL_TOKENS, figures.host_total_tokens)
    page.gauge(UTILIZATION, beat.num_running_reqs / facts.max_running_requests)
