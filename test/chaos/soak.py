"""The soak: a storm for SOAK_MINUTES (30), in rounds over one server, and now and then a server killed in another.

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

from chaos.storm import DEATHS, Storm, die_in_a_storm, storm_server

ROUND_S = 20.0
DEATH_EVERY = 5
"""Rounds between two servers that are killed."""
SLOPE_BOUND = 1e6
"""Bytes for each 10 000 requests by which the memory of a process may grow."""


def main() -> int:
    minutes = float(os.environ.get("SOAK_MINUTES", "30"))
    way, seed = os.environ.get("SOAK_WAY", "overlap"), int(os.environ.get("SOAK_SEED", "1"))
    end = time.monotonic() + minutes * 60
    deaths: Counter[str] = Counter()
    with storm_server(way) as server:
        storm = Storm(server.url, seed * 10_000)
        number = 0
        while time.monotonic() < end:
            number += 1
            tally = storm.round(ROUND_S)
            storm.judge()
            print(
                f"round {number}: {tally.requests} requests, {tally.outcomes['completed']} completed, quiet", flush=True
            )
            if number % DEATH_EVERY == 0:
                victim = list(DEATHS)[number // DEATH_EVERY % len(DEATHS)]
                died, code, _ = asyncio.run(die_in_a_storm(victim, signal.SIGKILL, seconds=3, seed=seed + number))
                assert code != 0 and not died.wrong, died.wrong[:5]
                deaths[victim] += 1
        report(storm, deaths, minutes)
    bad = {title: slope for title, slope in storm.growth.bytes_per_10k().items() if slope > SLOPE_BOUND}
    flat = storm.growth.flat()
    print(f"oracle: clean after {number} rounds; memory: {bad or 'within bounds'}; files and threads flat: {flat}")
    return 1 if bad or not flat else 0


def report(storm: Storm, deaths: Counter[str], minutes: float) -> None:
    """What happened, as tables."""
    outcomes = sum((tally.outcomes for tally in storm.tallies), Counter[str]())
    slowest = max(tally.slowest_probe_s for tally in storm.tallies)
    print(f"\n{minutes:g} minutes, {storm.requests} requests, {sum(t.tokens for t in storm.tallies)} tokens compared")
    for outcome, count in sorted(outcomes.items()):
        print(f"  {outcome:<36}{count:>9}")
    print(f"faults: {storm.retractions} retractions, {outcomes['error 500']} results that are not finite, ", end="")
    print(f"{sum(deaths.values())} servers killed; slowest /health: {slowest * 1e3:.0f} ms")
    print(storm.growth.table())


if __name__ == "__main__":
    sys.exit(main())
