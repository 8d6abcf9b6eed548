"""A StateSpace against a model that is a few sets: random opening, committing, taking, ending and evicting."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from mysglang.srt.forward.worker import SpaceShape, StateShape
from mysglang.srt.forward.worker_batch import NO_STATE, Ints
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager

SLOTS, TOKENS, INTERVAL = 4, 96, 6
Prompt = tuple[int, ...]


def ids(prompt: Prompt) -> Ints:
    return np.array(prompt, dtype=np.int32)


class Model:
    """Content of each state: the tokens that it has seen. A step is played as soon as it is built."""

    def __init__(self, kv: KvManager, num_states: int) -> None:
        self.kv = kv
        self.holds: list[Prompt] = [()] * num_states
        self.rows: dict[int, tuple[Prompt, int, int]] = {}
        """Slot -> prompt, tokens before the next step, tokens of the next step."""

    def open(self, prompt: Prompt, first: int) -> bool:
        kv = self.kv
        match = kv.match(ids(prompt), extra_key="", limit=len(prompt) - 1)
        end = min(len(prompt), match.num_tokens + first)
        needed = end - match.num_tokens + kv.page_size + kv.tokens_to_lock(match)
        if not kv.free_slots or needed > kv.available_tokens():
            return False
        slot = kv.open(match)
        assert kv.extend(slot, end)
        kv.commit(slot, ids(prompt[:end]), more=end < len(prompt))
        self.rows[slot] = (prompt, match.num_tokens, end - match.num_tokens)
        return True

    def go_on(self, slot: int, count: int) -> None:
        prompt, start, taken = self.rows[slot]
        if taken or start == len(prompt):
            return
        end = min(len(prompt), start + count)
        if self.kv.extend(slot, end):
            self.kv.commit(slot, ids(prompt[:end]), more=end < len(prompt))
            self.rows[slot] = (prompt, start, end - start)

    def step(self) -> None:
        """All rows with tokens to come, in one step."""
        slots = [slot for slot, (_, _, taken) in self.rows.items() if taken]
        starts = np.array([self.rows[slot][1] for slot in slots], dtype=np.int32)
        told = self.kv.take_states(np.array(slots, dtype=np.int64), starts)
        assert told is not None
        copied = [() if source == NO_STATE else self.holds[source] for source in told.sources]
        for target, tokens in zip(told.targets.tolist(), copied, strict=True):
            self.holds[target] = tokens
        places = zip(told.rows.tolist(), told.offsets.tolist(), strict=True)
        saves = dict(zip(places, told.checkpoints.tolist(), strict=True))
        for row, (slot, state) in enumerate(zip(slots, told.slots.tolist(), strict=True)):
            prompt, start, taken = self.rows[slot]
            assert self.holds[state] == prompt[:start], "a row goes on from another state than its own"
            self.holds[state] = prompt[: start + taken]
            for offset in range(1, taken + 1):
                if (checkpoint := saves.pop((row, offset), None)) is not None:
                    assert (start + offset) % INTERVAL == 0
                    self.holds[checkpoint] = prompt[: start + offset]
            self.rows[slot] = (prompt, start + taken, 0)
        assert not saves

    def end(self, slot: int, how: str) -> None:
        prompt, start, taken = self.rows.pop(slot)
        if how == "broken":
            self.kv.condemn(slot)
            self.kv.discard(slot)
            return
        if how == "finished":
            self.kv.confirm(slot)
        self.kv.release(slot, ids(prompt[: start + taken]))


@pytest.mark.parametrize("page_size", [1, 3])
@pytest.mark.parametrize("num_states", [SLOTS, SLOTS + 3, 40])
def test_random_traffic(page_size: int, num_states: int) -> None:
    """Rows begin with the states of exactly their prefixes, and no state is lost or doubled."""
    draw = random.Random(page_size * 100 + num_states)
    shape = StateShape(num_states, INTERVAL)
    kv = KvManager([SpaceShape(TOKENS // page_size, page_size)], SLOTS, 40, prefix_cache("radix"), shape)
    model, found = Model(kv, num_states), 0
    actions: list[Callable[[], object]] = [
        lambda: model.open(prompt_of(draw), draw.randrange(1, 20)),
        lambda: model.step(),
        lambda: model.step(),
        lambda: model.rows and model.go_on(draw.choice(list(model.rows)), draw.randrange(1, 20)),
        lambda: model.rows and model.end(draw.choice(list(model.rows)), draw.choice(["finished", "aborted", "broken"])),
        lambda: draw.random() < 0.1 and kv.flush(),
    ]
    for _ in range(600):
        before = set(model.rows)
        draw.choice(actions)()
        kv.check()
        found += sum(model.rows[slot][1] > 0 for slot in set(model.rows) - before)
        counts = kv.state().states
        assert counts.held == len(model.rows) and counts.free + counts.evictable + counts.held == num_states
    assert found > 5 or num_states == SLOTS
    for slot in list(model.rows):
        model.end(slot, "finished")
    assert kv.flush()
    assert kv.state().states.free == num_states


def prompt_of(draw: random.Random) -> Prompt:
    """Prompts of neighbouring numbers agree for a while."""
    number, length = draw.randrange(6), draw.randrange(2, 34)
    parting = 7 * (number % 4)
    return tuple([7] * min(parting, length) + [number + 10] * max(0, length - parting))
