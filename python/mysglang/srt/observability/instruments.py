"""All counters, under the names that SGLang's dashboards use; a comment above each group names the process that counts.

The bounds of histograms begin finer than SGLang's, since its first ones would hold whole answers of a small model.
"""

from __future__ import annotations

from mysglang.srt.observability.sheet import Counter, Histogram, Layout, Level

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)
"""Bounds below a second."""
WAITS = (*SECONDS, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0, 400.0)
SHORT_GAPS = (0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06, 0.08)
GAPS = (*SHORT_GAPS, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 8.0)
TOKENS = tuple(float(2**power) for power in range(4, 21))

# Every front, for the requests that it took.
PROMPT_TOKENS = Counter("sglang:prompt_tokens_total", "Prompt tokens of requests that were begun.")
CACHED_TOKENS = Counter(
    "sglang:cached_tokens_total", "Prompt tokens found in the prefix cache.", (("cache_source", "device"),)
)
GENERATION_TOKENS = Counter("sglang:generation_tokens_total", "Tokens that were generated.")
NUM_REQUESTS = Counter("sglang:num_requests_total", "Answers that came to their end.")
NUM_SO_REQUESTS = Counter("sglang:num_so_requests_total", "Answers asked for with a grammar.")
NUM_ABORTED_REQUESTS = Counter("sglang:num_aborted_requests_total", "Answers that were ended before their end.")
TIME_TO_FIRST_TOKEN = Histogram(
    "sglang:time_to_first_token_seconds", "From a request's arrival to its first token.", WAITS
)
INTER_TOKEN_LATENCY = Histogram("sglang:inter_token_latency_seconds", "Between two tokens of an answer.", GAPS)
TIME_PER_OUTPUT_TOKEN = Histogram(
    "sglang:request_time_per_output_token_seconds",
    "From the first token of an answer to its last, by the tokens between; for answers of two tokens or more.",
    GAPS,
)
E2E_REQUEST_LATENCY = Histogram(
    "sglang:e2e_request_latency_seconds",
    "From a request's arrival to its end.",
    (*WAITS, 600.0, 1200.0, 1800.0, 2400.0),
)
PROMPT_TOKENS_HISTOGRAM = Histogram("sglang:prompt_tokens_histogram", "Tokens of a prompt.", TOKENS)
UNCACHED_PROMPT_TOKENS_HISTOGRAM = Histogram(
    "sglang:uncached_prompt_tokens_histogram", "Tokens of a prompt that were not found in the prefix cache.", TOKENS
)
GENERATION_TOKENS_HISTOGRAM = Histogram("sglang:generation_tokens_histogram", "Tokens of an answer.", TOKENS)

# Every front, for the HTTP requests to routes that speak for the model.
MODEL_ROUTES = (
    "/generate",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/api/chat",
    "/api/generate",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
)


def _of_routes(kind: type[Counter] | type[Level], name: str, help: str) -> dict[str, Counter | Level]:
    return {path: kind(name, help, (("endpoint", path), ("method", "POST"))) for path in MODEL_ROUTES}


HTTP_REQUESTS = _of_routes(Counter, "sglang:http_requests_total", "HTTP requests to a route.")
STATUSES = ("200", "400", "401", "403", "404", "408", "409", "413", "415", "429", "499", "500", "503", "507", "other")
HTTP_RESPONSES = {
    (path, status): Counter(
        "sglang:http_responses_total",
        "Answers to them, by status; a status that never was has no figure.",
        (("endpoint", path), ("status_code", status), ("method", "POST")),
    )
    for path in MODEL_ROUTES
    for status in STATUSES
}
HTTP_REQUESTS_ACTIVE = _of_routes(Level, "sglang:http_requests_active", "HTTP requests whose answer is not complete.")
ROUTING_KEYS_ACTIVE = Level(
    "sglang:routing_keys_active", "Different routing keys of these requests; each front counts those that it has."
)

FRONT = Layout(
    (
        *HTTP_REQUESTS.values(),
        *HTTP_RESPONSES.values(),
        *HTTP_REQUESTS_ACTIVE.values(),
        ROUTING_KEYS_ACTIVE,
        PROMPT_TOKENS,
        CACHED_TOKENS,
        GENERATION_TOKENS,
        NUM_REQUESTS,
        NUM_SO_REQUESTS,
        NUM_ABORTED_REQUESTS,
        TIME_TO_FIRST_TOKEN,
        INTER_TOKEN_LATENCY,
        E2E_REQUEST_LATENCY,
        PROMPT_TOKENS_HISTOGRAM,
        UNCACHED_PROMPT_TOKENS_HISTOGRAM,
        GENERATION_TOKENS_HISTOGRAM,
        TIME_PER_OUTPUT_TOKEN,
    )
)

LOOKS = Counter("mysglang:looks_total", "Requests for the figures of the playground.")
WATCHED_FRONT = Layout((*FRONT.instruments, LOOKS))
"""The instruments that fronts count without --enable-metrics while the playground's figures are open. It begins with
the columns of FRONT.
"""

