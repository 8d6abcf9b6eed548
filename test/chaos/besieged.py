"""A toy server for several API keys under siege: storms and attacks at the same time, and a stranger whom they must not
hurt. All processes are paused for longer than the watchdog waits, and the log is not read for minutes.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from chaos.attack import KEYS, SWARM
from chaos.attacks_on_shares import COMPILER, FILES_GB, kill_compiler
from chaos.siege import SiegeTally, begin_siege, end_siege
from chaos.storm import FAULTS, LAST_WORDS, WAYS, Storm
from chaos.stranger import Stranger, Waits
from fixtures.oracle import debug_state
from fixtures.server_process import ServerProcess, suspended_whole
from fixtures.swarm import ADMIN, top
from fixtures.toy_server import PROGRAM, Faults
from fixtures.unread_pipe import UnreadPipe

WATCHDOG_S = 10.0
PAUSE_S = 1.5 * WATCHDOG_S
OPTIONS = ("--admin-api-key", ADMIN, "--log-requests", "--enable-metrics", "--req-waiting-timeout", "60")
OPTIONS += ("--watchdog-timeout", f"{WATCHDOG_S}", "--read-timeout", "8", "--file-storage-gb", f"{FILES_GB}")
OPTIONS += ("--grammar-compile-timeout", "4")

AT_ONCE = 10
"""Clients of the swarm beside the attacks."""
SHARES = {"50 %": 0.5, "95 %": 0.95, "longest": 1.0}
BEYOND_S = {"50 %": 0.3, "95 %": 2.0, "longest": 20.0}
"""Seconds by which attacks may lengthen what the stranger waits, beyond TIMES_LONGER its wait in calm."""
TIMES_LONGER = 3.0
"""Attackers, server and whatever else the machine does share its cores."""


class Besieged:
    """Rounds over one server."""

    def __init__(self, server: ServerProcess, log: UnreadPipe, temporary: Path, seed: int) -> None:
        self.attacks: Counter[str] = Counter()
        """Answers by attack and status."""
        self.calm, self.besieged = Waits(), Waits()
        """Waits of the stranger, in calm rounds and under siege."""
        self.dropped = 0
        """Lines of the log that were dropped, as the log itself says."""
        self.pauses = 0
        self._server = server
        self._log = log
        self._seed = seed
        self._last_words = ""
        self._wrong: list[str] = []
        self.stranger = Stranger(server.url, seed)
        self.storm = Storm(server.url, seed, key=SWARM, clock=self.stranger.pauses.clock)
        self.storm.growth.folders = [temporary]
        self._known = {*self._titles(), COMPILER}
        asyncio.run(self.stranger.settle())

    def calm_round(self, seconds: float) -> None:
        """A few clients and the stranger, without attacks. What it waits here is what sieges are judged by, so the one
        thing that takes long anyway happens here too: a new grammar compiler must be started.
        """

        async def beside(seconds: float) -> None:
            over = asyncio.Event()
            asking = asyncio.create_task(self.stranger.run(over, self.calm))
            kill_compiler(self._server.popen.pid)
            await asyncio.sleep(seconds)
            over.set()
            await asking

        self.storm.round(seconds, AT_ONCE, beside)

    def siege_round(self, seconds: float, *, pause: bool = False) -> SiegeTally:
        """The attacks beside the storm; with `pause`, all processes are stopped in the midst of it."""
        self._seed += 1
        tallies: list[SiegeTally] = []

        async def beside(seconds: float) -> None:
            over = asyncio.Event()
            siege = begin_siege(self._server.url, self._server.popen.pid, self._seed, seconds)
            asking = asyncio.create_task(self.stranger.run(over, self.besieged))
            await asyncio.sleep(seconds / 2)
            if pause:
                await self._pause()
            tallies.append(tally := await end_siege(siege))
            self.storm.others += tally.requests
            over.set()
            await asking

        # The swarm comes back when its time is over, the siege when its last blow is.
        self.storm.round(seconds + (PAUSE_S if pause else 0), AT_ONCE, beside)
        self.attacks.update(tallies[0].answers)
        self._wrong += tallies[0].wrong
        return tallies[0]

    async def _pause(self) -> None:
        self.pauses += 1
        self.stranger.pauses.begin()
        with suspended_whole(self._server):
            await asyncio.sleep(PAUSE_S)
        self.stranger.pauses.end()

    def read_log(self) -> None:
        """Take what waits in the pipe. More must come as soon as there is room for it."""
        said = self._log.read()
        httpx.get(f"{self._server.url}/health")
        said += self._log.read()
        if not said:
            self._wrong.append("the log says nothing any more")
        self.dropped += sum(map(int, re.findall(r"WARNING: (\d+) lines of this log were dropped", said)))
        self._last_words = (self._last_words + said)[-LAST_WORDS:]

    def judge(self) -> None:
        """Fail if any answer was wrong, or a process is there that should not be."""
        self.storm.judge()
        wrong = self._wrong + self.stranger.wrong
        titles = self._titles()
        if len(titles) != len(set(titles)) or not self._known.issuperset(titles):
            wrong.append(f"processes: {titles}")
        assert not wrong, f"{len(wrong)} wrong:\n{top(wrong, 12)}"

    def _titles(self) -> list[str]:
        """Titles of all processes of the server."""
        return [process["title"] for process in debug_state(self._server.url, ADMIN)["processes"]]

    def late(self) -> list[str]:
        """Kinds of questions whose answers took the stranger too long under siege."""
        return [
            f"{kind}, {name}: {wait:.2f} s under siege, {calm:.2f} s in calm"
            for name, share in SHARES.items()
            for kind, (calm, wait) in self._both(share).items()
            if wait > TIMES_LONGER * calm + BEYOND_S[name]
        ]

    def _both(self, share: float) -> dict[str, tuple[float, float]]:
        """Kind -> the waits that this share of the answers did not exceed, in calm and under siege."""
        calm, besieged = self.calm.most(share), self.besieged.most(share)
        return {kind: (calm[kind], besieged[kind]) for kind in calm.keys() & besieged.keys()}

    def table(self) -> str:
        """How long the stranger waited, a line for each kind of question."""
        columns = [self._both(share) for share in SHARES.values()]
        title = "the stranger waited, ms: calm / under siege"
        lines = [f"{title:<48}" + "".join(f"{name:>18}" for name in SHARES)]
        for kind in sorted(columns[0]):
            waits = (f"{calm * 1e3:.0f} / {wait * 1e3:.0f}" for calm, wait in (column[kind] for column in columns))
            lines.append(f"  {kind:<46}" + "".join(f"{wait:>18}" for wait in waits))
        return "\n".join(lines)

    @property
    def last_words(self) -> str:
        return self._last_words


@contextmanager
def besieged_server(way: str, seed: int, faults: Faults = FAULTS) -> Iterator[Besieged]:
    """A server of this way, with all that a siege needs. What it wrote last is printed if anything is wrong."""
    with tempfile.TemporaryDirectory(prefix="siege-") as folder:
        keys, temporary = Path(folder) / "keys", Path(folder) / "temporary"
        keys.write_text("\n".join(KEYS))
        temporary.mkdir()
        log = UnreadPipe(filled=False)
        options = (*WAYS[way], *OPTIONS, "--api-key-file", str(keys), "--file-storage-path", f"{folder}/files")
        with ServerProcess(
            *options, program=PROGRAM, stderr=log.writing, TMPDIR=str(temporary), **faults.env
        ) as server:
            assert server.url
            besieged = Besieged(server, log, temporary, seed)
            try:
                yield besieged
            except BaseException:
                sys.stderr.write((besieged.last_words + log.read())[-LAST_WORDS:])
                raise
            finally:
                log.close()
        assert not list(temporary.iterdir()), "a temporary file outlived the server"
