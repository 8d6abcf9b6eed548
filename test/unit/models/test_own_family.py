"""A Llama-like family takes one struct, one row among the architectures and one row among the comparisons: here is one
that the package does not know, and the built-in ones stand nowhere else.
"""

from pathlib import Path

import pytest
import torch
import transformers
from msgspec.structs import replace

from fixtures.tiny_checkpoints import FAMILIES, SIZES
from fixtures.transformers_pair import SCENARIOS, check_scenario, load_pair
from mysglang.srt.configs import architectures
from mysglang.srt.configs.architectures import ARCHITECTURES, DECODERS, decoder
from mysglang.srt.configs.decoder_config import Heads, Positions
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan

PACKAGE = Path(architectures.__file__).parents[2]
MOST_LINES = 100


class SmolLM3Config(LlamaConfig, frozen=True, kw_only=True):
    """Llama without rotary positions on some layers: SmolLM3, without its windows."""

    num_key_value_heads: Heads | None = 4
    max_position_embeddings: Positions = 32768
    tie_word_embeddings: bool = True
    no_rope_layers: list[int] | None = None
    no_rope_layer_interval: Heads = 4

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        listed, every = self.no_rope_layers, self.no_rope_layer_interval
        turned = (index + 1) % every != 0 if listed is None else listed[index] == 1
        return replace(super().attention(index, rope), rope=rope if turned else None)


@pytest.mark.parametrize("no_rope_layers", [None, [0, 1, 0]], ids=["every second", "listed"])
def test_a_family_of_its_own(no_rope_layers: list[int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, row in decoder("SmolLM3", SmolLM3Config).items():
        monkeypatch.setitem(ARCHITECTURES, name, row)
    monkeypatch.setitem(FAMILIES, "smollm3", lambda **more: transformers.SmolLM3Config(**SIZES, pad_token_id=0, **more))
    pair = load_pair("smollm3", tmp_path, torch.float32, no_rope_layers=no_rope_layers, no_rope_layer_interval=2)
    unturned = [layer.attention.rope is None for layer in pair.ours.plan.layers]
    assert unturned == ([False, True, False] if no_rope_layers is None else [True, False, True])
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=16)


@pytest.mark.parametrize("name", DECODERS)
def test_a_built_in_family_is_one_file_and_one_row(name: str) -> None:
    config = DECODERS[name].__name__
    naming = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if config in path.read_text()}
    own = [path for path in naming if path.parent.name == "families"]
    assert naming - set(own) == {Path("srt/configs/architectures.py")}
    (file,) = (path for path in own if f"class {config}(" in (PACKAGE / path).read_text())
    assert len((PACKAGE / file).read_text().splitlines()) < MOST_LINES
    text = (PACKAGE / "srt/configs/architectures.py").read_text()
    assert text.count(f'    "{name}": {config},') == 1
