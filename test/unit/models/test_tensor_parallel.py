"""A model split over ranks gives every rank the logits of the whole one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.reference_attention import ReferenceAttention
from fixtures.row_states import RowStates
from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SoloGroup
from mysglang.srt.model_loader.loader import load_model

ROWS = [Row(0, list(range(20))), Row(1, [7, 8, 9])]


def logits(folder: Path, tp: ThreadGroup | SoloGroup) -> Tensor:
    config = ModelConfig.from_path(str(folder), dtype="float32")
    model = load_model(config, LoadConfig(num_threads=1), torch.device("cpu"), torch.float32, tp=tp)
    pages = PageRows(page_size=4)
    batch = forward_batch(host := worker_batch(ROWS, pages), ReferenceAttention(pages))
    if model.plan.has_states:
        batch.states = RowStates.of(model).begin(host, ROWS)
    return model.compute_logits(model(batch))


DIVISIBLE = {
    "qwen3_next": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    "qwen3_5": {"linear_num_key_heads": 4, "linear_num_value_heads": 8},
    "nemotron_h": {"mamba_num_heads": 8, "n_groups": 4},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_n_groups": 4, "mamba_d_ssm": 160},
}
"""Sizes of families whose usual ones four ranks cannot share."""


# 251 tokens: no number of ranks divides them. Two key-value heads: over four ranks each is held twice.
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize(
    ("family", "tied"),
    [
        ("llama", False),
        ("qwen2", True),
        ("qwen3", False),
        ("falcon", False),
        ("qwen3_moe", True),
        ("gemma2", True),
        ("qwen3_next", False),
        ("qwen3_5", False),
        ("nemotron_h", False),
        ("falcon_h1", False),
        ("lfm2_moe", True),
        ("deepseek_v2", False),
        ("deepseek_v3", True),
        ("gpt_oss", False),
    ],
)
@torch.no_grad()
def test_ranks_agree_with_the_whole(family: str, tied: bool, size: int, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path, num_attention_heads=8, tie_word_embeddings=tied, **DIVISIBLE.get(family, {}))
    whole = logits(tmp_path, SoloGroup())
    for part in run_on_ranks(size, lambda tp: logits(tmp_path, tp)):
        torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-4)
