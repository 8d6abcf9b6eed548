"""A TokenizerManager for the tests of what it does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fixtures import small_tokenizer
from fixtures.manager_bench import Bench
from fixtures.text_pools import text_pool
from mysglang.srt.utils.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(small_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), "byte_fallback"))


@pytest.fixture
async def make(tokenizer: Tokenizer) -> AsyncIterator[Callable[..., Bench]]:
    loops: list[asyncio.Task[None]] = []

    def build(**options: Any) -> Bench:
        bench = Bench(tokenizer, pool, **options)
        loops.append(asyncio.create_task(bench.manager.handle_loop()))
        return bench

    with text_pool() as pool:
        yield build
        for loop in loops:
            assert not loop.done(), loop
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)


@pytest.fixture
async def bench(make: Callable[..., Bench]) -> Bench:
    return make()
