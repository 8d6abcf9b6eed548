"""The hierarchical cache of a real server around a real model: answers are those without it, to the token, with memory
for a small part of what is asked again and again. Freed pages hold NaN, so a copy to or from the wrong one is an error.
"""

import asyncio
import json
import random
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.oracle import assert_quiet, held
from fixtures.patience import PATIENCE_S
from fixtures.shaky_memory import Shakes
from fixtures.toy_server import PROGRAM, Faults
from fixtures.warm_start import WarmServer

PAGE = 16
# In float32 the order of a sum changes a logit too little to change which is the largest.
PRECISE = ("--log-level", "warning", "--dtype", "float32", "--page-size", f"{PAGE}", "--chunked-prefill-size", "64")
TIERS = (*PRECISE, "--max-total-tokens", "640", "--max-running-requests", "4", "--enable-hierarchical-cache")
WAYS = {
    "selective, layers first": (
        *("--hicache-ratio", "6", "--hicache-write-policy", "write_through_selective"),
        *("--hicache-mem-layout", "layer_first"),
    ),
    "write_back, direct": (
        "--hicache-size",
        "0.02",
        "--hicache-write-policy",
        "write_back",
        "--hicache-io-backend",
        "direct",
    ),
    "short on the host, sync": ("--hicache-ratio", "1.5", "--disable-overlap-schedule"),
}
FAULTS = Faults(toy=False, shakes=Shakes(retract_every=40, fail_host_every=9))


def make_prompts() -> list[list[int]]:
    """Beginnings that come again after others took their memory."""
    draw = random.Random(12)
    texts = [[draw.randrange(3, 4096) for _ in range(8 * PAGE)] for _ in range(10)]
    return [
        draw.choice(texts)[: draw.randrange(5, 8) * PAGE]
        + [draw.randrange(3, 4096) for _ in range(draw.choice([1, 9]))]
        for _ in range(40)
    ]


async def answer_all(url: str, at_once: int = 6) -> list[list[int]]:
    gate = asyncio.Semaphore(at_once)
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:

        async def one(prompt: list[int]) -> list[int]:
            params = {"max_new_tokens": 6, "temperature": 0.0, "ignore_eos": True}
            async with gate:
                found: dict[str, Any] = (
                    await client.post("/generate", json={"input_ids": prompt, "sampling_params": params})
                ).json()
            ids: list[int] = found["output_ids"]
            return ids

        return await asyncio.gather(*map(one, make_prompts()))


def state_of(url: str) -> dict[str, Any]:
    """The scheduler's report of its state."""
    [state] = httpx.get(f"{url}/server_info", timeout=PATIENCE_S).json()["internal_states"]
    return dict(state)


@pytest.fixture(scope="module")
def without_tiers() -> list[list[int]]:
    with WarmServer(*PRECISE, "--disable-radix-cache") as server:
        return asyncio.run(answer_all(server.url))


@pytest.mark.slow
@pytest.mark.promise(24)
@pytest.mark.promise(25)
@pytest.mark.parametrize("way", WAYS)
def test_with_the_tier_as_without(way: str, without_tiers: list[list[int]]) -> None:
    with WarmServer(*TIERS, *WAYS[way], program=PROGRAM, **FAULTS.env) as server:
        assert asyncio.run(answer_all(server.url)) == without_tiers
        assert_quiet(server.url)
        state = state_of(server.url)
        assert state["host_written_tokens"] > 500
        assert state["host_loaded_tokens"] > 500
        assert httpx.post(f"{server.url}/flush_cache", timeout=PATIENCE_S).status_code == 200
        state = state_of(server.url)
        assert state["host_free_tokens"] == state["host_tokens"] > 0
        assert not any(held(server.url).values())


STORED = (*TIERS, "--hicache-ratio", "3", "--hicache-storage-backend", "file")


@pytest.mark.slow
@pytest.mark.promise(25)
def test_a_later_server_reads_what_an_earlier_one_stored(tmp_path: Path, without_tiers: list[list[int]]) -> None:
    """The test also damages files, and removes the directory in between."""
    extra = {"path": str(tmp_path / "kv"), "block_tokens": PAGE, "prefetch_threshold": PAGE}
    options = (*STORED, "--hicache-storage-backend-extra-config", json.dumps(extra))

    with WarmServer(*options, program=PROGRAM, **FAULTS.env) as server:
        assert asyncio.run(answer_all(server.url)) == without_tiers
        assert_quiet(server.url)
        assert state_of(server.url)["storage_written_tokens"] > 300
    for number, path in enumerate(sorted((tmp_path / "kv").rglob("*.kv"))):
        if number % 7 == 0:
            path.write_bytes(path.read_bytes()[: number * 7] + bytes(number % 3))
    with WarmServer(
        *options, "--hicache-storage-prefetch-policy", "wait_complete", program=PROGRAM, **FAULTS.env
    ) as server:
        assert asyncio.run(answer_all(server.url)) == without_tiers
        assert state_of(server.url)["storage_read_tokens"] > 300
        shutil.rmtree(tmp_path / "kv")
        assert asyncio.run(answer_all(server.url)) == without_tiers
        assert_quiet(server.url)
