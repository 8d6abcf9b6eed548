"""Pages of a CUDA pool to the host and back: the right bytes, and not before or after their turn.

The pages are written by a step that the device has not begun when they are copied, and taken by another one right
after: only the order of the queues keeps them apart. `test/unit/model_executor/test_page_mover.py` asks the same of a
device that lags as much as it may.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mysglang.srt.forward.forward_batch import AttentionSpec
from mysglang.srt.forward.host_pages import PageCopies, PagePairs
from mysglang.srt.mem_cache.kv_pool.host import HostKvPool, MemLayout
from mysglang.srt.mem_cache.kv_pool.mha import MhaKvPool
from mysglang.srt.model_executor.page_mover import IoBackend, PageMover
from mysglang.srt.platforms import platform_named

PAGES, HOST_PAGES, ROUNDS = 200, 300, 5
ALIKE, MIXED = (2, 2, 2), (2, 1, 4)
"""KV heads of the layers."""
LONG_STEP = 20_000_000
"""Clock cycles, some ten milliseconds: longer than the host takes to queue everything behind it."""


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("heads", [ALIKE, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("io", ["kernel", "direct"])
@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_there_and_back(
    layout: MemLayout, io: IoBackend, dtype: torch.dtype, heads: Sequence[int], page_size: int
) -> None:
    platform = platform_named("cuda")
    specs = [
        AttentionSpec(layer_id=layer, num_heads=4, num_kv_heads=count, head_dim=64, scale=1.0)
        for layer, count in enumerate(heads)
    ]
    pool = MhaKvPool(specs, num_pages=PAGES, page_size=page_size, dtype=dtype, device=platform.device)
    mover = PageMover(pool, HostKvPool(pool, HOST_PAGES, layout=layout, platform=platform), platform, io, "")
    tensors = [tensor for layer_id in pool.layer_ids for tensor in pool.pages(layer_id)]
    draw = np.random.default_rng(9)
    for number in range(ROUNDS):
        contents = [torch.randn_like(tensor) for tensor in tensors]
        count = int(draw.integers(1, PAGES // 2))
        source, target = some_pages(draw, PAGES, count), some_pages(draw, PAGES, count)
        host = some_pages(draw, HOST_PAGES, count)
        torch.cuda.synchronize()
        torch.cuda._sleep(LONG_STEP)  # type: ignore[no-untyped-call]
        for tensor, content in zip(tensors, contents, strict=True):
            tensor.copy_(content)
        mover.copy(PageCopies(write=PagePairs(source, host), urgent=True))
        # Kernels may have been compiled during the first round.
        assert number == 0 or mover.done() < mover._calls, "the device was not late"
        for tensor in tensors:
            tensor.fill_(float("nan"))
        mover.copy(PageCopies(load=PagePairs(target, host)))
        pool.arrivals.wait_for_all()
        there = torch.from_numpy(source).to("cuda").long()
        back = torch.from_numpy(target).to("cuda").long()
        for tensor, content in zip(tensors, contents, strict=True):
            assert torch.equal(tensor[back], content[there])
            assert int(tensor.isnan().flatten(1).all(dim=1).sum()) == len(tensor) - count
        assert mover.done() == mover._calls


def some_pages(draw: np.random.Generator, among: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """Distinct numbers from 1 on, with runs among them that the copy engine may take at once."""
    chosen = draw.permutation(among)[:count].astype(np.int32) + 1
    chosen[: count // 2] = np.sort(chosen[: count // 2])
    return chosen
