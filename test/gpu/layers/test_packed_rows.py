"""Rows of latent layers that are expanded together on CUDA, at the sizes of DeepSeek: those that share a cached
beginning attend as those that do not.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from fixtures.attention_cases import assert_close
from fixtures.forward_batches import PageRows, Row, worker_batch
from mysglang.srt.forward.forward_batch import AttentionSpec, ForwardBatch
from mysglang.srt.forward.shared_prefix import SharedPrefixes
from mysglang.srt.layers.attention.packed_rows import PackedExpandedRows, PackedRows
from mysglang.srt.mem_cache.kv_pool.latent import LatentKvPool

LATENT, TURNED, KEY, VALUE, HEADS = 512, 64, 128, 128, 16
SPEC = AttentionSpec(
    layer_id=0,
    num_heads=HEADS,
    num_kv_heads=1,
    head_dim=LATENT + TURNED,
    scale=(KEY + TURNED) ** -0.5,
    latent_dim=LATENT,
)
BEGINNING, OWN, NEW = 1024, 64, 100


@pytest.mark.parametrize("room", [100_000, 900])
def test_as_without_sharing(room: int) -> None:
    torch.manual_seed(0)
    pages = PageRows(page_size=4, num_pages=2000, max_context=2048)
    pages.extend(0, BEGINNING)
    for slot in range(1, 8):
        pages.share(slot, 0, BEGINNING)
    rows = [Row(slot, [5] * (NEW + slot), BEGINNING + OWN * (slot % 2)) for slot in range(8)]
    host = worker_batch(rows, pages)
    bf16 = {"dtype": torch.bfloat16, "device": torch.device("cuda")}
    pool = LatentKvPool([SPEC], num_pages=pages.num_pages, page_size=4, **bf16)
    pool.buffers(0)[0].normal_()
    packed = PackedRows(pool, torch.from_numpy(pages.table).cuda(), num_heads=HEADS)
    packed.room = room
    up_keys, up_values = (torch.randn(HEADS, LATENT, size, **bf16) * LATENT**-0.5 for size in (KEY, VALUE))
    q = torch.randn(len(host.input_ids), HEADS, KEY + TURNED, **bf16)

    def expand(latent: Tensor) -> tuple[Tensor, Tensor]:
        heads = latent[:, :LATENT].expand(HEADS, -1, -1)
        return torch.bmm(heads, up_keys), torch.bmm(heads, up_values)

    def attend(shared: SharedPrefixes | None) -> tuple[int, Tensor]:
        batch = ForwardBatch.__new__(ForwardBatch)
        batch.host = replace(host, prompt_prefixes=shared)
        found = packed.rows(batch, np.arange(8))
        assert isinstance(found, PackedExpandedRows)
        out = torch.full((len(q), HEADS, VALUE), float("nan"), **bf16)
        found.attend(q, expand, SPEC, out)
        return sum(piece.keys for piece in found.pieces), out

    everyone = SharedPrefixes(*(np.array(x, dtype=np.int32) for x in ([0], [BEGINNING], [0, 8], range(8))))
    alone, apart = attend(None)
    made, together = attend(everyone)
    assert alone - made == 7 * BEGINNING
    assert_close(together, apart, 5e-3)
