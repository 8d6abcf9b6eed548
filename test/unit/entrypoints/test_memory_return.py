"""Memory is given back after the last of several long bodies, not after each."""

import asyncio
import threading

import pytest

from fixtures.patience import PATIENCE_S
from mysglang.srt.entrypoints import memory_return
from mysglang.srt.entrypoints.memory_return import MemoryReturn


@pytest.mark.promise(42)
async def test_several_wishes_are_one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_return, "DELAYS_S", (0.01, 0.02))
    rounds: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    def give_back() -> None:
        rounds.append(threading.current_thread().name)
        if len(rounds) == 2:
            loop.call_soon_threadsafe(done.set)

    memory = MemoryReturn(give_back)
    for _ in range(50):
        memory.soon()
    await asyncio.wait_for(done.wait(), PATIENCE_S)
    assert len(rounds) == 2
    assert threading.main_thread().name not in rounds


def test_the_c_library_can_be_asked() -> None:
    memory_return._give_back()()
