"""Everything at once, on a real server around the toy device: load, clients that leave in every state, aborts,
retraction, failing allocation, broken results, flushes, pauses, slow readers, and a process that dies. Each answer is
compared with the one that the request gets alone; then nothing may be left anywhere.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter

import pytest

from chaos.besieged import besieged_server
from chaos.storm import DEATHS, WAYS, Storm, die_in_a_storm, storm_server
from fixtures.growth import Growth
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

SECONDS, ROUNDS, MOST_ROUNDS = 0.8, 3, 50
"""A storm lasts until all that it is for has happened, at least three rounds: what grows is seen between rounds."""
GROWTH = 16 << 20
"""Bytes that a process may take more after the last round than after the one before."""


@pytest.mark.slow
@pytest.mark.promise(12)
@pytest.mark.promise(13)
@pytest.mark.promise(14)
@pytest.mark.promise(22)
@pytest.mark.promise(40)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "overlap"])  # which "fronts" does, with one more front
def test_every_answer_is_the_solo_one_and_nothing_is_left(way: str) -> None:
    with storm_server(way, kind=ServerProcess if way == "fronts" else WarmServer) as server:
        storm = Storm(server.url, seed=1)
        while len(storm.tallies) < ROUNDS or not raged(storm) or not settled(storm):
            assert len(storm.tallies) < MOST_ROUNDS, (storm.outcomes, storm.retractions, storm.growth.table())
            storm.round(SECONDS)
            storm.judge()


def raged(storm: Storm) -> bool:
    """True if each of these happened; otherwise the storm was too weak."""
    rare = ("aborted", "left (reset)", "left (half-close)", "error 429", "error 500")
    seen = storm.outcomes
    return seen["completed"] > 50 and all(seen[outcome] for outcome in rare) and storm.retractions > 50


def settled(storm: Storm) -> bool:
    """True if the last round left no process with much more memory, nor with more files, threads or shared memory. In
    the first rounds, libraries are loaded and caches are filled, which takes a slow machine more of them; a leak grows
    in every round.
    """
    last = Growth(looks=storm.growth.looks[-2:])
    return last.flat(slack=1) and all(grown < GROWTH for grown in last.grown().values())


@pytest.mark.slow
@pytest.mark.promise(41)
@pytest.mark.promise(42)
@pytest.mark.promise(44)
def test_attacks_of_every_kind_hurt_no_stranger() -> None:
    with besieged_server("overlap", seed=1) as besieged:
        besieged.calm_round(3)
        besieged.siege_round(5)
        besieged.judge()
    assert besieged.attacks.total() > 30
    assert besieged.stranger.answers > 5  # how many there are depends on the machine
    assert not besieged.late()


@pytest.mark.slow
@pytest.mark.promise(1)
@pytest.mark.promise(2)
@pytest.mark.promise(30)
@pytest.mark.parametrize("victim", DEATHS)
def test_a_death_in_a_storm_is_no_success(victim: str) -> None:
    tally, code = asyncio.run(die_in_a_storm(victim, signal.SIGKILL, seconds=0.7, seed=2, kind=WarmServer))
    assert not tally.wrong, tally.wrong[:5]
    assert code != 0
    assert Counter(tally.outcomes)["error 503"] > 0
