"""Groups of rows that read together: exact scenes, and laws on random trees."""

import numpy as np
import pytest

from mysglang.srt.forward.shared_prefix import MAX_LEVELS, SharedPrefixes
from mysglang.srt.forward.worker import SpaceShape
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.mem_cache.factory import prefix_cache
from mysglang.srt.mem_cache.kv_manager import KvManager
from mysglang.srt.mem_cache.prefix_groups import CascadeCosts, NoPrefixGroups, PrefixGroups

FREE = CascadeCosts(per_row=0, per_group=0)


def manager(*, page_size: int = 1, num_slots: int = 64, cache: str = "radix") -> KvManager:
    return KvManager([SpaceShape(20_000 // page_size, page_size)], num_slots, 512, prefix_cache(cache))  # type: ignore[arg-type]


def start(kv: KvManager, ids: Ints, extra_key: str = "") -> int:
    """A row whose prompt is planned, with a page for its next token."""
    slot = kv.open(kv.match(ids, extra_key=extra_key, limit=len(ids) - 1))
    assert kv.extend(slot, len(ids) + 1)
    kv.commit(slot, ids)
    return slot


def prompt(*runs: tuple[int, int]) -> Ints:
    """Runs of (token, how often)."""
    return np.concatenate([np.full(count, token, dtype=np.int32) for token, count in runs])


def slots_of(*slots: int) -> Ints:
    return np.array(slots, dtype=np.int32)


def told(shared: SharedPrefixes | None) -> list[tuple[int, int, list[int]]]:
    """(start, end, rows) of each group."""
    if shared is None:
        return []
    groups = range(shared.num_groups)
    return [(int(shared.starts[g]), int(shared.ends[g]), shared.rows_of(g).tolist()) for g in groups]


class TestScenes:
    def test_two_levels(self) -> None:
        kv = manager()
        ends = [(1, 9), (2, 9)], [(1, 9), (3, 9)], [(4, 9)], [(5, 9)]
        slots = slots_of(*(start(kv, prompt((7, 100), *end)) for end in ends))
        groups = PrefixGroups(kv, FREE)
        assert told(groups.find(slots)) == [(0, 100, [0, 1, 2, 3]), (100, 109, [0, 1])]
        assert told(groups.find(slots[::-1])) == [(0, 100, [0, 1, 2, 3]), (100, 109, [2, 3])]
        assert told(groups.find(slots[1:])) == [(0, 100, [0, 1, 2])], "only rows of the step count"
        assert told(groups.find(slots[:2])) == [(0, 109, [0, 1])], "a chain of nodes is one group"
        assert told(groups.find(slots[:1])) == []

    def test_whole_pages_only(self) -> None:
        kv = manager(page_size=16)
        slots = slots_of(*(start(kv, prompt((7, 40), (token, 40))) for token in (1, 2)))
        assert told(PrefixGroups(kv, FREE).find(slots)) == [(0, 32, [0, 1])]

    def test_a_row_may_stand_where_others_only_pass(self) -> None:
        kv = manager()
        slots = slots_of(*(start(kv, ids) for ids in (prompt((7, 50)), prompt((7, 50), (8, 50)), prompt((7, 90)))))
        assert told(PrefixGroups(kv, FREE).find(slots)) == [(0, 50, [0, 1, 2])]
        same = start(kv, prompt((7, 50), (8, 50)))
        assert told(PrefixGroups(kv, FREE).find(np.append(slots, np.int32(same)))) == [
            (0, 50, [0, 1, 2, 3]),
            (50, 99, [1, 3]),
        ], "the last token of a prompt is computed by each"

    def test_what_is_not_worth_it_is_left_to_the_groups_below(self) -> None:
        """One common first token, and two long prompts of four rows each."""
        kv = manager()
        slots = slots_of(*(start(kv, prompt((0, 1), (1 + i // 4, 300), (10 + i, 5))) for i in range(8)))
        costs = CascadeCosts(per_row=8, per_group=64)
        assert told(PrefixGroups(kv, costs).find(slots)) == [(0, 301, [0, 1, 2, 3]), (0, 301, [4, 5, 6, 7])]
        assert len(told(PrefixGroups(kv, FREE).find(slots))) == 3
        dear = CascadeCosts(per_row=8, per_group=10_000)
        assert told(PrefixGroups(kv, dear).find(slots)) == []

    def test_namespaces_and_the_cache_that_shares_nothing(self) -> None:
        kv = manager()
        slots = slots_of(*(start(kv, prompt((7, 100), (i, 5)), extra_key=str(i % 2)) for i in range(4)))
        assert told(PrefixGroups(kv, FREE).find(slots)) == [(0, 100, [0, 2]), (0, 100, [1, 3])]
        kv = manager(cache="chunk")
        slots = slots_of(*(start(kv, prompt((7, 100))) for _ in range(4)))
        assert not kv.sharing and PrefixGroups(kv, FREE).find(slots) is None

    def test_levels_end(self) -> None:
        kv = manager()
        prompts = [prompt(*((t, 20) for t in range(1, depth + 1)), (99, 5)) for depth in range(1, MAX_LEVELS + 4)]
        slots = slots_of(*(start(kv, ids) for ids in prompts))
        found = told(PrefixGroups(kv, FREE).find(slots))
        assert len(found) == MAX_LEVELS
        assert [group[2][0] for group in found] == list(range(MAX_LEVELS)), "those with most rows"

    def test_a_very_deep_tree(self) -> None:
        kv = KvManager([SpaceShape(600_000, 1)], 1500, 1600, prefix_cache("radix"))
        slots = slots_of(*(start(kv, np.arange(1, 4 + i, dtype=np.int32)) for i in range(1200)))
        assert len(told(PrefixGroups(kv, FREE).find(slots))) == MAX_LEVELS


class TestKeeping:
    def test_the_same_object_comes_again_while_nothing_changed(self) -> None:
        kv = manager()
        rows = [prompt((7, 100), (i, 9)) for i in range(4)]
        slots = slots_of(*(start(kv, ids) for ids in rows))
        groups = PrefixGroups(kv, FREE)
        first = groups.find(slots)
        assert first is not None and groups.find(slots.copy()) is first
        assert kv.extend_rows(slots, np.full(4, 120, dtype=np.int32))
        assert groups.find(slots) is first, "rows that only grow share what they shared"
        kv.release(int(slots[3]), rows[3])
        assert told(groups.find(slots[:3])) == [(0, 100, [0, 1, 2])]
        slot = start(kv, rows[3])
        assert told(groups.find(np.append(slots[:3], np.int32(slot)))) == [(0, 100, [0, 1, 2, 3])]

    def test_a_node_that_is_split_later(self) -> None:
        kv = manager()
        slots = slots_of(*(start(kv, prompt((7, 100), (i, 9))) for i in range(2)))
        groups = PrefixGroups(kv, FREE)
        assert told(groups.find(slots)) == [(0, 100, [0, 1])]
        third = start(kv, prompt((7, 30), (5, 9)))
        assert told(groups.find(slots)) == [(0, 100, [0, 1])]
        assert told(groups.find(np.append(slots, np.int32(third)))) == [(0, 30, [0, 1, 2]), (30, 100, [0, 1])]

    def test_nothing_shared_costs_nothing(self) -> None:
        kv = manager()
        slots = slots_of(*(start(kv, prompt((i, 50))) for i in range(1, 5)))
        assert not kv.sharing and PrefixGroups(kv, FREE).find(slots) is None
        other = start(kv, prompt((1, 50)))
        assert kv.sharing
        kv.release(other, prompt((1, 50)))
        assert not kv.sharing

    def test_the_null_object(self) -> None:
        assert NoPrefixGroups().find(slots_of(1, 2)) is None


def test_costs_of_a_model() -> None:
    costs = CascadeCosts.of_model(partial_size=32 * 128, token_bytes=2 * 8 * 128 * 2)
    assert costs.per_row == 8, "float32 of 32 heads, twice, against bf16 keys and values of 8"
    assert CascadeCosts.of_model(partial_size=8 * 64, token_bytes=2 * 8 * 64 * 4).per_row == 1


def random_rows(rng: np.random.Generator, kv: KvManager, count: int) -> Ints:
    """Prompts that part here and there."""
    slots = []
    for _ in range(count):
        turns = rng.integers(1, 4)
        runs = [(int(rng.integers(0, 3)), int(rng.choice([1, 5, 16, 40, 64]))) for _ in range(turns)]
        slots.append(start(kv, prompt(*runs, (50, int(rng.integers(1, 4))))))
    return rng.permutation(np.array(slots, dtype=np.int32))


def reading(lengths: Ints, shared: SharedPrefixes | None, costs: CascadeCosts) -> float:
    """Cost of a step by the model of costs."""
    if shared is None:
        return float(lengths.sum())
    sizes = np.diff(shared.row_indptr)
    spans = shared.ends - shared.starts
    groups = (spans + costs.per_row * sizes + costs.per_group).sum()
    return float(groups + (lengths - shared.private_starts(len(lengths))).sum())


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("seed", range(25))
def test_laws_on_random_trees(seed: int, page_size: int) -> None:
    rng = np.random.default_rng(seed)
    kv = manager(page_size=page_size)
    slots = random_rows(rng, kv, int(rng.integers(2, 40)))
    lengths = kv.rows.held[slots] * page_size
    costs = CascadeCosts(per_row=float(rng.choice([0, 1, 8])), per_group=float(rng.choice([0, 20, 200])))
    shared = PrefixGroups(kv, costs).find(slots)
    assert reading(lengths, shared, costs) <= lengths.sum(), "a group costs more than it spares"
    if shared is None:
        return
    rows, levels = len(slots), np.bincount(shared.rows, minlength=len(slots))
    assert shared.num_groups < rows and levels.max() <= MAX_LEVELS
    covered = np.zeros(rows, dtype=np.int32)
    for first, end, members in told(shared):
        assert len(members) > 1 and members == sorted(set(members))
        assert first % page_size == end % page_size == 0 and first < end
        assert (covered[members] == first).all()
        covered[members] = end
        pages = [kv.rows.pages(int(slots[row]))[first // page_size : end // page_size].tolist() for row in members]
        assert all(row == pages[0] for row in pages) and len(pages[0]) == (end - first) // page_size
    assert (covered < lengths).all()
    assert covered.tolist() == shared.private_starts(rows).tolist()
