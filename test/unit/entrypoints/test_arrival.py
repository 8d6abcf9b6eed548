"""A request that is begun must go on arriving."""

import asyncio

from mysglang.srt.entrypoints.arrival import LEAST_BYTES, Arrival

LIMIT_S = 0.05


class Client:
    def __init__(self) -> None:
        self.given_up = asyncio.Event()
        self.arrival = Arrival(asyncio.get_running_loop(), LIMIT_S, self.given_up.set)


async def test_who_does_not_go_on_is_given_up() -> None:
    client = Client()
    client.arrival.came(20, whole=False)
    client.arrival.came(20, whole=False)
    await asyncio.wait_for(client.given_up.wait(), 10)


async def test_who_is_complete_is_not() -> None:
    client = Client()
    client.arrival.came(20, whole=False)
    client.arrival.came(20, whole=True)
    client.arrival.came(20, whole=True)
    await asyncio.sleep(3 * LIMIT_S)
    assert not client.given_up.is_set()
    client.arrival.came(1, whole=False)
    client.arrival.stop()
    await asyncio.sleep(3 * LIMIT_S)
    assert not client.given_up.is_set()


async def test_who_goes_on_has_time_until_it_stops() -> None:
    client = Client()
    client.arrival.came(1, whole=False)
    for _ in range(3):
        client.arrival.came(LEAST_BYTES, whole=False)
        client.arrival._look()
    assert not client.given_up.is_set()
    await asyncio.wait_for(client.given_up.wait(), 10)
