"""Stranger: a client with a key of its own that asks short things while others attack. It must be answered rightly and
soon, and lose nothing that it keeps in rooms that all keys share.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from chaos.attack import STRANGER, spoiled
from fixtures.patience import PATIENCE_S
from fixtures.side_by_side import percentile
from fixtures.toy_server import VOCAB, reference

TURN = [7, 8, 9]
CHAT = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8, "temperature": 0}
FILE = b'{"a": "line"}\n' * 100
ABORTED = re.compile('"(type|finish_reason)": ?"abort"')
PAUSE_S = 0.05
"""Between two questions."""


class Pauses:
    """Times when all processes of the server were stopped, which do not count as waits."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._since: float | None = None

    def begin(self) -> None:
        self._since = time.monotonic()

    def end(self) -> None:
        assert self._since is not None
        self.seconds += time.monotonic() - self._since
        self._since = None

    def clock(self) -> float:
        """Seconds of which pauses are no part."""
        now = time.monotonic()
        return now - self.seconds - (0.0 if self._since is None else now - self._since)


@dataclass
class Waits:
    """Seconds until answers, by the kind of question."""

    by_kind: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def most(self, share: float) -> dict[str, float]:
        """Kind -> the wait that this share of the answers did not exceed."""
        return {kind: percentile(waits, share) for kind, waits in sorted(self.by_kind.items()) if waits}


class Stranger:
    """Asks one thing after another, as long as `run` runs."""

    def __init__(self, url: str, seed: int) -> None:
        self.pauses = Pauses()
        self.wrong: list[str] = []
        self.answers = 0
        self._draw = random.Random(seed)
        self._url = url
        self._kept: dict[str, str] = {}
        """Ids of what it keeps: a session, a file, a response."""
        self._told: dict[str, Any] = {}
        """Its first answers, which must never change."""
        self._kinds: dict[str, Callable[[httpx.AsyncClient], Awaitable[None]]] = {
            "ids": self._ids,
            "chat": self._chat,
            "grammar": self._grammar,
            "models": self._models,
            "what is kept": self._belongings,
        }

    async def settle(self) -> None:
        """Open a session, keep a file and a response."""
        async with self._client() as client:
            self._kept["session"] = (await client.post("/open_session", json={})).json()
            body = {"input_ids": TURN, "rid": "first", "sampling_params": {"max_new_tokens": 4, "ignore_eos": True}}
            await self._post(client, "/generate", body | {"session_params": {"id": self._kept["session"]}})
            form = {"purpose": "batch"}
            file = await client.post("/v1/files", data=form, files={"file": ("mine.jsonl", FILE)})
            self._kept["file"] = file.raise_for_status().json()["id"]
            response = await self._post(client, "/v1/responses", {"input": "Hi", "max_output_tokens": 4})
            self._kept["response"], self._told["response"] = response["id"], response["output"]
            self._told["chat"] = (await self._post(client, "/v1/chat/completions", CHAT))["choices"][0]["message"]
            self._told["models"] = (await client.get("/v1/models")).json()["data"][0]["id"]

    async def run(self, over: asyncio.Event, waits: Waits) -> None:
        """Ask until `over`; how long each answer took goes to `waits`."""
        async with self._client() as client:
            while not over.is_set():
                for kind, ask in self._kinds.items():
                    begun = self.pauses.clock()
                    try:
                        await ask(client)
                    except (AssertionError, httpx.HTTPError, KeyError) as error:
                        self.wrong.append(f"stranger, {kind}: {error!r}"[:600])
                    waits.by_kind[kind].append(self.pauses.clock() - begun)
                    self.answers += 1
                    await asyncio.sleep(PAUSE_S)

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url, headers={"Authorization": f"Bearer {STRANGER}"}, timeout=PATIENCE_S
        )

    @staticmethod
    async def _post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer. What a step of the toy that was made to fail spoiled, or an operator aborted, is asked again."""
        answer = await client.post(path, json=body)
        while spoiled(answer.status_code, answer.text) or ABORTED.search(answer.text):
            answer = await client.post(path, json=body)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        told: dict[str, Any] = answer.json()
        return told

    async def _ids(self, client: httpx.AsyncClient) -> None:
        prompt = [self._draw.randrange(3, VOCAB) for _ in range(self._draw.choice([3, 30]))]
        params = {"max_new_tokens": 4, "ignore_eos": True}
        told = await self._post(client, "/generate", {"input_ids": prompt, "sampling_params": params})
        assert told["output_ids"] == reference(prompt, 4, ignore_eos=True), told

    async def _chat(self, client: httpx.AsyncClient) -> None:
        told = await self._post(client, "/v1/chat/completions", CHAT | {"seed": self._draw.randrange(1 << 20)})
        assert told["choices"][0]["message"] == self._told["chat"], told

    async def _grammar(self, client: httpx.AsyncClient) -> None:
        """A grammar that was not compiled yet."""
        pattern = f"[a-c]+{self._draw.randrange(1 << 30)}"
        params = {"max_new_tokens": 40, "regex": pattern}
        told = await self._post(client, "/generate", {"input_ids": TURN, "sampling_params": params})
        stopped = told["meta_info"]["finish_reason"]["type"] == "stop"
        assert re.fullmatch(pattern, told["text"]) if stopped else re.match("[a-c]+", told["text"]), (pattern, told)

    async def _models(self, client: httpx.AsyncClient) -> None:
        told = (await client.get("/v1/models")).raise_for_status().json()
        assert told["data"][0]["id"] == self._told["models"], told

    async def _belongings(self, client: httpx.AsyncClient) -> None:
        """The session goes on from its first turn; file and response are what they were."""
        session = {"id": self._kept["session"], "rid": "first"}
        params = {"max_new_tokens": 2, "ignore_eos": True}
        # Under one name, since a session keeps its latest requests: others would drive the first one out in the end.
        body = {"input_ids": [5], "rid": "again", "sampling_params": params, "session_params": session}
        told = await self._post(client, "/generate", body)
        before = [*TURN, *reference(TURN, 4, ignore_eos=True), 5]
        assert told["output_ids"] == reference(before, 2, ignore_eos=True), told
        file = await client.get(f"/v1/files/{self._kept['file']}/content")
        assert (file.status_code, file.content) == (200, FILE), file.text[:300]
        response = await client.get(f"/v1/responses/{self._kept['response']}")
        assert response.status_code == 200, response.text
        assert response.json()["output"] == self._told["response"]
