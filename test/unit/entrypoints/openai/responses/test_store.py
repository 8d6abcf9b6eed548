"""The store forgets the oldest, whatever it is bounded by, and counts right."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.entrypoints.openai.responses.store import ResponseStore, StoredResponse
from mysglang.srt.errors import NotFound


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
        known = {name: one for name, one in known.items() if ("", name) in store._kept}
        assert all(store.get(name) == one for name, one in known.items())
        assert store._bytes == sum(size for _, size in store._kept.values())
        assert len(store) == len(known)
        assert len(store) <= 1 or (len(store) <= 3 and store._bytes <= 200)
