"""Storms over a toy server, as the chaos tests and the soak raise them: who is in them, and how they are judged."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from fixtures.growth import Growth
from fixtures.oracle import assert_quiet, debug_state
from fixtures.processes import wait_until_gone
from fixtures.server_process import ServerProcess
from fixtures.shaky_memory import Shakes
from fixtures.swarm import ADMIN, Swarm, Tally, solo_probe, top
from fixtures.toy_server import PROGRAM, Faults

LAST_WORDS = 6000
"""Characters of a server's log that are shown when something went wrong."""

SCHEDULER, DETOKENIZER = "mysglang::scheduler_TP0", "mysglang::detokenizer"
FRONT = "mysglang::tokenizer_worker_1"

# Little of everything, so that limits are met all the time.
TIGHT = ("--max-queued-requests", "24", "--max-running-requests", "16", "--req-waiting-timeout", "2")
TIGHT += ("--chunked-prefill-size", "64", "--write-timeout", "1", "--schedule-conservativeness", "0.3")
TIER = ("--enable-hierarchical-cache", "--hicache-ratio", "3")
WAYS = {
    "overlap": TIGHT,
    "mixed": (*TIGHT, "--enable-mixed-chunk", "--page-size", "16", *TIER, "--hicache-write-policy", "write_back"),
    "fronts": (*TIGHT, "--tokenizer-worker-num", "2", "--detokenizer-worker-num", "2"),
    "sync": (*TIGHT, "--disable-overlap-schedule", "--page-size", "4", "--schedule-policy", "lpm", *TIER),
}
DEATHS = {SCHEDULER: "overlap", DETOKENIZER: "overlap", FRONT: "fronts"}
"""The process that is killed, and in which server."""

FAULTS = Faults(step_ms=1, break_every=60, shakes=Shakes(retract_every=5, fail_alloc_every=7, fail_host_every=9))


Beside = Callable[[float], Awaitable[None]]
"""Other events during that many seconds."""


async def nobody(seconds: float) -> None:
    """Nothing else happens."""


@contextmanager
def storm_server(
    way: str, faults: Faults = FAULTS, kind: type[ServerProcess] = ServerProcess
) -> Iterator[ServerProcess]:
    # What requests are ended by is logged as an error, which is what is meant here.
    options = ("--log-level", "critical", "--admin-api-key", ADMIN, *WAYS[way])
    with kind(*options, program=PROGRAM, **faults.env) as server:
        assert server.url
        try:
            yield server
        except BaseException:
            # What it wrote is gone with it.
            sys.stderr.write(server.stderr[-LAST_WORDS:])
            raise


class Storm:
    """Rounds of swarming over one server; after each the server must be quiet, and well."""

    def __init__(self, url: str, seed: int, *, key: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        """`key` and `clock` as a Swarm's."""
        self.url = url
        self.key = key
        self.clock = clock
        self.growth = Growth()
        self.tallies: list[Tally] = []
        self.others = 0
        """Requests of clients that are not of the swarm."""
        self.retractions = 0
        """Number of retractions since the server started."""
        self._seed = seed

    @property
    def outcomes(self) -> Counter[str]:
        """Outcomes of all rounds."""
        return sum((tally.outcomes for tally in self.tallies), Counter[str]())

    @property
    def requests(self) -> int:
        """All that the server was sent."""
        return sum(tally.requests for tally in self.tallies) + self.others

    def round(self, seconds: float, at_once: int = 48, beside: Beside = nobody) -> Tally:
        """So much time of storm, and what became of its requests. Fails if anything is left of them."""
        self._seed += 1
        swarm = Swarm(self.url, self._seed, at_once, key=self.key, clock=self.clock)
        tally = asyncio.run(_together(swarm, seconds, beside))
        self.tallies.append(tally)
        assert_quiet(self.url, ADMIN)
        asyncio.run(solo_probe(self.url, self._seed, self.key))
        self.growth.look(self.url, ADMIN, self.requests)
        self.retractions = int(debug_state(self.url, ADMIN)["num_retractions"])
        return tally

    def judge(self) -> None:
        """Fail if any answer was wrong."""
        wrong = [each for tally in self.tallies for each in tally.wrong]
        assert not wrong, f"{len(wrong)} wrong, seed {self._seed}:\n{top(wrong)}"


async def _together(swarm: Swarm, seconds: float, beside: Beside) -> Tally:
    async with asyncio.TaskGroup() as group:
        group.create_task(beside(seconds))
        return await swarm.run(seconds)


async def die_in_a_storm(
    victim: str, how: signal.Signals, seconds: float, seed: int, kind: type[ServerProcess] = ServerProcess
) -> tuple[Tally, int]:
    """Kill a process of a server in the midst of a storm: what became of its requests, and its exit code. It leaves no
    child.
    """
    with storm_server(DEATHS[victim], kind=kind) as server:
        swarm = Swarm(server.url, seed)
        children = list(server.children().values())
        storm = asyncio.create_task(swarm.run(seconds + 1))
        await asyncio.sleep(seconds)
        swarm.dying = "front" if victim == FRONT else "engine"
        server.child(victim).send_signal(how)
        await storm
        code = await asyncio.to_thread(server.wait)
        await asyncio.to_thread(wait_until_gone, children)
    return swarm.tally, code
