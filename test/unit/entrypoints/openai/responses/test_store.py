"""The store forgets the oldest, whatever it is bounded by, and counts right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixtures.callers import asked_by
from mysglang.srt.entrypoints.openai.responses.store import ResponseStore, StoredResponse
from mysglang.srt.errors import NotFound
from mysglang.srt.managers.caller import Caller


def stored(name: str, text: str = "") -> StoredResponse:
    return StoredResponse({"id": name, "output": [{"text": text}]}, ({"text": "in"},))


def test_the_conversation_is_input_and_output() -> None:
    assert stored("a", "out").conversation == ({"text": "in"}, {"text": "out"})


def test_the_oldest_goes_first() -> None:
    store = ResponseStore(max_responses=2)
    for name in "abac":
        store.put(stored(name))
    with pytest.raises(NotFound, match="'b'"):
        store.get("b")
    assert store.get("a").response["id"] == "a"
    assert len(store) == 2


def test_the_newest_stays_however_large() -> None:
    store = ResponseStore(max_bytes=100)
    store.put(stored("a"))
    store.put(stored("b", "x" * 1000))
    assert (len(store), store.get("b").response["id"]) == (1, "b")


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(-1, 60))))
def test_the_count_is_right(steps: list[tuple[str, int]]) -> None:
    store, known = ResponseStore(max_responses=3, max_bytes=200), dict[str, Any]()
    for name, size in steps:
        if size < 0:
            if name in known:
                store.delete(name)
            known.pop(name, None)
        else:
            store.put(stored(name, "x" * size))
            known[name] = stored(name, "x" * size)
        known = {name: one for name, one in known.items() if name in store._kept.get("", {})}
        assert all(store.get(name) == one for name, one in known.items())
        assert store._bytes.used == sum(size for _, size in store._kept.get("", {}).values())
        assert len(store) == len(known)
        assert len(store) <= 1 or (len(store) <= 3 and store._bytes.used <= 200)


@pytest.mark.promise(44)
@pytest.mark.parametrize("bounds", [{"max_responses": 10}, {"max_bytes": 2000}])
def test_a_flood_of_one_key_evicts_its_own(bounds: dict[str, int]) -> None:
    store = ResponseStore(**bounds)
    with asked_by(Caller(api_key="b")):
        for name in ("x", "y"):
            store.put(stored(name))
    with asked_by(Caller(api_key="flood")):
        for number in range(200):
            store.put(stored(f"f{number}", "x" * 100))
        assert store.get("f199")
        with pytest.raises(NotFound):
            store.get("f0")
        # Not even that they are there can be found out.
        for name in ("x", "nobody"):
            with pytest.raises(NotFound, match=f"no response '{name}' here"):
                store.get(name)
    with asked_by(Caller(api_key="b")):
        assert store.get("x") and store.get("y")


@pytest.mark.promise(44)
def test_events_that_come_later_are_counted() -> None:
    store = ResponseStore(max_bytes=1000)
    for name in "ab":
        store.put(stored(name))
    assert store.grow("b", 900)
    with pytest.raises(NotFound):
        store.get("a")
    assert store.get("b") and not store.grow("a", 1)
    store.delete("b")
    assert store._bytes.used == 0
