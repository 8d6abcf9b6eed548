"""Every way of pooling compared with sentence-transformers, on rows of different lengths in one batch."""

import pytest
import torch
from sentence_transformers.sentence_transformer.modules import Pooling

from mysglang.srt.layers.pooler import POOLS, Pooler

LENS = [1, 7, 2, 64, 3]
HIDDEN = 24
THEIRS = {"last": "lasttoken"}


@pytest.mark.parametrize("mode", POOLS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_as_sentence_transformers(mode: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randn(length, HIDDEN, generator=generator).to(dtype) for length in LENS]
    padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).float()
    mask = torch.arange(max(LENS)) < torch.tensor(LENS).unsqueeze(1)
    reference = Pooling(HIDDEN, pooling_mode=THEIRS.get(mode, mode))
    features = {"token_embeddings": padded, "attention_mask": mask.long()}
    expected = reference(features)["sentence_embedding"]
    pooler = Pooler(mode, normalize=False, head=lambda pooled: pooled)
    found = pooler.rows(torch.cat(rows), torch.tensor(LENS))
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
