"""Attack: one way of hurting a server, as an entry of a table. And Target: what attacks do to a server, with what they
were answered. Knows no particular attack.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx

ATTACKER, STRANGER, SWARM = "the-attacker", "the-stranger", "the-swarm"
KEYS = (ATTACKER, STRANGER, SWARM)
NOT_FINITE = "not a finite number"
CONNECTIONS = 24
"""Connections of one attack at the same time; the client library is slow with more."""
SLOW_BYTES = 256 << 10
"""Bodies beyond this size may come too slowly, since one process sends those of all attacks."""
READ_S = 90.0
"""Seconds after which an attacker has waited too long for an answer."""


def spoiled(status: int, text: str) -> bool:
    """True if this answer follows from a step of the toy that was made to fail, or from an operator who aborted all
    requests.
    """
    return (status == 500 and NOT_FINITE in text) or (status == 499 and "was aborted" in text)


@dataclass
class Target:
    """A server, and a tally of what it answered to attacks."""

    url: str
    pid: int
    """Process id of its main process."""
    draw: random.Random
    answers: Counter[str] = field(default_factory=Counter)
    """Number of answers by attack and status; 0 where the server closed the connection."""
    wrong: list[str] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        url = httpx.URL(self.url)
        return url.host, url.port or 80

    def heard(self, attack: Attack, status: int, text: str = "") -> None:
        """Count an answer. One that the attack's entry does not allow is wrong, unless the storm spoiled it, or this
        key has filled its part of the queue.
        """
        self.answers[f"{attack.name}: {status}"] += 1
        full = status == 429 and "queue is full" in text
        if status not in attack.answers and not full and not spoiled(status, text):
            self.wrong.append(f"{attack.name}: {status} {text[:300]}")

    def expect(self, attack: Attack, true: bool, what: str) -> None:
        if not true:
            self.wrong.append(f"{attack.name}: {what}")

    @asynccontextmanager
    async def client(self, key: str = ATTACKER) -> AsyncIterator[httpx.AsyncClient]:
        limits = httpx.Limits(max_connections=CONNECTIONS)
        headers = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=self.url, headers=headers, timeout=READ_S, limits=limits) as client:
            yield client

    async def send(self, attack: Attack, path: str, content: bytes, leave_after_s: float | None = None) -> None:
        """POST this body; a client that leaves does so without a word, and has no answer to count."""
        async with self.client() as client:
            try:
                async with asyncio.timeout(leave_after_s):
                    answer = await client.post(path, content=content, headers={"Content-Type": "application/json"})
            except TimeoutError:
                self.answers[f"{attack.name}: left"] += 1
            except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError):
                # The server need not read on once it has answered, and its system then resets the connection.
                self.heard(attack, 0)
            else:
                if answer.status_code == 408 and len(content) > SLOW_BYTES:
                    self.answers[f"{attack.name}: too slow"] += 1
                else:
                    self.heard(attack, answer.status_code, answer.text)

    async def throw(self, attack: Attack, pieces: Iterable[bytes], pause_s: float = 0.0) -> None:
        """Write these bytes, one piece after another, until the server answers or has had enough."""
        reader, writer = await asyncio.open_connection(*self.address)
        answered = asyncio.create_task(reader.readline())
        status = 0
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(pause_s)
                if answered.done():
                    break
            async with asyncio.timeout(READ_S):
                line = await answered
            status = int(line.split(b" ")[1]) if line else 0
        except ConnectionError:
            pass
        finally:
            answered.cancel()
            await asyncio.gather(answered, return_exceptions=True)
            writer.transport.abort()
        self.heard(attack, status)


Blow = Callable[[Target, "Attack"], Awaitable[None]]
"""Strikes once, within seconds, and leaves nothing behind that it could take away."""


@dataclass(frozen=True)
class Attack:
    """An entry of the table."""

    name: str
    blow: Blow
    answers: frozenset[int]
    """Statuses that are right. 0: the connection is closed without an answer that arrived."""
    every_s: float = 0.0
    """Seconds between two blows at least."""


def attack(*answers: int, every_s: float = 0.0) -> Callable[[Blow], Attack]:
    """Makes an entry of a blow, named after it."""

    def entry(blow: Blow) -> Attack:
        name = blow.__name__.replace("_", " ")
        return Attack(name, blow, frozenset(answers), every_s)

    return entry


def outcomes(answers: Mapping[str, int]) -> str:
    """A line for each attack, with its answers."""
    by_name: dict[str, list[str]] = {}
    for name, count in sorted(answers.items()):
        title, _, status = name.rpartition(": ")
        by_name.setdefault(title, []).append(f"{status} x{count}")
    return "\n".join(f"  {title:<32}{', '.join(found)}" for title, found in by_name.items())
