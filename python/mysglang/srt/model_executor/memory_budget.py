"""How many tokens the KV cache holds and how many requests may share it. Arithmetic on bytes; allocates nothing."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, replace

from mysglang.srt.distributed.agreement import Agrees
from mysglang.srt.errors import ConfigError
from mysglang.srt.forward.worker import SpaceShape, StateShape
from mysglang.srt.model_executor.device_tables import table_buffers
from mysglang.srt.model_executor.runner_config import RunnerConfig
from mysglang.srt.platforms.interface import DeviceMemory
from mysglang.srt.utils.hardware import GIB
from mysglang.srt.utils.words import counted

MIB = 1 << 20

CPU_SLOTS = 128
CPU_FULL_ROWS = 16
"""Rows at their full length that the default CPU cache has room for; most requests are much shorter. All of it is
touched at the start, and few cores do not compute so many long rows at once."""
CPU_CONTEXT = 2048
"""Tokens that count as full length, at most; but one request as long as the context has room in any case."""
CPU_FRACTION = 0.5
"""Share of the memory left beside the weights; the host also does other work."""

MIN_SLOTS, MAX_SLOTS = 2048, 4096
SLOTS_PER_CONTEXT = 512
"""Rows for each full context that fits; most requests are much shorter than the context."""
STATE_RATIO = 0.9
"""Default memory of states for each byte of the KV cache."""
STATE_INTERVAL = 64
"""Default number of tokens between checkpoints of states: the number that is computed together."""
STATES_PER_SLOT = 4
"""More states than so many for each request that runs are of little use."""
MOST_DRAFT_TOKENS = 512
"""Tokens of the largest captured step with drafts. All of them have logits, for which there must be memory."""
MOST_TOKENS = 1 << 24
"""Tokens of a cache whose tokens take no bytes, in a model that keeps states alone. The host's lists of pages take
memory.
"""
STORELESS_SLOTS = 512
"""Rows of a model that keeps nothing: enough prompts for two steps, the one that runs and the next one."""


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The shape of the KV cache and of the page tables."""

    spaces: tuple[SpaceShape, ...]
    """The first is that of the rows, without pages where no model keeps anything: there is no KV cache."""
    num_slots: int
    max_context: int
    """Positions of one row."""
    states: StateShape | None = None
    """None: no layer of any model keeps a state."""

    @property
    def page_size(self) -> int:
        """Tokens of a page, in every space."""
        return self.spaces[0].page_size

    @property
    def num_pages(self) -> int:
        """Pages of the rows' space."""
        return self.spaces[0].num_pages

    @property
    def max_pages(self) -> int:
        """Number of columns of each page table."""
        return -(-self.max_context // self.page_size) if self.num_pages else 0


def agreed(budget: KvBudget, ranks: Agrees) -> KvBudget:
    """Returns the smallest of the numbers that each rank has room for. Ranks make equal plans, so they must hold equal
    amounts.
    """
    pages = [space.num_pages for space in budget.spaces]
    own = [*pages, budget.num_slots, budget.max_context, entries(budget.states)]
    *least, num_slots, max_context, num_entries = ranks.smallest(own)
    spaces = (replace(space, num_pages=count) for space, count in zip(budget.spaces, least, strict=True))
    states = None if budget.states is None else replace(budget.states, num_states=num_entries - 1)
    return KvBudget(tuple(spaces), num_slots, max_context, states)


@dataclass(frozen=True, slots=True)
class SpaceCost:
    """Cost of tokens in one page space, over all of its stores, and its capacity."""

    token_bytes: int
    """0 if no layer is in it."""
    window: int | None = None
    share: float = 1.0
    """Tokens in this space for each in the rows' space."""
    least_tokens: int = 0
    """Without so many, there are requests that cannot run even alone."""

    def tokens(self, cached: int) -> int:
        """Returns the number of tokens of this space if the rows' space holds so many; never more than that."""
        return min(max(int(cached * self.share), self.least_tokens), cached)


@dataclass(frozen=True, slots=True)
class KvCost:
    """Bytes that tokens and requests cost in the KV cache."""

    spaces: tuple[SpaceCost, ...]
    """The first is that of the rows."""
    state_bytes: int = 0
    """Bytes of the state that layers keep for a request, in addition to its tokens; 0: there are no such layers."""

    @property
    def token_bytes(self) -> float:
        """Bytes of each token of the rows' space, with its share of the other spaces; 0: no layer keeps keys."""
        return sum(space.share * space.token_bytes for space in self.spaces)

    def nbytes(self, tokens: int) -> int:
        """Returns the number of bytes of all spaces, if the rows' space holds that many tokens."""
        return sum(space.tokens(tokens) * space.token_bytes for space in self.spaces)

    def fitting(self, room: int) -> int:
        """Returns the largest number of tokens that needs no more bytes, and MOST_TOKENS if they need none."""
        if not self.token_bytes:
            return MOST_TOKENS
        # Each space may be short of its share by what is less than a token.
        most = (room + sum(space.token_bytes for space in self.spaces)) / self.token_bytes
        return bisect.bisect_right(range(int(most) + 2), room, key=self.nbytes) - 1


def draft_sizes(graph_sizes: tuple[int, ...], width: int) -> tuple[int, ...]:
    """Returns the numbers of rows whose steps with drafts are captured: those of captured decode steps, up to
    MOST_DRAFT_TOKENS.

    width: tokens of a row at most; 1: no drafts are tried.
    """
    return tuple(size for size in graph_sizes if width > 1 and size * width <= MOST_DRAFT_TOKENS)


def captured_bytes(graph_sizes: tuple[int, ...], width: int = 1) -> int:
    """Estimates the bytes of the captures of all programs, which are reserved before memory is divided.

    Sizes share the memory of the largest one. The estimate is by its tokens, for a large model. width: see
    `draft_sizes`.
    """
    largest = max(graph_sizes, default=0)
    return 2 * MIB * max(largest, width * max(draft_sizes(graph_sizes, width), default=0))


def static_fraction(
    config: RunnerConfig, total: int, graph_sizes: tuple[int, ...], chunk: int, workspace: int = 0
) -> float:
    """Returns the share of the device for weights and KV cache; the rest is for activations, graphs and workspaces.
    `workspace`: bytes that attention needs in addition.
    """
    if config.mem_fraction_static is not None:
        return config.mem_fraction_static
    activations = (512 + 1.5 * max(chunk, 2048) + 1024 / 8) * MIB
    # Each rank that shares the device computes in memory of its own.
    reserved = (
        activations + captured_bytes(graph_sizes, 1 + config.draft_tokens) + workspace
    ) * config.ranks.on_device.size
    if total > 60 * GIB:
        reserved = max(reserved, 10 * GIB)
    return max(0.0, (total - reserved) / total)


def cuda_budget(
    config: RunnerConfig, *, fraction: float, before: DeviceMemory, after: DeviceMemory, cost: KvCost, context: int
) -> KvBudget:
    """Plans to fill `fraction` of the device. `before` and `after`: the memory before and after the weights were
    loaded.

    Raises ConfigError if no useful cache fits.
    """
    # All ranks on the device have loaded their weights, and none has allocated its cache. What is left up to the
    # fraction of the device is divided among them: the fraction is that of the server, not of a rank.
    free = after.free // config.ranks.on_device.size
    room = (after.free - int((1 - fraction) * before.total)) // config.ranks.on_device.size
    most_row = row_nbytes(config, cost, context)
    states = plan_states(config, cost, room, most_slots=MAX_SLOTS, row_bytes=most_row)
    taken = cost.state_bytes * entries(states)
    room -= taken
    fitting = cost.fitting(max(0, room))
    tokens = config.max_total_tokens or fitting
    slots = config.max_running_requests
    if slots is None:
        slots = with_states(min(max(tokens * SLOTS_PER_CONTEXT // context, MIN_SLOTS), MAX_SLOTS), states)
    row = row_nbytes(config, cost, min(context, tokens))
    table = row * (slots + 1)
    if config.max_total_tokens is None:
        check_rows(config, row, room - least_nbytes(config, cost))
        tokens = cost.fitting(max(0, room - table))
    elif cost.nbytes(config.max_total_tokens) + table > free - taken:
        check_rows(config, row, free - taken - cost.nbytes(config.max_total_tokens))
        raise ConfigError(
            f"--max-total-tokens {config.max_total_tokens} needs {cost.nbytes(tokens) / GIB:.1f} GiB, and "
            f"{(free - taken) / GIB:.1f} GiB are free beside the weights. Lower it."
        )
    advice = (
        f"{free / GIB:.1f} GiB are free beside the weights and --mem-fraction-static is {fraction:.3f}. "
        "Raise --mem-fraction-static, or free memory on the device."
    )
    if (others := before.total - before.free) > GIB:
        advice += f" The fraction counts the {others / GIB:.1f} GiB that other processes hold there."
    return _budget(config, tokens, slots, context, cost, states, advice)


def cpu_budget(config: RunnerConfig, *, after: DeviceMemory, cost: KvCost, context: int) -> KvBudget:
    """Plans memory for CPU_FULL_ROWS rows of full length, as far as a share of the free memory allows."""
    fraction = config.mem_fraction_static or CPU_FRACTION
    # All ranks take their memory out of this machine's.
    free = after.free // config.ranks.on_device.size
    room = int(free * fraction)
    states = plan_states(config, cost, room, most_slots=CPU_SLOTS)
    taken = cost.state_bytes * entries(states)
    slots = config.max_running_requests or with_states(CPU_SLOTS, states)
    full_rows = min(slots, CPU_FULL_ROWS) * min(context, CPU_CONTEXT)
    wanted = config.max_total_tokens or max(full_rows, context)
    fitting = wanted if config.max_total_tokens else min(wanted, cost.fitting(max(0, room - taken)))
    row = row_nbytes(config, cost, min(context, fitting))
    if config.max_total_tokens is None:
        check_rows(config, row, room - taken - least_nbytes(config, cost))
        wanted = min(wanted, cost.fitting(max(0, room - taken - row * (slots + 1))))
    elif cost.nbytes(wanted) + row * (slots + 1) > free - taken:
        check_rows(config, row, free - taken - cost.nbytes(wanted))
        raise ConfigError(
            f"--max-total-tokens {wanted} needs {cost.nbytes(wanted) / GIB:.1f} GiB, "
            f"and {(free - taken) / GIB:.1f} GiB of memory are free. Lower it."
        )
    advice = (
        f"{free / GIB:.2f} GiB of memory are free beside the weights. "
        "Free some, or give --max-total-tokens or --mem-fraction-static."
    )
    return _budget(config, wanted, slots, context, cost, states, advice)


def plan_states(
    config: RunnerConfig, cost: KvCost, room: int, *, most_slots: int, row_bytes: int = 0
) -> StateShape | None:
    """Returns the number of states that fit into `room` bytes, which the KV cache shares. None: the model keeps no
    states.

    most_slots: default limit of requests that run at once. row_bytes: of a row of the tables. Raises ConfigError if
    the states are fewer than the requests that must be able to run.
    """
    if not cost.state_bytes:
        return None
    asked, fitting = config.max_mamba_cache_size, _fitting_states(config, cost, max(0, room), row_bytes)
    states = asked or min(fitting, STATES_PER_SLOT * (config.max_running_requests or most_slots))
    one = f"a state of one request takes {cost.state_bytes / MIB:.2f} MiB, and {max(room, 0) / GIB:.2f} GiB are free"
    if asked is not None and (asked + 1) * cost.state_bytes > max(0, room):
        raise ConfigError(f"--max-mamba-cache-size {asked}: {one} beside the weights. Lower it.")
    if states < (config.max_running_requests or 1):
        raise ConfigError(
            f"{max(states, 0)} states fit, and --max-running-requests is {config.max_running_requests or 1}: {one} "
            "beside the weights. Lower --max-running-requests, or raise --max-mamba-cache-size, "
            "--mamba-full-memory-ratio or --mem-fraction-static."
        )
    return StateShape(states, config.mamba_track_interval or STATE_INTERVAL)


def _fitting_states(config: RunnerConfig, cost: KvCost, room: int, row_bytes: int) -> int:
    """Returns the number of states that the KV cache leaves room for, or all that fit beside the tables' rows if tokens
    take no bytes. One more entry belongs to padding.
    """
    if not cost.token_bytes:
        if config.mamba_full_memory_ratio is not None:
            raise ConfigError(
                f"--mamba-full-memory-ratio {config.mamba_full_memory_ratio}: no layer of the model attends over keys, "
                "so states have all the memory. Leave it out."
            )
        # There is never a row without a state.
        return room // (cost.state_bytes + row_bytes) - 1
    ratio = config.mamba_full_memory_ratio or STATE_RATIO
    return int(room * ratio / (1 + ratio)) // cost.state_bytes - 1


def entries(states: StateShape | None) -> int:
    """Returns the number of states in memory, including one for padding rows."""
    return 0 if states is None else states.num_states + 1


def with_states(slots: int, states: StateShape | None) -> int:
    """Returns how many requests run at once: `slots`, or fewer if states are few, since half of these are left for
    checkpoints.
    """
    return slots if states is None else min(slots, max(1, states.num_states // 2))


def row_nbytes(config: RunnerConfig, cost: KvCost, tokens: int) -> int:
    """Returns the bytes of one row of the device tables, if rows have at most `tokens` tokens."""
    return sum(buffer.nbytes(1) for buffer in table_buffers(-(-tokens // config.page_size), len(cost.spaces)))


def least_nbytes(config: RunnerConfig, cost: KvCost) -> int:
    """Returns the bytes of the smallest cache: of two pages."""
    return cost.nbytes(2 * config.page_size)


def check_rows(config: RunnerConfig, row_bytes: int, room: int) -> None:
    """Raises ConfigError if --max-running-requests asks for more rows than fit into `room` bytes beside the row of
    padding, and each takes `row_bytes`. Default numbers of rows are not checked, and where not even one row fits,
    other options must change.
    """
    asked, most = config.max_running_requests, room // row_bytes - 1
    if asked is not None and 1 <= most < asked:
        raise ConfigError(
            f"--max-running-requests {asked}: the tables of each request take {row_bytes / 1024:.1f} KiB, and "
            f"{room / GIB:.2f} GiB are free for them, which is enough for {counted(most, 'request')}. Lower it."
        )


def storeless_budget(config: RunnerConfig, *, context: int, free: int) -> KvBudget:
    """Plans rows without pages, for models that keep nothing of a prompt. `free`: bytes of free memory of the host,
    which keeps the tokens of each row. Raises ConfigError if so many rows do not fit.
    """
    check_rows(config, 4 * (context + 1), free)
    slots = config.max_running_requests or STORELESS_SLOTS
    return KvBudget(spaces=(SpaceShape(0, 1),), num_slots=slots, max_context=context)


def _budget(
    config: RunnerConfig, tokens: int, slots: int, context: int, cost: KvCost, states: StateShape | None, advice: str
) -> KvBudget:
    """Makes the budget of whole pages for these tokens. A row is never longer than the cache."""
    num_pages = tokens // config.page_size
    if num_pages < 2:
        raise ConfigError(f"the KV cache has room for {tokens} tokens with pages of {config.page_size}: {advice}")
    cached = num_pages * config.page_size
    return KvBudget(
        spaces=tuple(
            SpaceShape(space.tokens(cached) // config.page_size, config.page_size, space.window)
            for space in cost.spaces
        ),
        num_slots=slots,
        max_context=min(context, cached),
        states=states,
    )
