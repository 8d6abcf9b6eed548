"""KvManager under random traffic: fixtures/kv_traffic.py says what is asked of it, and what must hold."""

import pytest

from fixtures.kv_traffic import ManagerMachine
from fixtures.traffic import drive
from mysglang.srt.mem_cache.factory import PrefixCacheName


@pytest.mark.promise(23)
@pytest.mark.parametrize(("page_size", "cache"), [(1, "radix"), (2, "radix"), (16, "radix"), (2, "chunk")])
def test_random_traffic(page_size: int, cache: PrefixCacheName) -> None:
    class Machine(ManagerMachine):
        """With settings and steps of its own."""

    Machine.page_size, Machine.cache = page_size, cache
    drive(Machine)
