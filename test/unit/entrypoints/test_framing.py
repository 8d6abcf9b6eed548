"""Bytes around a body are counted, and only those."""

import pytest

from mysglang.srt.entrypoints.framing import MAX_EXCESS_BYTES, MAX_HEAD_BYTES, MAX_HEADERS, PIECE_BYTES, Framing

pytestmark = pytest.mark.promise(41)


def in_body() -> Framing:
    framing = Framing()
    framing.begin()
    framing.head_complete()
    framing.parsed(100)
    return framing


def test_promise_41_a_head_is_full_at_its_limit() -> None:
    framing = Framing()
    framing.begin()
    for _ in range(4):
        assert not framing.is_full
        framing.parsed(MAX_HEAD_BYTES // 4)
    assert framing.is_full and framing.room == 0


def test_room_in_a_head_is_what_is_left() -> None:
    framing = Framing()
    framing.begin()
    framing.parsed(1000)
    assert framing.room == MAX_HEAD_BYTES - 1000


def test_a_head_that_ends_makes_room() -> None:
    framing = in_body()
    assert framing.room == PIECE_BYTES and not framing.is_full


def test_a_body_of_known_length_costs_nothing() -> None:
    framing = in_body()
    for _ in range(1000):
        framing.body(PIECE_BYTES)
        framing.parsed(PIECE_BYTES)
    assert not framing.is_full


def test_chunks_of_one_byte_each() -> None:
    framing = in_body()
    for _ in range(10_000):
        framing.chunk()
        framing.body(1)
        framing.parsed(len("1\r\nx\r\n"))
    assert not framing.is_full


def test_promise_41_extensions_and_trailers_are_bounded_behind_any_body() -> None:
    framing = in_body()
    framing.body(1 << 25)
    framing.parsed(1 << 25)
    framing.parsed(MAX_EXCESS_BYTES)
    assert not framing.is_full
    framing.parsed(1)
    assert framing.is_full


def test_promise_41_extensions_of_many_chunks_add_up() -> None:
    framing = in_body()
    line = 100
    for _ in range(MAX_EXCESS_BYTES // 50):
        framing.chunk()
        framing.body(1)
        framing.parsed(line)
    assert framing.is_full


def test_a_piece_that_ends_a_request_counts_for_no_head() -> None:
    framing = in_body()
    framing.body(PIECE_BYTES)
    framing.complete()
    framing.parsed(PIECE_BYTES)
    assert framing.in_head and framing.room == MAX_HEAD_BYTES


def test_lines_of_each_request_are_counted() -> None:
    framing = Framing()
    for _ in range(2):
        framing.begin()
        assert all(framing.line() for _ in range(MAX_HEADERS))
        assert not framing.line()
        framing.complete()
