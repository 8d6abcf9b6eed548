"""Messages of a child process to the process that launched it, over a pipe: ready with these facts, or failed with a
cause.

One JSON object a line. The pipe stays open for the child's life; a cause that is told later is told on it too.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that differ on another rank: its part of the model, and its start. All others are as on the first rank."""

    labels: dict[str, str]
    """Labels that identify the rank in logs and metrics, such as `tp_rank`."""
    memory_usage: dict[str, float]
    """GiB by what they are used for."""
    startup_times: dict[str, float]
    """Seconds by the part of the start that took them."""


class SchedulerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts that are known once a scheduler has its model and its KV cache; part of /server_info."""

    max_total_num_tokens: int
    """Tokens that the KV cache holds."""
    max_total_num_tokens_swa: int = 0
    """Tokens that the pools of layers with a sliding window hold; 0: there are none of their own."""
    max_req_input_len: int
    """Longest prompt that can be served, in tokens."""
    context_len: int
    """Longest request that the model allows, output included; the KV cache may hold less."""
    max_running_requests: int
    page_size: int
    vocab_size: int
    device: str
    dtype: str
    attention_backend: str
    device_profile: str = ""
    """The kind of device whose figures decide how steps are run."""
    transport: str = ""
    """How ranks exchange tensors: NCCL, or Gloo, and through what."""
    programs: dict[str, str] = {}
    """Name of each way to run steps, the fastest first -> the steps that it took at the start, or why it was not
    used. The scheduler's internal state has them as they are later.
    """
    priorities: bool = False
    """True if requests are scheduled by priority."""
    estimates: bool = False
    """True if the work of steps (operations, bytes read and written) is estimated."""
    is_embedding: bool = False
    """True if the model makes vectors or scores of prompts, and no text."""
    eos_token_ids: list[int] = []
    hidden_states: bool = False
    """True if requests may ask for hidden states."""
    hidden_size: int = 0
    """Numbers of a hidden state, and of a token's embedding."""
    inputs_of_ids: bool = False
    """True if layers have inputs of their own that are made of token ids, so that no prompt can be vectors alone."""
    req_running_timeout: float | None = None
    """Seconds that a request may run; None: no limit."""
    logit_processors: list[str] = []
    """Names of the logit processors that requests may ask for."""
    memory_usage: dict[str, float] = {}
    """GiB by purpose: weights, kvcache, graph, slots; states, where layers keep some for each request."""
    rank_labels: dict[str, str] = {}
    """Which rank the scheduler is in each kind of group, by the name that its figures have for that."""
    startup_times: dict[str, float] = {}
    """Seconds by phase of the start: load_weight, kv_cache_allocation, cuda_graph_prefill, cuda_graph_decode,
    cuda_graph_drafts."""
    ranks: list[RankFacts] = []
    """The ranks that follow the first one."""

    @property
    def of_rank(self) -> RankFacts:
        """The part of these facts that differs by rank."""
        return RankFacts(labels=self.rank_labels, memory_usage=self.memory_usage, startup_times=self.startup_times)


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The child's message that it is ready. A detokenizer has no facts to report."""

    facts: SchedulerFacts | None = None


class Failed(msgspec.Struct, frozen=True, tag="failed"):
    """The child's last message: it cannot go on."""

    problems: list[str]
    follows: bool = False
    """True if another child's end is the cause."""


FromChild: TypeAlias = Ready | Failed
