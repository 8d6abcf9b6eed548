"""Unique names."""

from mysglang.srt.utils.ids import new_id


def test_all_differ_and_look_alike() -> None:
    found = {new_id() for _ in range(1000)}
    assert len(found) == 1000
    assert {len(name) for name in found} == {32}
    assert set("".join(found)) == set("0123456789abcdef")
