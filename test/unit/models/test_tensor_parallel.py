"""A model split over ranks gives every rank the logits of the whole one."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.reference_attention import ReferenceAttention
from fixtures.row_states import RowStates
from fixtures.thread_group import ThreadGroup, run_on_ranks
from fixtures.tiny_checkpoints import FAMILIES, make_checkpoint
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.rank_split import check_split
from mysglang.srt.distributed.groups import SoloGroup
from mysglang.srt.model_loader.loader import load_model

ROWS = [Row(0, list(range(20))), Row(1, [7, 8, 9])]


def logits(folder: Path, tp: ThreadGroup | SoloGroup) -> Tensor:
    config = ModelConfig.from_path(str(folder), dtype="float32")
    check_split(config, tp.size)
    model = load_model(config, LoadConfig(num_threads=1), torch.device("cpu"), torch.float32, tp=tp)
    pages = PageRows(page_size=4)
    batch = forward_batch(host := worker_batch(ROWS, pages), ReferenceAttention(pages))
    if model.plan.has_states:
        batch.states = RowStates.of(model).begin(host, ROWS)
    return model.compute_logits(model(batch))


STATES = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
ONE_GROUP = {"mamba_n_heads": 8, "mamba_n_groups": 1}
KV_HEADS = {"num_key_value_heads": 8}
SIZES = {
    **dict.fromkeys(("qwen3_next", "qwen3_5", "qwen3_5_moe", "olmo_hybrid"), STATES),
    "nemotron_h": {"mamba_num_heads": 8, "n_groups": 4},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_ssm": 160},
    **dict.fromkeys(("bamba", "granite_moe_hybrid"), ONE_GROUP),
    "stablelm": {"partial_rotary_factor": 0.5},
    "helium": {"head_dim": 12},
    "kimi_linear": {"linear_num_heads": 8},
    **dict.fromkeys(("glm4_moe_lite", "deepseek_v32", "glm_moe_dsa"), KV_HEADS),
    "phi": {"tie_word_embeddings": False},
    "mamba2": {"num_heads": 8, "head_dim": 24},
    "zamba2": {"n_mamba_heads": 8, "tie_word_embeddings": True, **KV_HEADS},
}
"""Sizes that some families need in addition to eight heads."""


# 251 tokens: no number of ranks divides them. Two key-value heads: over four ranks each is held twice. So are the two
# groups of Falcon-H1's mamba; all four ranks hold the one of Bamba and Granite. Ranks share the norms of these.
@pytest.mark.parametrize("family", sorted(FAMILIES))
@torch.no_grad()
def test_ranks_agree_with_the_whole(family: str, tmp_path: Path) -> None:
    # Which family has which is without meaning: several of each kind have each.
    tied = list(FAMILIES).index(family) % 2 == 0
    sizes = {"num_attention_heads": 8, "tie_word_embeddings": tied, **SIZES.get(family, {})}
    make_checkpoint(family, tmp_path, **sizes)
    whole = logits(tmp_path, SoloGroup())
    for ranks in (2, 4):
        for part in run_on_ranks(ranks, lambda tp: logits(tmp_path, tp)):
            torch.testing.assert_close(part, whole, rtol=1e-4, atol=1e-4)
