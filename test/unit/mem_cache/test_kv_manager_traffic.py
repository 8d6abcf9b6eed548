"""KvManager under random traffic, against a slow model and a device that writes down whose token each KV slot holds.

A step's writes reach the device when the step is planned; a row that ends leaves one more write behind, of a step that
was in flight. If any page had two owners, or were read before or after its time, a row would find a stranger's token.
"""

from dataclasses import dataclass, field

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import invariant, precondition, rule

from fixtures.traffic import CountingMachine, drive
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.factory import PrefixCacheName, prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_match import PrefixMatch

NUM_SLOTS = 4
POOL_TOKENS = 96
MAX_CONTEXT = 64
STALE = -1

Prefix = tuple[str, tuple[int, ...]]
"""A namespace and the tokens of a prefix in whole pages, the last page of which is meant."""

NAMESPACES = st.sampled_from(["", "tenant"])
SEEDS = st.integers(0, 15)
LENGTHS = st.integers(1, MAX_CONTEXT - 8)
WHICH = st.integers(0, 7)


@dataclass
class Row:
    """A request as the model sees it."""

    namespace: str
    ids: tuple[int, ...]
    """All tokens, of which the first `written` are in the KV cache."""
    written: int = 0
    shared: int = 0
    """Leading pages that belong to the cache."""
    own: list[int] = field(default_factory=list)
    """The row's own pages, behind those shared."""


def prompt(seed: int, length: int) -> tuple[int, ...]:
    """Prompts of neighbouring seeds agree for a while."""
    parting = 5 * (seed % 8)
    return tuple([7] * min(parting, length) + [seed] * max(0, length - parting))


def array(ids: tuple[int, ...]) -> Ints:
    return np.array(ids, np.int32)


def marks(namespace: str, ids: tuple[int, ...]) -> list[int]:
    """For each position, a number that stands for the whole prefix up to it."""
    mark, found = hash(namespace), []
    for token in ids:
        mark = hash((mark, token))
        found.append(mark)
    return found


