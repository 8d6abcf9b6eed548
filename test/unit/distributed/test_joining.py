"""A group that is being formed: it forms, it does not, or it is given up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.ports import reserved_port
from mysglang.srt.distributed.joining import Joining
from mysglang.srt.distributed.update_group import UpdateGroup
from mysglang.srt.errors import Conflict, InvalidRequest


class Members:
    """Come when they are told to; notes whether the group was left."""

    def __init__(self) -> None:
        self.asked, self.come, self.left = threading.Event(), threading.Event(), threading.Event()

    def make(self, timeout_s: float) -> UpdateGroup:
        self.asked.set()
        assert timeout_s <= PATIENCE_S
        if not self.come.wait(PATIENCE_S):
            raise RuntimeError("nobody came")
        return cast("UpdateGroup", self)

    def leave(self) -> None:
        self.left.set()


@pytest.fixture
def port() -> Iterator[int]:
    """A port on which a process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def silent_port() -> Iterator[int]:
    with reserved_port() as silent:
        yield silent


def test_it_comes_together(port: int) -> None:
    members = Members()
    joining = Joining("g", "127.0.0.1", port, members.make, PATIENCE_S)
    assert members.asked.wait(PATIENCE_S) and not joining.done.done() and joining.group is None
    members.come.set()
    joining.done.result(PATIENCE_S)
    assert joining.group is members
    joining.give_up()
    joining.done.result(0)


def test_nobody_at_the_address(silent_port: int) -> None:
    members = Members()
    joining = Joining("g", "127.0.0.1", silent_port, members.make, 0.0)
    with pytest.raises(InvalidRequest, match=r"'g' did not come together: .*refused"):
        joining.done.result(PATIENCE_S)
    assert not members.asked.is_set()


def test_giving_up_before_anybody_is_there(silent_port: int) -> None:
    members = Members()
    before = set(threading.enumerate())  # an earlier test's thread may be about to end
    joining = Joining("g", "127.0.0.1", silent_port, members.make, PATIENCE_S)
    joining.give_up()
    with pytest.raises(Conflict, match="'g' was given up"):
        joining.done.result(0)
    wait_until(lambda: before.issuperset(threading.enumerate()))
    assert not members.asked.is_set()


def test_what_comes_together_all_the_same_is_left(port: int) -> None:
    members = Members()
    joining = Joining("g", "127.0.0.1", port, members.make, PATIENCE_S)
    assert members.asked.wait(PATIENCE_S)
    joining.give_up()
    with pytest.raises(Conflict, match="'g' was given up"):
        joining.done.result(0)
    members.come.set()
    assert members.left.wait(PATIENCE_S) and joining.group is None
