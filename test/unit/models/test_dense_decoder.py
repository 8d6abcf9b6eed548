"""A description says everything: plain torch, given nothing else, gets the logits of the model."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import PreTrainedModel

from fixtures.dense_reference import logits_of
from fixtures.tiny_checkpoints import VOCAB_SIZE, make_checkpoint
from mysglang.srt.configs.layer_plan import LayerPlan, Matrix, NormPlan, Size
from mysglang.srt.configs.load_config import LoadConfig
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.model_loader.loader import load_model
from mysglang.srt.models.causal_lm import CausalLM
from mysglang.srt.models.dense_decoder import CannotDescribe
from mysglang.srt.models.describing import unsaid

VARIANTS = {
    "llama": ("llama", {}),
    "llama with biases, tied": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mistral with a window": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "phi3, of which a part of each head is turned": ("phi3", {"partial_rotary_factor": 0.5}),
    "ernie4_5, whose neighbouring lanes are turned": ("ernie4_5", {}),
    "helium": ("helium", {}),
    "qwen3_moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "qwen3_moe with gates as they are": ("qwen3_moe", {"norm_topk_prob": False}),
    "qwen3_moe with a layer without experts": ("qwen3_moe", {"mlp_only_layers": [1]}),
}

PLAIN = LoadConfig()
IDS = torch.from_numpy(np.random.default_rng(0).integers(0, VOCAB_SIZE, 41))


PLUS_ONE = NormPlan(eps=1e-6, kind="rms_plus_one")


class NoMlp:
    """A plan that nothing else knows."""

    def matrices(self, hidden: Size) -> Iterator[Matrix]:
        yield from ()


def load(variant: str, folder: Path, load_config: LoadConfig = PLAIN) -> tuple[PreTrainedModel, CausalLM]:
    family, overrides = VARIANTS[variant]
    theirs = make_checkpoint(family, folder, **overrides)
    config = ModelConfig.from_path(str(folder), dtype="float32")
    return theirs, load_model(config, load_config, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_is_all_that_the_model_is(variant: str, tmp_path: Path) -> None:
    theirs, ours = load(variant, tmp_path)
    described = ours.described()
    torch.testing.assert_close(logits_of(described, IDS), theirs(IDS[None]).logits[0], rtol=1e-4, atol=1e-4)


FIRST_LAYER: dict[str, Callable[[LayerPlan], LayerPlan]] = {
    "norms after": lambda layer: replace(layer, norms=replace(layer.norms, after_mlp="more")),
    "1 + w": lambda layer: replace(layer, norms=replace(layer.norms, norm=PLUS_ONE)),
    "1 + w of heads": lambda layer: replace(layer, attention=replace(layer.attention, qk_norm=PLUS_ONE)),
    "without rotary": lambda layer: replace(layer, attention=replace(layer.attention, rope=None)),
    "another kind": lambda layer: replace(layer, mlp=NoMlp()),
}


@pytest.mark.parametrize("change", FIRST_LAYER)
def test_says_what_of_a_layer_it_has_no_words_for(change: str, tmp_path: Path) -> None:
    plan = load("llama", tmp_path)[1].plan
    assert unsaid(plan) == []
    first, *others = plan.layers
    (said,) = unsaid(replace(plan, layers=(FIRST_LAYER[change](first), *others)))
    assert change.removesuffix(" of heads") in said


@pytest.mark.parametrize(("fact", "word"), [("embedding_scale", "embeddings"), ("logit_cap", "logits")])
def test_says_what_of_the_whole_it_has_no_words_for(fact: str, word: str, tmp_path: Path) -> None:
    model = load("llama", tmp_path)[1]
    model.plan = replace(model.plan, **{fact: 30.0})  # type: ignore[arg-type]
    with pytest.raises(CannotDescribe, match=word):
        model.described()


@pytest.mark.parametrize("family", ["qwen2_moe", "ernie4_5_moe", "glm4_moe"])
def test_does_not_describe_experts_of_another_kind(family: str, tmp_path: Path) -> None:
    """A shared expert, corrections, groups, and gates of another kind."""
    make_checkpoint(family, tmp_path)
    config = ModelConfig.from_path(str(tmp_path), dtype="float32")
    with pytest.raises(CannotDescribe, match="its layers have MLPs of another kind"):
        load_model(config, PLAIN, torch.device("cpu"), torch.float32).described()


@pytest.mark.parametrize("variant", ["llama", "qwen3_moe"])
def test_does_not_describe_weights_of_another_kind(variant: str, tmp_path: Path) -> None:
    model = load(variant, tmp_path, LoadConfig(quantization="int8wo"))[1]
    with pytest.raises(CannotDescribe, match="quantized"):
        model.described()
