"""Invariants: when nothing runs, nothing is held. Found leaks are reported, not fatal: the server goes on."""

from __future__ import annotations

import logging

from mysglang.srt.mem_cache.kv_manager import KvManager

logger = logging.getLogger(__name__)


class Invariants:
    """Checked once each time the scheduler falls idle. `strict` raises instead of logging (tests)."""

    def __init__(self, kv: KvManager, *, strict: bool) -> None:
        self._kv = kv
        self._strict = strict

    def check(self) -> None:
        """Compare what is held with what may be held by nobody; needs that no request has a slot."""
        state = self._kv.state()
        problems = []
        if state.protected or state.locked_nodes:
            problems.append(f"{state.protected} tokens in {state.locked_nodes} nodes are locked by nobody")
        if state.private or state.open_rows:
            problems.append(f"{state.private} tokens in {state.open_rows} rows are held by nobody")
        if state.free + state.evictable != state.total:
            problems.append(f"free {state.free} + evictable {state.evictable} != {state.total} tokens")
        for space in state.spaces:
            if space.held or space.free + space.evictable != space.total:
                problems.append(f"{space.held} tokens of a page space are held by nobody: {space}")
        if (states := state.states).held or states.free + states.evictable != states.total:
            problems.append(f"{states.held} states are held by nobody: {states}")
        if not problems:
            return
        message = "KV cache leak: " + "; ".join(problems)
        assert not self._strict, message
        logger.error("%s. Please report this.", message)
