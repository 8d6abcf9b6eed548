"""A step looks at no value: it runs on tensors that have none, so it can be captured in a CUDA graph."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fixtures.forward_batches import PageRows, Row, forward_batch, worker_batch
from fixtures.row_states import RowStates
from fixtures.state_runs import runs_of
from fixtures.tiny_checkpoints import FAMILIES, VOCAB_SIZE, make_checkpoint
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.distributed.groups import SoloGroup
from mysglang.srt.distributed.pipeline import WholeModel
from mysglang.srt.forward.forward_batch import Ask, AttentionSpec, ForwardBatch, Rotation, StateStep
from mysglang.srt.layers.context import LayerContext
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.registry import model_class

META = torch.device("meta")


class NoStore:
    """Keeps nothing, turns nothing."""

    def space_of(self, layer_id: int) -> int:
        return 0

    def store(self, layer_id: int, loc: Tensor, k: Tensor, v: Tensor) -> None:
        pass

    def store_rotated(
        self, layer_id: int, loc: Tensor, q: Tensor, k: Tensor, v: Tensor, positions: Tensor, rotation: Rotation
    ) -> None:
        assert rotation.cos_sin.shape[0] > 0 and positions.shape == loc.shape

    def store_index(self, layer_id: int, loc: Tensor, keys: Tensor) -> None:
        pass


class NoAttention:
    """Gives back anything."""

    kv_pool = NoStore()

    def plan(self, batch: ForwardBatch) -> None:
        return None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, batch: ForwardBatch) -> Tensor:
        return q.new_empty(len(q), spec.num_heads * spec.value_dim)

    def forward_chosen(self, q: Tensor, rows: Tensor, spec: AttentionSpec, batch: ForwardBatch, ask: Ask) -> Tensor:
        return self.forward(q, rows, rows, spec, batch)


class ManyRanks(SoloGroup):
    """One rank's shapes of a group of two."""

    size = 2

    def all_gather(self, x: Tensor) -> Tensor:
        return torch.cat((x, x), dim=-1)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("group", [SoloGroup(), ManyRanks()], ids=["alone", "of two"])
def test_runs_without_values(family: str, group: SoloGroup, tmp_path: Path) -> None:
    make_checkpoint(family, tmp_path)
    config = ModelConfig.from_path(str(tmp_path))
    with META:
        model = model_class(config.served_as, CausalLM)(
            config, LayerContext(dtype=torch.bfloat16, tp=group), WholeModel()
        )
    host = worker_batch([Row(0, [1, 2, 3]), Row(1, [4])], PageRows(page_size=4))
    batch = forward_batch(host, NoAttention(), device=META)
    if model.plan.has_states:
        single, at = torch.tensor([1], device=META), torch.tensor([3], device=META)
        batch.states = StateStep(RowStates.of(model, META).pool, runs_of([3, 1], [(0, 3, 0, 7)], "meta"), single, at)
    logits = model.compute_logits(model(batch))
    assert logits.device == META and logits.shape == (4, VOCAB_SIZE) and logits.dtype == torch.bfloat16
    assert len(model.attention_specs()) == len(config.plan.attentions)
    assert len(model.state_specs()) == len(config.plan.states)
    heads = [each.num_heads // group.size for each in config.plan.attentions[:1]]
    assert [spec.num_heads for spec in model.attention_specs()[:1]] == heads
