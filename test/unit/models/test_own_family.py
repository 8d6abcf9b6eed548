"""A Llama-like family takes one struct, one row among the architectures and one row among the comparisons: here is one
that the package does not know, and the built-in ones are nowhere else.
"""

import ast
from pathlib import Path

import pytest
import torch
import transformers
from msgspec.structs import replace

from fixtures.tiny_checkpoints import FAMILIES, SIZES
from fixtures.transformers_pair import SCENARIOS, check_scenario, load_pair
from mysglang.srt.configs import architectures
from mysglang.srt.configs.architectures import ARCHITECTURES, DECODERS, decoder
from mysglang.srt.configs.decoder_config import FULL, SLIDING, Heads, Positions
from mysglang.srt.configs.families.llama import LlamaConfig
from mysglang.srt.configs.layer_plan import AttentionPlan, RopePlan

PACKAGE = Path(architectures.__file__).parents[2]
MOST_LINES = 85
"""A family's struct has fewer."""


class MinistralConfig(LlamaConfig, frozen=True, kw_only=True):
    """Llama with a window on some layers."""

    num_key_value_heads: Heads | None = 8
    sliding_window: Positions | None = 4096
    layer_types: list[str] | None = None

    def attention(self, index: int, rope: RopePlan) -> AttentionPlan:
        slides = self.layer_types is None or self.layer_types[index] == SLIDING
        return replace(super().attention(index, rope), window=self.sliding_window if slides else None)


@pytest.mark.parametrize("layer_types", [None, [SLIDING, FULL, SLIDING]], ids=["all alike", "listed"])
def test_a_family_of_its_own(layer_types: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = decoder("Ministral", MinistralConfig)
    monkeypatch.setattr(architectures, "ARCHITECTURES", {**ARCHITECTURES, **own})
    monkeypatch.setitem(
        FAMILIES, "ministral", lambda **more: transformers.MinistralConfig(**SIZES, head_dim=16, **more)
    )
    pair = load_pair("ministral", tmp_path, torch.float32, layer_types=layer_types, sliding_window=20)
    assert pair.ours.plan.windows == ((20, 20, 20) if layer_types is None else (20, None, 20))
    for scenario in SCENARIOS:
        check_scenario(pair, scenario, page_size=16)


@pytest.mark.parametrize("name", DECODERS)
def test_a_built_in_family_is_one_file_and_one_row(name: str) -> None:
    config = DECODERS[name].__name__
    naming = {path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if config in path.read_text()}
    own = [path for path in naming if path.parent.name == "families"]
    assert naming - set(own) == {Path("srt/configs/architectures.py")}
    (file,) = (path for path in own if f"class {config}(" in (PACKAGE / path).read_text())
    classes = [node for node in ast.parse((PACKAGE / file).read_text()).body if isinstance(node, ast.ClassDef)]
    (own_class,) = (node for node in classes if node.name == config)
    assert own_class.end_lineno is not None and own_class.end_lineno - own_class.lineno + 1 < MOST_LINES
    text = (PACKAGE / "srt/configs/architectures.py").read_text()
    assert text.count(f'    "{name}": "{file.stem}:{config}",') == 1
