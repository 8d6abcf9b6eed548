"""A request has a limited time to arrive: a head in all, a body by how much of it came."""

import asyncio

import pytest

from mysglang.srt.entrypoints.arrival import BYTES_PER_LIMIT, LEAST_BYTES, Arrival

LIMIT_S = 30.0


class Clock(asyncio.AbstractEventLoop):
    """The part of a loop that an Arrival uses; time passes when a test says so."""

    def __init__(self) -> None:
        self.armed: list[asyncio.TimerHandle] = []

    def call_later(self, delay, callback, *args, context=None):  # type: ignore[no-untyped-def]
        assert delay == LIMIT_S
        self.armed.append(asyncio.TimerHandle(0.0, callback, args, self, context))
        return self.armed[-1]

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        self.armed.remove(handle)

    def pass_limit(self) -> None:
        """The limit is over for the one timer that there is."""
        (handle,) = self.armed
        self.armed.clear()
        handle._run()


class Client:
    def __init__(self) -> None:
        self.to_blame = True
        self.given_up = 0
        self.clock = Clock()
        self.arrival = Arrival(self.clock, LIMIT_S, self.give_up)

    def give_up(self) -> bool:
        self.given_up += self.to_blame
        return self.to_blame

    def head(self, size: int = 20) -> None:
        self.arrival.came(size, in_head=True, whole=False)

    def body(self, size: int) -> None:
        self.arrival.came(size, in_head=False, whole=False)

    def whole(self) -> None:
        self.arrival.came(20, in_head=True, whole=True)


@pytest.mark.promise(41)
def test_promise_41_a_head_has_one_limit_however_steadily_it_comes() -> None:
    client = Client()
    client.head()
    (first,) = client.clock.armed
    for _ in range(1000):
        client.head(LEAST_BYTES)
    assert client.clock.armed == [first]
    client.clock.pass_limit()
    assert client.given_up == 1 and not client.clock.armed


def test_a_request_that_comes_at_once_costs_no_timer() -> None:
    client = Client()
    client.whole()
    assert not client.clock.armed
    client.head()
    client.whole()
    assert not client.clock.armed


def test_each_head_has_its_own_limit() -> None:
    client = Client()
    client.head()
    (first,) = client.clock.armed
    client.whole()
    client.head()
    assert client.clock.armed != [first] and len(client.clock.armed) == 1


def test_a_body_has_a_limit_of_its_own_behind_the_head() -> None:
    client = Client()
    client.head()
    (first,) = client.clock.armed
    client.body(10)
    assert client.clock.armed != [first] and len(client.clock.armed) == 1
    client.clock.pass_limit()
    assert client.given_up == 1


def test_a_body_has_time_by_what_came_of_it() -> None:
    client = Client()
    client.body(0)
    for _ in range(5):
        client.body(BYTES_PER_LIMIT)
        client.clock.pass_limit()
    assert not client.given_up
    client.body(BYTES_PER_LIMIT - 1)
    client.clock.pass_limit()
    assert client.given_up == 1


def test_what_came_at_first_does_not_pay_for_silence() -> None:
    client = Client()
    client.body(100 * BYTES_PER_LIMIT)
    client.clock.pass_limit()
    assert not client.given_up
    client.body(LEAST_BYTES - 1)
    client.clock.pass_limit()
    assert client.given_up == 1


def test_a_client_that_is_not_to_blame_has_as_much_time_again() -> None:
    client = Client()
    client.to_blame = False
    client.body(10)
    for _ in range(3):
        client.clock.pass_limit()
    client.to_blame = True
    client.body(BYTES_PER_LIMIT)
    client.clock.pass_limit()
    assert not client.given_up
    client.clock.pass_limit()
    assert client.given_up == 1


def test_nothing_is_called_behind_the_end() -> None:
    client = Client()
    client.head()
    client.arrival.end()
    assert not client.clock.armed
