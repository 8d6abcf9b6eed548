"""A step of prompts and decoding rows in two parts gives what it gives whole."""

import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import MIXED, PLAIN, check_story
from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.reference_attention import ReferenceAttention
from mysglang.srt.forward.forward_batch import AttentionBackend
from mysglang.srt.forward.worker_batch import ForwardMode
from mysglang.srt.layers.attention import mixed
from mysglang.srt.layers.attention.mixed import decoding_rows, parted
from mysglang.srt.layers.attention.split import SplitBackend
from mysglang.srt.layers.attention.torch_native_backend import TorchNativeBackend
from mysglang.srt.mem_cache.kv_pool.base import KvPool


def split_backend(pool: KvPool, table: Tensor) -> AttentionBackend:
    return SplitBackend(TorchNativeBackend(pool, table), TorchNativeBackend(pool, table))


@pytest.mark.parametrize("least", [1, 3, 100])
@pytest.mark.parametrize("page_size", [1, 4])
def test_equals_the_reference(page_size: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "WORTH_A_PART", least)
    check_story(split_backend, MIXED, PLAIN, page_size=page_size)


def test_decoding_rows_are_the_last_of_one_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def count(*lens: int) -> int:
        rows = [Row(slot, [0] * n, 3) for slot, n in enumerate(lens)]
        return decoding_rows(worker_batch(rows, PageRows(page_size=1)))

    monkeypatch.setattr(mixed, "WORTH_A_PART", 2)
    assert count(5, 1, 1) == 2
    assert count(1, 1, 5, 1, 1, 1) == 3
    assert count(5, 1) == count(5, 3) == 0
    assert count(1, 1, 1) == 0  # no prompt: not worth two parts


def test_the_parts() -> None:
    pages = PageRows(page_size=1)
    host = worker_batch([Row(5, [1, 2, 3], 4), Row(2, [9], 6), Row(7, [8], 1)], pages)
    prompts, decoding = parted(forward_batch(host, ReferenceAttention(pages)), 2)
    assert prompts.mode is ForwardMode.EXTEND and decoding.mode is ForwardMode.DECODE
    assert prompts.input_ids.tolist() == [1, 2, 3] and decoding.input_ids.tolist() == [9, 8]
    assert prompts.slots.tolist() == [5] and decoding.slots.tolist() == [2, 7]
    assert decoding.positions.tolist() == [6, 1] and decoding.seq_lens.tolist() == [7, 2]
    assert torch.equal(
        torch.cat((*prompts.out_cache_locs, *decoding.out_cache_locs)), torch.from_numpy(host.out_cache_locs[0])
    )
    for part in (prompts, decoding):
        assert part.host.num_tokens == len(part.input_ids) and part.host.slots.tolist() == part.slots.tolist()
        assert part.host.mode is part.mode and part.host.extend_lens.tolist() == part.extend_lens.tolist()