class ManagerMachine(CountingMachine):
    """Requests come, grow in chunks and by single tokens, and go; memory is short, and the cache full."""

    page_size = 1
    cache: PrefixCacheName = "radix"

    def __init__(self) -> None:
        super().__init__()
        self.num_pages = POOL_TOKENS // self.page_size
        self.kv = KvManager(self.num_pages, self.page_size, NUM_SLOTS, MAX_CONTEXT, prefix_cache(self.cache))
        self.model: dict[Prefix, int] = {}
        self.rows: dict[int, Row] = {}
        self.device = np.full((self.num_pages + 1) * self.page_size, STALE, np.int64)
        self.device_table = np.zeros_like(self.kv.rows.table)
        self.kept: list[tuple[PrefixMatch, str, tuple[int, ...]]] = []

    # The model

    def pages(self, length: int) -> int:
        return -(-length // self.page_size)

    def prefix(self, row: Row, num_pages: int) -> Prefix:
        return row.namespace, row.ids[: num_pages * self.page_size]

    def locked(self) -> set[Prefix]:
        return {self.prefix(row, n) for row in self.rows.values() for n in range(1, row.shared + 1)}

    def held(self, row: Row) -> list[int]:
        return [self.model[self.prefix(row, n)] for n in range(1, row.shared + 1)] + row.own

    def num_free(self) -> int:
        return self.num_pages - len(self.model) - sum(len(row.own) for row in self.rows.values())

    def reserve(self, lengths: dict[int, int], done: bool) -> None:
        """Pages for these lengths were asked for; check the answer, learn what was evicted and what was given."""
        wanted = {slot: max(0, self.pages(n) - len(self.held(self.rows[slot]))) for slot, n in lengths.items()}
        room = self.num_free() + len(self.model) - len(self.locked())
        assert done == (sum(wanted.values()) <= room)
        evicted = max(0, sum(wanted.values()) - self.num_free()) if done else 0
        cached = set(self.kv.cache.check(list(self.kv._nodes.values())).tolist())
        gone = {prefix for prefix, page in self.model.items() if page not in cached}
        assert len(gone) == evicted, "not as much was evicted as was needed"
        for prefix in gone:
            del self.model[prefix]
        if done:
            for slot, count in wanted.items():
                row = self.rows[slot]
                held = self.kv.rows.pages(slot).tolist()
                row.own.extend(held[len(held) - count :] if count else [])

    def write(self, slot: int, end: int) -> None:
        """The step that computes the positions before `end` is planned."""
        row = self.rows[slot]
        where = self.kv.locations(array((slot,)), array((row.written,)), array((end - row.written,)))
        self.device[where] = marks(row.namespace, row.ids[:end])[row.written :]
        row.written = end

    # What happens

    @precondition(lambda self: len(self.rows) < NUM_SLOTS)
    @rule(namespace=NAMESPACES, seed=SEEDS, length=LENGTHS)
    def admit_whole(self, namespace: str, seed: int, length: int) -> None:
        self.admit(namespace, seed, length, MAX_CONTEXT, True)

    @precondition(lambda self: len(self.rows) < NUM_SLOTS)
    @rule(namespace=NAMESPACES, seed=SEEDS, length=LENGTHS, chunk=LENGTHS, commit=st.booleans())
    def admit(self, namespace: str, seed: int, length: int, chunk: int, commit: bool) -> None:
        """A request is matched, opened and given pages for its first chunk; if they are not there it is put back."""
        ids = prompt(seed, length)
        match = self.kv.match(array(ids), extra_key=namespace, limit=length - 1)
        full = (length - 1) // self.page_size
        row = Row(namespace, ids)
        row.shared = next((n for n in range(full, 0, -1) if self.prefix(row, n) in self.model), 0)
        assert match.num_tokens == row.shared * self.page_size
        self.open(row, match)
        slot = next(reversed(self.rows))
        end = min(length, row.written + chunk)
        done = self.kv.extend(slot, end)
        self.reserve({slot: end}, done)
        if done:
            self.write(slot, end)
            if commit:
                self.commit(slot)
        else:
            self.close(slot, row.written)

    def open(self, row: Row, match: PrefixMatch) -> None:
        locked = self.locked()
        news = sum(self.prefix(row, n) not in locked for n in range(1, row.shared + 1)) * self.page_size
        available = self.kv.available_tokens()
        assert self.kv.tokens_to_lock(match) == news
        slot = self.kv.open(match)
        assert slot not in self.rows
        assert self.kv.available_tokens() == available - news
        row.written = match.num_tokens
        self.rows[slot] = row

    @precondition(lambda self: len(self.kept) < 3 and self.model)
    @rule(namespace=NAMESPACES, seed=SEEDS, length=LENGTHS)
    def keep_a_match(self, namespace: str, seed: int, length: int) -> None:
        ids = prompt(seed, length)
        match = self.kv.match(array(ids), extra_key=namespace, limit=length)
        if match.num_tokens:
            self.kept.append((match, namespace, ids))

    @precondition(lambda self: self.kept and len(self.rows) < NUM_SLOTS)
    @rule()
    def open_a_kept_match(self) -> None:
        """Whatever happened since: it is either refused, or finds its tokens."""
        match, namespace, ids = self.kept.pop(0)
        if self.kv.holds(match):
            self.open(Row(namespace, ids, shared=match.num_pages), match)
        else:
            with pytest.raises(AssertionError, match="stale match"):
                self.kv.open(match)

    @precondition(lambda self: self.rows)
    @rule(which=WHICH, chunk=LENGTHS, commit=st.booleans())
    def next_chunk(self, which: int, chunk: int, commit: bool) -> None:
        slot, row = list(self.rows.items())[which % len(self.rows)]
        end = min(len(row.ids), row.written + chunk)
        done = self.kv.extend(slot, end)
        self.reserve({slot: end}, done)
        if done:
            self.write(slot, end)
            if commit:
                self.commit(slot)

    @precondition(lambda self: self.rows)
    @rule(token=st.integers(0, 2), ahead=st.integers(0, 3), skip=WHICH)
    def decode(self, token: int, ahead: int, skip: int) -> None:
        """All rows but one, or all, go on by a token, with pages for a few more reserved."""
        live = [slot for n, slot in enumerate(self.rows) if n != skip and len(self.rows[slot].ids) < MAX_CONTEXT - 4]
        slots = array(tuple(live))
        lens = array(tuple(self.rows[slot].written + 1 + ahead for slot in live))
        short = self.kv.pages_short(slots, lens)
        done = self.kv.extend_rows(slots, lens)
        assert done == (short == 0)
        self.reserve(dict(zip(live, lens.tolist(), strict=True)), done)
        for slot in live if done else []:
            row = self.rows[slot]
            if row.written == len(row.ids):
                row.ids += (token,)
            self.write(slot, row.written + 1)

    @precondition(lambda self: self.rows)
    @rule(which=WHICH)
    def commit_a_row(self, which: int) -> None:
        self.commit(list(self.rows)[which % len(self.rows)])

    def commit(self, slot: int) -> None:
        row = self.rows[slot]
        self.kv.commit(slot, array(row.ids[: row.written]))
        end = row.written // self.page_size
        if self.cache == "chunk" or end <= row.shared or self.prefix(row, row.shared + 1) in self.model:
            return
        for n in range(row.shared + 1, end + 1):
            self.model[self.prefix(row, n)] = row.own.pop(0)
        row.shared = end

    @precondition(lambda self: self.rows)
    @rule(which=WHICH, unsure=st.integers(0, 3))
    def release(self, which: int, unsure: int) -> None:
        """A row ends; of the last tokens nobody knows whether they were right, so they are not kept."""
        slot = list(self.rows)[which % len(self.rows)]
        row = self.rows[slot]
        self.close(slot, max(row.shared * self.page_size, row.written - unsure))

    def close(self, slot: int, keep: int) -> None:
        row = self.rows[slot]
        room = len(self.held(row)) * self.page_size
        late = self.kv.locations(array((slot,)), array((keep,)), array((room - keep,)))
        self.kv.release(slot, array(row.ids[:keep]))
        self.device[late] = STALE
        for n in range(row.shared + 1, keep // self.page_size + 1):
            page = row.own.pop(0)
            if self.cache == "radix":
                self.model.setdefault(self.prefix(row, n), page)
        del self.rows[slot]

    @precondition(lambda self: not self.rows and len(self.model) > self.num_pages // 3)
    @rule()
    def flush(self) -> None:
        assert self.kv.flush()
        self.model.clear()

    @precondition(lambda self: self.rows)
    @rule()
    def step(self) -> None:
        """The device's page table follows the host's."""
        writes = self.kv.take_writes()
        if writes is None:
            return
        pairs = list(zip(writes.slots.tolist(), writes.columns.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        self.device_table[writes.slots, writes.columns] = writes.pages

    # What always holds

    @invariant()
    def law(self) -> None:
        type(self).steps += 1
        self.kv.check()
        state, locked = self.kv.state(), self.locked()
        assert state.free == self.num_free() * self.page_size
        assert state.protected == len(locked) * self.page_size
        assert state.evictable == (len(self.model) - len(locked)) * self.page_size
        assert state.free_slots == NUM_SLOTS - len(self.rows) == self.kv.free_slots
        assert self.kv.available_tokens() == state.free + state.evictable

    @invariant()
    def every_row_finds_its_own_tokens(self) -> None:
        for slot, row in self.rows.items():
            assert self.kv.rows.pages(slot).tolist() == self.held(row)
            where = self.kv.locations(array((slot,)), array((0,)), array((row.written,)))
            assert self.device[where].tolist() == marks(row.namespace, row.ids[: row.written])

    @invariant()
    def the_device_knows_or_will_be_told(self) -> None:
        table = self.device_table.copy()
        for writes in self.kv.rows._untold:
            table[writes.slots, writes.columns] = writes.pages
        for slot in self.rows:
            row = self.kv.rows.pages(slot)
            assert np.array_equal(table[slot, : len(row)], row)


@pytest.mark.promise(23)
@pytest.mark.parametrize(("page_size", "cache"), [(1, "radix"), (2, "radix"), (16, "radix"), (2, "chunk")])
def test_random_traffic(page_size: int, cache: PrefixCacheName) -> None:
    class Machine(ManagerMachine):
        """With settings and steps of its own."""

    Machine.page_size, Machine.cache = page_size, cache
    drive(Machine)
