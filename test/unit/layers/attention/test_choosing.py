"""Latent attention over chosen tokens in plain torch: logits and choices are those of transformers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fixtures.forward_batches import PageRows
from fixtures.tiny_checkpoints import make_checkpoint
from fixtures.transformers_pair import (
    PROMPTS,
    SCENARIOS,
    Pair,
    Scenario,
    cached_prefix,
    check_scenario,
    load_pair,
    native_attention,
    run,
    whole,
)
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.forward.forward_batch import AttentionMetadata, ForwardBatch, IndexQueries
from mysglang.srt.layers.attention import choosing, expanding
from mysglang.srt.layers.attention.choosing import ChoosingBackend, ChoosingMetadata, choose_keys
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.checkpoint_model import TokenModel

TOP_K = 11


@pytest.fixture(scope="module", params=["deepseek_v32", "glm_moe_dsa"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return load_pair(request.param, tmp_path_factory.mktemp("checkpoint"), torch.float32)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short rows are expanded from few tokens on, and queries choose and attend in small pieces."""
    monkeypatch.setattr(expanding, "LONG", 7)
    monkeypatch.setattr(expanding, "FRESH", 4)
    monkeypatch.setattr(choosing, "MOST_NUMBERS", 3000)


@pytest.mark.usefixtures("short")
def test_the_last_token_of_each_row(pair: Pair) -> None:
    """The last layer chooses for all tokens also where the others are not wanted."""
    check_scenario(pair, cached_prefix, page_size=16, last_only=True, attention=native_attention)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_as_transformers(pair: Pair, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, and in every layer the tokens of every query that sees more than it attends to; beside rows that attend
    to all of their tokens, over prefixes that other rows may write in the same step.
    """
    theirs = chosen_by_transformers(pair)
    plans: list[tuple[list[tuple[int, int, int]], ChoosingMetadata]] = []
    pages = PageRows(page_size=4, num_pages=400)
    steps = scenario(pages)

    plan = ChoosingBackend.plan

    def kept(backend: ChoosingBackend, batch: ForwardBatch) -> AttentionMetadata:
        metadata, host = plan(backend, batch), batch.host
        assert isinstance(metadata, ChoosingMetadata)
        rows = list(zip(host.slots.tolist(), host.extend_lens.tolist(), host.seq_lens.tolist(), strict=True))
        plans.append((rows, metadata))
        return metadata

    monkeypatch.setattr(ChoosingBackend, "plan", kept)
    for slot, by_position in run(pair.ours, pages, steps, attention=native_attention).items():
        expected = pair.expected[slot][list(by_position)]
        torch.testing.assert_close(torch.stack(list(by_position.values())), expected, rtol=1e-4, atol=1e-4)
    compared = 0
    for rows, metadata in plans:
        long = [row for row in rows if row[2] > TOP_K]
        for layer, choices in metadata.choices.items():
            for (slot, new, length), found in zip(long, choices, strict=True):
                for position, keys in zip(range(length - new, length), found, strict=True):
                    if position >= TOP_K:
                        assert set(keys.tolist()) == theirs[layer][slot][position]
                        compared += 1
    assert compared > 50


def chosen_by_transformers(pair: Pair) -> dict[int, dict[int, list[set[int]]]]:
    """Layer -> slot of a prompt -> for each position, the positions that it attends to."""
    found: dict[int, dict[int, list[set[int]]]] = {}
    for layer, module in enumerate(pair.theirs.model.layers):
        if module.self_attn.indexer is None:
            continue
        outputs: list[Tensor] = []
        handle = module.self_attn.indexer.register_forward_hook(lambda *call, into=outputs: into.append(call[-1][0]))
        with torch.no_grad():
            for ids in PROMPTS.values():
                pair.theirs(torch.tensor([ids]))
        handle.remove()
        found[layer] = {
            slot: [set(keys) for keys in output.tolist()] for slot, output in zip(PROMPTS, outputs, strict=True)
        }
    return found


def test_up_to_top_k_tokens_it_is_dense_attention(tmp_path: Path) -> None:
    """Bit for bit: the same weights without their indexers are a DeepSeek-V3."""
    make_checkpoint("deepseek_v32", tmp_path, index_topk=max(map(len, PROMPTS.values())))
    sparse = loaded(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file(
        {name: weight for name, weight in weights.items() if ".indexer." not in name}, tmp_path / "model.safetensors"
    )
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["DeepseekV3ForCausalLM"]}))
    found, expected = (
        run(model, PageRows(page_size=4), whole(PageRows(page_size=4)), attention=native_attention)
        for model in (sparse, loaded(tmp_path))
    )
    for slot, by_position in found.items():
        assert all(torch.equal(logits, expected[slot][position]) for position, logits in by_position.items())


def loaded(folder: Path) -> TokenModel:
    config = ModelConfig.from_path(str(folder), dtype="float32")
    return load_model(config, LoadConfig(), torch.device("cpu"), torch.float32)


def test_of_equal_scores_the_earliest_are_chosen() -> None:
    """However many keys there are, also those that a query does not see."""
    keys = torch.tensor([0.0, 2.0, 1.0, 1.0, -1.0, 1.0, 3.0, 1.0])[:, None]
    for length in (5, 6, 7, 8):
        last = choose_keys(IndexQueries(torch.ones(1, 1, 1), torch.ones(1, 1)), keys[:length], 3)
        several = choose_keys(IndexQueries(torch.ones(4, 1, 1), torch.ones(4, 1)), keys[:length], 3)
        assert torch.equal(several[-1:], last)
        assert last.tolist() == [[6, 1, 2] if length > 6 else [1, 2, 3]]


def test_index_keys_move_with_their_pages(pair: Pair) -> None:
    """They are among a layer's buffers, which is all that host tier, transfers and identity ask for."""
    pages = PageRows(page_size=4)
    backend = native_attention(pair.ours, pages)
    specs = pair.ours.attention_specs()
    pool = backend.kv_pool  # type: ignore[attr-defined]
    sizes = [[buffer.shape[-1] for buffer in pool.buffers(spec.layer_id)] for spec in specs]
    own = [spec.chosen is not None and spec.chosen.layer == spec.layer_id for spec in specs]
    assert sizes == [[56, 24] if chooses else [56] for chooses in own] and sum(own) >= 2
    assert pool.nbytes == sum(map(sum, sizes)) * 4 * (pages.num_pages + 1) * 4
