"""Many mixed requests at once: each answer that completes is the one it would have been alone; nothing is left."""

import asyncio
import json
import random
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet
from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

REQUESTS = 28
SEED = 7
SYSTEM = "<|im_start|>system\nYou are a helpful assistant. Answer in one short sentence. Be kind.<|im_end|>\n"
QUESTIONS = (
    "What is the capital of France?",
    "List three fruits.",
    "What is 12 + 30?",
    "Count from 1 to 20.",
    "My name is Ada. What is my name?",
    "Tell me a short story.",
)


@dataclass(frozen=True, eq=False)
class Case:
    """One request, and after how many frames its client hangs up (None: it stays)."""

    body: dict[str, Any]
    leaves_after: int | None


def make_cases(seed: int) -> list[Case]:
    rng = random.Random(seed)
    cases = []
    for _ in range(REQUESTS):
        start = rng.choice([SYSTEM, SYSTEM * 4, ""])
        question = rng.choice(QUESTIONS)
        text = f"{start}<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        params: dict[str, Any] = {"max_new_tokens": rng.randrange(1, 32), "temperature": 0.0}
        if rng.random() < 0.25:
            params |= {"temperature": 0.8, "top_p": 0.9, "sampling_seed": rng.randrange(1000)}
        if rng.random() < 0.2:
            params["ignore_eos"] = True
        stream = rng.random() < 0.7
        leaves = rng.randrange(4) if stream and rng.random() < 0.25 else None
        cases.append(Case({"text": text, "sampling_params": params, "stream": stream}, leaves))
    return cases


async def ask(client: httpx.AsyncClient, case: Case) -> str | None:
    """The whole text, or None if this client left."""
    if not case.body["stream"]:
        response = await client.post("/generate", json=case.body)
        return str(response.raise_for_status().json()["text"])
    text = ""
    async with client.stream("POST", "/generate", json=case.body) as response:
        assert response.status_code == 200
        frames = 0
        async for line in response.aiter_lines():
            if frames == case.leaves_after:
                return None
            if not line:
                continue
            if line == "data: [DONE]":
                return text
            frame = json.loads(line.removeprefix("data: "))
            text = frame["text"]
            frames += 1
    raise AssertionError("a stream ended without its [DONE]")


async def ask_all(url: str, cases: list[Case], at_once: int) -> list[str | None]:
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S, limits=limits) as client:

        async def one(case: Case) -> str | None:
            async with gate:
                return await ask(client, case)

        return await asyncio.gather(*map(one, cases))


# In float32 a request's numbers differ in company only by some 1e-6, too little to change what is drawn.
PRECISE = ("--log-level", "warning", "--dtype", "float32")
# Little memory and short chunks, so that requests wait, are cut in pieces and retract one another.
TIGHT = ("--max-total-tokens", "2048", "--chunked-prefill-size", "128", "--schedule-conservativeness", "0.2")
WAYS = {"overlap": TIGHT, "sync": (*TIGHT, "--disable-overlap-schedule", "--page-size", "16")}


@pytest.fixture(scope="module")
def alone(tiny_server: ServerProcess) -> dict[Case, str]:
    """The answer to each case without other requests."""
    cases = make_cases(SEED)
    stay = [Case(case.body | {"stream": False}, None) for case in cases]
    answers = asyncio.run(ask_all(tiny_server.url, stay, at_once=1))
    return {case: answer for case, answer in zip(cases, answers, strict=True) if answer is not None}


@pytest.mark.promise(14)
@pytest.mark.parametrize("way", WAYS)
def test_together_as_alone(way: str, alone: dict[Case, str]) -> None:
    with WarmServer(*PRECISE, *WAYS[way]) as server:
        together = asyncio.run(ask_all(server.url, list(alone), at_once=REQUESTS))
        assert_quiet(server.url)
    completed = 0
    for (case, expected), got in zip(alone.items(), together, strict=True):
        if got is not None:
            assert got == expected, case.body
            completed += 1
    assert REQUESTS * 0.7 < completed < REQUESTS
