"""The soak: a storm for SOAK_MINUTES (30), in rounds over one server: calm ones, ones with attacks of every kind beside
it, and the fullest; and now and then a server killed in another.

After each round the server must be quiet in all processes and answer a fresh request rightly. In the end it prints what
became of all requests and how the memory of each process grew, and exits with 1 if anything was wrong.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter

from chaos.attack import outcomes
from chaos.besieged import Besieged, besieged_server
from chaos.storm import DEATHS, die_in_a_storm

ROUND_S, CALM_S, SIEGE_S = 20.0, 10.0, 30.0
DEATH_EVERY, PAUSE_EVERY, READ_EVERY = 5, 6, 12
"""Rounds between two servers that are killed, two pauses of the whole server, and two looks at its log."""
SLOPE_BOUND, KEPT_BYTES = 1e6, 16 << 20
"""Bytes for each 10 000 requests by which the memory of a process may grow, and bytes by which its minimum may rise in
total. The allocator keeps a part of the memory for attacks with bodies of 30 MB.
"""


def main() -> int:
    minutes = float(os.environ.get("SOAK_MINUTES", "30"))
    way, seed = os.environ.get("SOAK_WAY", "overlap"), int(os.environ.get("SOAK_SEED", "1"))
    with besieged_server(way, seed * 10_000) as besieged:
        soak = Soak(besieged, seed)
        try:
            soak.run(minutes)
        finally:
            report(besieged, soak.deaths, minutes)
    growth, late = besieged.storm.growth, besieged.late()
    raised = growth.raised()
    bad = {
        title: slope
        for title, slope in growth.bytes_per_10k().items()
        if slope > SLOPE_BOUND and raised[title] > KEPT_BYTES
    }
    flat = growth.flat()
    print(
        f"oracle: clean after {soak.rounds} rounds; memory: {bad or 'within bounds'}; files, threads, shared memory "
        f"and temporary files flat: {flat}; too late for the stranger: {late or 'nothing'}"
    )
    return 1 if bad or not flat or late else 0


class Soak:
    """Rounds of three kinds over one server, one after the other."""

    def __init__(self, besieged: Besieged, seed: int) -> None:
        self.rounds = 0
        self.deaths: Counter[str] = Counter()
        """Servers that were killed, by the process that was."""
        self._besieged = besieged
        self._seed = seed

    def run(self, minutes: float) -> None:
        """Fails at the first round after which anything is wrong."""
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            self.rounds += 1
            said = self._round(self.rounds)
            self._besieged.judge()
            if self.rounds % READ_EVERY == 0:
                self._besieged.read_log()
            swarm = self._besieged.storm.tallies[-1]
            completed = swarm.outcomes["completed"]
            print(f"round {self.rounds}: {said}, {swarm.requests} requests, {completed} completed, quiet", flush=True)
            if self.rounds % DEATH_EVERY == 0:
                self._kill_another(self.rounds)
        self._besieged.read_log()
        self._besieged.judge()

    def _round(self, number: int) -> str:
        match number % 3:
            case 1:
                self._besieged.calm_round(CALM_S)
                return "calm"
            case 2:
                tally = self._besieged.siege_round(SIEGE_S, pause=number % PAUSE_EVERY == 2)
                return f"{tally.requests} answers to attacks"
            case _:
                self._besieged.storm.round(ROUND_S)
                return "storm"

    def _kill_another(self, number: int) -> None:
        """Start another server, and kill a process of it in the midst of a storm."""
        victim = list(DEATHS)[number // DEATH_EVERY % len(DEATHS)]
        died, code, _ = asyncio.run(die_in_a_storm(victim, signal.SIGKILL, seconds=3, seed=self._seed + number))
        assert code != 0 and not died.wrong, died.wrong[:5]
        self.deaths[victim] += 1


def report(besieged: Besieged, deaths: Counter[str], minutes: float) -> None:
    """Print the results as tables."""
    storm = besieged.storm
    if not storm.growth.looks:
        return
    happened = sum((tally.outcomes for tally in storm.tallies), Counter[str]())
    slowest = max(tally.slowest_probe_s for tally in storm.tallies)
    tokens = sum(tally.tokens for tally in storm.tallies)
    print(f"\n{minutes:g} minutes, {storm.requests} requests, {tokens} tokens compared")
    for outcome, count in sorted(happened.items()):
        print(f"  {outcome:<36}{count:>9}")
    print(f"faults: {storm.retractions} retractions, {happened['error 500']} results that are not finite, ", end="")
    print(f"{sum(deaths.values())} servers killed, {besieged.pauses} pauses; slowest /health: {slowest * 1e3:.0f} ms")
    print(f"{besieged.dropped} lines of a log that nobody read were dropped")
    print(f"{besieged.attacks.total()} answers to attacks:")
    print(outcomes(besieged.attacks))
    print(f"the stranger: {besieged.stranger.answers} answers, {len(besieged.stranger.wrong)} wrong")
    print(besieged.table())
    print(storm.growth.table())
    print(
        "least memory raised by, MB: ",
        {title: round(raised / 1e6, 1) for title, raised in storm.growth.raised().items()},
    )


if __name__ == "__main__":
    sys.exit(main())
