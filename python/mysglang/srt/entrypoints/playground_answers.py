"""Answers of the playground's routes, described for /openapi.json."""

from __future__ import annotations

from mysglang.srt.entrypoints.openapi import Answer


class LatencyHistogram(Answer):
    """Histogram of times in seconds, since the server started or since the figures are being watched."""

    bounds: list[float]
    """Upper bounds of the times that are counted together, in seconds."""
    counts: list[float]
    """A count for the times up to each bound, without those of the bound before, and one for all above."""


class LiveFigures(Answer):
    """Answer to GET /playground/live. Tokens are counted since the start of the scheduler."""

    time: float
    """Seconds since 1970, on the server."""
    running: int
    """Requests that decode or compute a prompt."""
    waiting: int
    grammar_waiting: int
    """Requests that wait for their grammar."""
    max_running: int
    """Most requests that may run at the same time."""
    open_requests: int
    """Answers that are not complete."""
    kv_total: int
    """Tokens that the KV cache holds."""
    kv_used: int
    """Tokens that running requests hold."""
    kv_cached: int
    """Tokens that only the prefix cache holds."""
    cache_hit_rate: float
    """The part of the prompts that began last which the prefix cache held, 0 to 1."""
    heard_at: float
    """When the scheduler reported these figures; seconds of a clock that only moves forward."""
    silent_s: float
    """Seconds since then."""
    prompt_tokens: float
    """Prompt tokens that were computed."""
    cached_prompt_tokens: float
    """Prompt tokens that were found in the prefix cache."""
    generated_tokens: float
    """Tokens that were generated."""
    time_to_first_token: LatencyHistogram
    """Seconds from the arrival of a request to its first token."""
    inter_token_latency: LatencyHistogram
    """Seconds from one token of an answer to the next."""


class CacheNode(Answer):
    """A run of cached tokens. Parents come before their children."""

    id: int
    parent: int | None
    """None for the root of a namespace, which holds no tokens."""
    tokens: int
    locks: int
    """Open requests that use this node; it is not evicted while there are any."""
    children: int
    """Runs that continue this one, those that are left out included."""
    hidden: int
    """Children that are left out."""
    idle_s: float
    """Seconds since it was last used, to about a second; times above an hour or so are not distinguished."""
    is_default: bool
    """True if it belongs to requests that bring no salt."""
    text: str | None
    """How the run begins, where that may be shown."""


class CacheTree(Answer):
    """Answer to GET /playground/cache_tree. Amounts are of the whole cache, including nodes that are left out."""

    enabled: bool
    """False for a server that caches no prefixes."""
    num_nodes: int
    """Runs of tokens that are cached."""
    cached_tokens: int
    locked_tokens: int
    """Part of the cached tokens that open requests use."""
    namespaces: int
    """Groups of requests that share no cache, such as those of different salts."""
    shows_text: bool
    """True if the beginnings of cached prompts are shown to this client."""
    nodes: list[CacheNode]
    """The largest runs, parents before their children."""
