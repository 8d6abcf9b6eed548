"""Prompts that come as vectors: those of transformers' embeddings give the logits of the tokens that they stand for."""

from pathlib import Path

import pytest
import torch

from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.reference_attention import ReferenceAttention
from fixtures.row_states import RowStates
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.transformers_pair import PROMPTS, pair_of
from mysglang.srt.configs.foreign import ModelImpl
from mysglang.srt.forward.forward_batch import Embeds
from mysglang.srt.forward.worker_batch import ForwardMode

SLOT = 2


@pytest.mark.parametrize(
    ("family", "impl"),
    [
        ("llama", "auto"),
        ("gemma3", "auto"),
        ("gpt2", "auto"),
        ("granite", "auto"),
        ("granite", "transformers"),
        ("granite_moe_shared", "auto"),
        ("granite_moe_hybrid", "auto"),
        ("falcon_h1", "auto"),
    ],
)
@torch.no_grad()
def test_the_same_logits(family: str, impl: ModelImpl, tmp_path: Path) -> None:
    theirs = make_checkpoint(family, tmp_path)
    pair = pair_of(theirs, tmp_path, torch.float32, impl, slots=[SLOT])
    ids = torch.tensor(PROMPTS[SLOT])
    vectors = theirs.get_input_embeddings()(ids)
    if family == "falcon_h1":
        vectors = vectors * theirs.config.embedding_multiplier  # of tokens alone, by transformers too
    rows = [Row(SLOT, [0] * len(ids))]
    pages = PageRows(page_size=16, num_pages=40)
    host = worker_batch(rows, pages, mode=ForwardMode.EXTEND)
    batch = forward_batch(host, ReferenceAttention(pages))
    batch.embeds = Embeds(torch.arange(len(ids)), vectors)
    if pair.ours.state_specs():
        batch.states = RowStates.of(pair.ours).begin(host, rows, wanted=[])
    torch.testing.assert_close(pair.ours.compute_logits(pair.ours(batch)), pair.expected[SLOT], rtol=1e-4, atol=1e-4)