# The scheduler.
QUEUE_TIME = Histogram("sglang:queue_time_seconds", "From a request's arrival at the scheduler to its place.", WAITS)
NUM_RETRACTED = Counter("sglang:num_retracted_requests_total", "Times that a request's memory was taken.")
RETRACTED_INPUT = Counter(
    "sglang:num_retracted_input_tokens_total", "Tokens of the prompts of requests whose memory was taken."
)
RETRACTED_OUTPUT = Counter("sglang:num_retracted_output_tokens_total", "Tokens that these had generated by then.")
EVICTED = Counter("sglang:evicted_tokens_total", "Tokens of the prefix cache whose memory was taken for others.")
PREFILL_COMPUTE = Counter(
    "sglang:realtime_tokens_total", "Tokens, by what was done for them.", (("mode", "prefill_compute"),)
)
PREFILL_CACHE = Counter(PREFILL_COMPUTE.name, PREFILL_COMPUTE.help, (("mode", "prefill_cache"),))
DECODE = Counter(PREFILL_COMPUTE.name, PREFILL_COMPUTE.help, (("mode", "decode"),))
PREFILL_STEP = Histogram(
    "sglang:step_time_seconds",
    "From a step's launch, or its forerunner's end, to its result.",
    GAPS,
    (("mode", "prefill"),),
)
DECODE_STEP = Histogram(PREFILL_STEP.name, PREFILL_STEP.help, GAPS, (("mode", "decode"),))
EXTEND_SECONDS = Counter(
    "sglang:forward_execution_seconds_total",
    "Time in which steps were computed: from a step's launch, or its forerunner's end, to its result.",
    (("category", "extend"),),
)
DECODE_SECONDS = Counter(EXTEND_SECONDS.name, EXTEND_SECONDS.help, (("category", "decode"),))
ESTIMATED_FLOPS = Counter(
    "sglang:estimated_flops_per_gpu_total", "Operations of the steps, reckoned from the model's shape."
)
ESTIMATED_READ_BYTES = Counter(
    "sglang:estimated_read_bytes_per_gpu_total", "Bytes of weights, keys and values that the steps read, reckoned so."
)
ESTIMATED_WRITE_BYTES = Counter(
    "sglang:estimated_write_bytes_per_gpu_total", "Bytes of keys and values that the steps wrote, reckoned so."
)
ESTIMATES = (ESTIMATED_FLOPS, ESTIMATED_READ_BYTES, ESTIMATED_WRITE_BYTES)
PREFILL_GRAPHS = Counter("sglang:cuda_graph_passes_total", "Steps that were a captured graph.", (("mode", "prefill"),))
DECODE_GRAPHS = Counter(PREFILL_GRAPHS.name, PREFILL_GRAPHS.help, (("mode", "decode"),))
IDLE_SECONDS = Counter("sglang:scheduler_idle_seconds_total", "Time that the scheduler had nothing to do.")
CPU_SECONDS = Counter("sglang:scheduler_process_cpu_seconds_total", "Processor time of the scheduler's process.")
SETTLED_FIRST = {
    reason: Counter(
        "sglang:settled_first_total",
        "Steps whose result had to be applied before the next step could go on, by the reason.",
        (("reason", reason),),
    )
    for reason in ("pause", "memory", "lengths", "limit", "mask")
}
DRAFTS_TRIED = Counter("sglang:spec_proposed_tokens_total", "Drafts that were tried.")
DRAFTS_ACCEPTED = Counter("sglang:spec_accepted_tokens_total", "Drafts that were right, and became tokens.")
BACKUP = Counter("sglang:hicache_backup_tokens_total", "Tokens copied to the tier of the cache on the host.")
LOAD_BACK = Counter("sglang:load_back_tokens_total", "Tokens copied back from there, instead of being computed.")
BACKUP_DROPPED = Counter(
    "sglang:hicache_backup_dropped_tokens_total", "Tokens that should have been copied there, and found no room."
)
STORED = Counter("sglang:backuped_tokens_total", "Tokens written to storage below the tier on the host.")
PREFETCHED = Counter("sglang:prefetched_tokens_total", "Tokens read from there.")

SCHEDULER = Layout(
    (
        QUEUE_TIME,
        NUM_RETRACTED,
        RETRACTED_INPUT,
        RETRACTED_OUTPUT,
        EVICTED,
        PREFILL_COMPUTE,
        PREFILL_CACHE,
        DECODE,
        PREFILL_STEP,
        DECODE_STEP,
        EXTEND_SECONDS,
        DECODE_SECONDS,
        *ESTIMATES,
        PREFILL_GRAPHS,
        DECODE_GRAPHS,
        IDLE_SECONDS,
        CPU_SECONDS,
        *SETTLED_FIRST.values(),
        DRAFTS_TRIED,
        DRAFTS_ACCEPTED,
        BACKUP,
        LOAD_BACK,
        BACKUP_DROPPED,
        STORED,
        PREFETCHED,
    )
)
