"""Siege: a process of its own that attacks a server for a while, in every way that the tables list.

python -m chaos.siege URL PID SEED SECONDS     attack the server at URL, whose main process is PID; prints a Tally

In a process of its own, so that the work of making bodies does not delay measurements.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence

import msgspec

from chaos.attack import Attack, Target
from chaos.attacks_on_http import on_bodies, on_heads, that_take_time
from chaos.attacks_on_shares import on_files, on_grammars, on_queues, on_rooms
from fixtures.processes import start
from fixtures.server_process import REPOSITORY

LANES: dict[str, tuple[Attack, ...]] = {
    "heads": tuple(on_heads()),
    "patience": tuple(that_take_time()),
    "bodies": tuple(on_bodies()),
    "rooms": tuple(on_rooms()),
    "files": tuple(on_files()),
    "queues": tuple(on_queues()),
    "grammars": tuple(on_grammars()),
}
"""Each lane strikes one blow after the other. Attacks on the same room share a lane, which knows what it left there."""
ATTACKS = {attack.name: attack for lane in LANES.values() for attack in lane}
MEMORY_BYTES = 4 << 30
"""Memory of the attacking process."""


class SiegeTally(msgspec.Struct, frozen=True):
    """Answers to a siege, by attack and status, and its complaints."""

    answers: dict[str, int]
    wrong: list[str]

    @property
    def requests(self) -> int:
        return sum(self.answers.values())


async def besiege(target: Target, seconds: float) -> None:
    """Strike for so long; each attack comes about as often as the others of its lane."""
    end = time.monotonic() + seconds

    async def strike(lane: Sequence[Attack]) -> None:
        due = Counter[str]()
        while (now := time.monotonic()) < end:
            ready = [attack for attack in lane if due[attack.name] <= now]
            if not ready:
                await asyncio.sleep(0.1)
                continue
            attack = target.draw.choice(ready)
            due[attack.name] = now + attack.every_s  # type: ignore[assignment]
            try:
                await attack.blow(target, attack)
            except Exception as error:  # the siege goes on; what failed is told
                target.wrong.append(f"{attack.name}: {error!r}")

    await asyncio.gather(*map(strike, LANES.values()))


async def strike_once(target: Target, name: str) -> None:
    """One blow of one attack."""
    await ATTACKS[name].blow(target, ATTACKS[name])


def begin_siege(url: str, pid: int, seed: int, seconds: float) -> subprocess.Popen[bytes]:
    """Attack in another process; `end_siege` has what it found."""
    arguments = [sys.executable, "-m", "chaos.siege", url, str(pid), str(seed), str(seconds)]
    paths = os.pathsep.join([str(REPOSITORY / "python"), str(REPOSITORY / "test")])
    return start(arguments, stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths})


async def end_siege(siege: subprocess.Popen[bytes]) -> SiegeTally:
    """Wait for its end. Raises msgspec.DecodeError if it came to none."""
    said, _ = await asyncio.to_thread(siege.communicate)
    return msgspec.json.decode(said, type=SiegeTally)


def main(url: str, pid: str, seed: str, seconds: str) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    os.nice(5)
    target = Target(url, int(pid), random.Random(int(seed)))
    asyncio.run(besiege(target, float(seconds)))
    sys.stdout.buffer.write(msgspec.json.encode(SiegeTally(dict(target.answers), target.wrong)))


if __name__ == "__main__":
    main(*sys.argv[1:])
