"""SharedRoom: a key alone has all, several keys leave each other a part, and the largest gives way first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mysglang.srt.utils.shared_room import SharedRoom


@pytest.mark.parametrize("num_keys", [0, 1])
def test_one_key_may_take_everything(num_keys: int) -> None:
    room = SharedRoom(10, num_keys)
    assert room.has_room("a", 10) and not room.has_room("a", 11)
    room.take("a", 10)
    assert not room.has_room("a", 1)
    room.give("a", 3)
    assert room.has_room("a", 3) and not room.has_room("a", 4)


@pytest.mark.promise(44)
@pytest.mark.parametrize("num_keys", [2, 3, 10, 100])
def test_a_flood_leaves_each_other_key_its_part(num_keys: int) -> None:
    room = SharedRoom(100, num_keys)
    while room.has_room("flood", 1):
        room.take("flood", 1)
    part = max(100 // (2 * num_keys), 1)
    assert room.held["flood"] == 100 - (num_keys - 1) * part
    for key in range(num_keys - 1):
        for _ in range(part):
            assert room.has_room(f"k{key}", 1)
            room.take(f"k{key}", 1)
    assert room.used == 100
    assert not any(room.has_room(key, 1) for key in ["flood", "k0"])


def test_more_keys_than_things_share_first_come() -> None:
    room = SharedRoom(2, 5)
    assert room.has_room("a", 2)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9)), max_size=40), st.sampled_from([1, 3, 4, 10]))
def test_it_is_never_overfull_while_room_is_asked_for(takes: list[tuple[str, int]], num_keys: int) -> None:
    room = SharedRoom(30, num_keys)
    for key, amount in takes:
        if room.has_room(key, amount):
            room.take(key, amount)
        else:
            assert room.used + amount > 15 or num_keys > 1
    assert not room.overfull
    for key, amount in dict(room.held).items():
        room.give(key, amount)
    assert room.used == 0 and not room.held


@pytest.mark.promise(44)
def test_a_keys_part_is_free_even_if_others_had_to_take_more() -> None:
    room = SharedRoom(100, 2)
    room.take("flood", 1000)
    assert room.has_room("b", 25) and not room.has_room("b", 26) and not room.has_room("flood", 0)


def test_the_largest_gives_way() -> None:
    room = SharedRoom(10, 2)
    room.take("a", 9)
    room.take("b", 2)
    assert room.overfull and room.largest() == "a"
