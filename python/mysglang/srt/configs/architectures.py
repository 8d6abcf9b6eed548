"""The architectures that mysglang serves: one row for each name under `architectures` in a config.json.

Decoders have a row for each family, from which the names of its heads follow. Classes of models are named by strings,
so that processes without torch can tell what is known; `models/registry.py` imports them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from mysglang.srt.configs.decoder_config import DecoderConfig
from mysglang.srt.configs.families.arcee import ArceeConfig
from mysglang.srt.configs.families.baichuan import Baichuan2Config, BaichuanConfig
from mysglang.srt.configs.families.bamba import BambaConfig
from mysglang.srt.configs.families.cohere import Cohere2Config, CohereConfig
from mysglang.srt.configs.families.deepseek import DeepseekV2Config, DeepseekV3Config
from mysglang.srt.configs.families.deepseek_v32 import DeepseekV32Config, GlmMoeDsaConfig
from mysglang.srt.configs.families.dots1 import Dots1Config
from mysglang.srt.configs.families.ernie4_5 import Ernie45Config, Ernie45MoeConfig
from mysglang.srt.configs.families.exaone4 import Exaone4Config
from mysglang.srt.configs.families.falcon import FalconConfig, FalconH1Config
from mysglang.srt.configs.families.gemma import Gemma2Config, Gemma3Config, GemmaConfig, VaultGemmaConfig
from mysglang.srt.configs.families.gemma3n import Gemma3nConfig
from mysglang.srt.configs.families.gemma4 import Gemma4Config
from mysglang.srt.configs.families.glm import Glm4Config, Glm4MoeConfig, Glm4MoeLiteConfig, GlmConfig
from mysglang.srt.configs.families.gpt_oss import GptOssConfig
from mysglang.srt.configs.families.granite import GraniteConfig, GraniteHybridConfig, GraniteMoeConfig
from mysglang.srt.configs.families.helium import HeliumConfig
from mysglang.srt.configs.families.hunyuan import HunyuanConfig, HunyuanMoeConfig
from mysglang.srt.configs.families.internlm import InternLM2Config, InternLM3Config
from mysglang.srt.configs.families.jamba import JambaConfig
from mysglang.srt.configs.families.kimi_linear import KimiLinearConfig
from mysglang.srt.configs.families.lfm2 import Lfm2Config, Lfm2MoeConfig
from mysglang.srt.configs.families.llama import Llama4Config, LlamaConfig
from mysglang.srt.configs.families.mamba import FalconMambaConfig, Mamba2Config, SelectiveConfig
from mysglang.srt.configs.families.minimax import MiniMaxConfig
from mysglang.srt.configs.families.minimax_m2 import MiniMaxM2Config
from mysglang.srt.configs.families.mistral import Ministral3Config, MistralConfig, MixtralConfig
from mysglang.srt.configs.families.nemotron import NemotronConfig, NemotronHConfig
from mysglang.srt.configs.families.olmo import Olmo2Config, Olmo3Config, OlmoeConfig
from mysglang.srt.configs.families.olmo_hybrid import OlmoHybridConfig
from mysglang.srt.configs.families.phi import Phi3Config, PhiConfig, PhimoeConfig
from mysglang.srt.configs.families.qwen import Qwen2Config, Qwen2MoeConfig, Qwen3Config, Qwen3MoeConfig
from mysglang.srt.configs.families.qwen3_next import Qwen3NextConfig, Qwen35Config, Qwen35MoeConfig
from mysglang.srt.configs.families.seed_oss import SeedOssConfig
from mysglang.srt.configs.families.smollm3 import SmolLM3Config
from mysglang.srt.configs.families.stablelm import StableLmConfig
from mysglang.srt.configs.families.starcoder2 import Starcoder2Config
from mysglang.srt.configs.plug_ins import load_plug_in, plug_ins
from mysglang.srt.errors import ConfigError

Task: TypeAlias = Literal["generate", "embed", "classify"]
"""The output of a model: generated text, a vector for each prompt, or a score for each of its labels."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """Facts about an architecture that are needed before its model class is imported."""

    model: str
    """The model class as `file:Class` in `package`."""
    config: type[DecoderConfig] | None = None
    """Config class of a decoder's family; None for an encoder, whose tokens also see later tokens."""
    task: Task = "generate"
    labels: int = 2
    """Number of labels of a classifier whose config.json names none."""
    embedding: str | None = None
    """The architecture that is the same without its head, for a model that generates but is to embed."""
    inside: str | None = None
    """The module that holds the decoder in a checkpoint of several models, such as one with a tower for pictures; None:
    the checkpoint is of the decoder alone.
    """
    positions_after_padding: bool = False
    """True if positions are counted from pad_token_id + 1 on, as RoBERTa does."""
    foreign: bool = False
    """True if the layers are transformers' code, so that no plan is made of them."""
    package: str = "mysglang.srt.models"
    """Package of the class. A package that brings families of its own names itself."""

    @property
    def encoder(self) -> bool:
        """True if prompts are computed whole only, and nothing is cached."""
        return self.config is None and not self.foreign


DECODERS: dict[str, type[DecoderConfig]] = {
    "Llama": LlamaConfig,
    "Mistral": MistralConfig,
    "Qwen2": Qwen2Config,
    "Qwen3": Qwen3Config,
    "Qwen3Moe": Qwen3MoeConfig,
    "Qwen3Next": Qwen3NextConfig,
    "Qwen3_5": Qwen35Config,
    "Qwen3_5Moe": Qwen35MoeConfig,
    "Gemma2": Gemma2Config,
    "Gemma3": Gemma3Config,
    "Gemma3n": Gemma3nConfig,
    "Gemma4": Gemma4Config,
    "Mixtral": MixtralConfig,
    "Qwen2Moe": Qwen2MoeConfig,
    "Phi3": Phi3Config,
    "Glm4": Glm4Config,
    "Glm4Moe": Glm4MoeConfig,
    "GptOss": GptOssConfig,
    "GraniteMoe": GraniteMoeConfig,
    "GraniteMoeShared": GraniteMoeConfig,
    "Ernie4_5_Moe": Ernie45MoeConfig,
    "HunYuanDenseV1": HunyuanConfig,
    "HunYuanMoEV1": HunyuanMoeConfig,
    "MiniMaxM2": MiniMaxM2Config,
    "Dots1": Dots1Config,
    "Phimoe": PhimoeConfig,
    "VaultGemma": VaultGemmaConfig,
    "Llama4": Llama4Config,
    "Granite": GraniteConfig,
    "Olmo2": Olmo2Config,
    "Olmo3": Olmo3Config,
    "Olmoe": OlmoeConfig,
    "Exaone4": Exaone4Config,
    "Ernie4_5": Ernie45Config,
    "SmolLM3": SmolLM3Config,
    "SeedOss": SeedOssConfig,
    "Cohere": CohereConfig,
    "Cohere2": Cohere2Config,
    "Starcoder2": Starcoder2Config,
    "StableLm": StableLmConfig,
    "Nemotron": NemotronConfig,
    "Arcee": ArceeConfig,
    "Helium": HeliumConfig,
    "Gemma": GemmaConfig,
    "Glm": GlmConfig,
    "Phi": PhiConfig,
    "Ministral3": Ministral3Config,
    "Falcon": FalconConfig,
    "InternLM2": InternLM2Config,
    "InternLM3": InternLM3Config,
    "BaiChuan": BaichuanConfig,
    "Baichuan": Baichuan2Config,
    "DeepseekV2": DeepseekV2Config,
    "DeepseekV3": DeepseekV3Config,
    "DeepseekV32": DeepseekV32Config,
    "GlmMoeDsa": GlmMoeDsaConfig,
    "Glm4MoeLite": Glm4MoeLiteConfig,
    "Bamba": BambaConfig,
    "GraniteMoeHybrid": GraniteHybridConfig,
    "FalconH1": FalconH1Config,
    "NemotronH": NemotronHConfig,
    "KimiLinear": KimiLinearConfig,
    "OlmoHybrid": OlmoHybridConfig,
    "MiniMax": MiniMaxConfig,
    "Jamba": JambaConfig,
    "Mamba": SelectiveConfig,
    "FalconMamba": FalconMambaConfig,
    "Mamba2": Mamba2Config,
    "Lfm2": Lfm2Config,
    "Lfm2Moe": Lfm2MoeConfig,
}
"""Families, by what the names of their architectures begin with."""


def decoder(name: str, config: type[DecoderConfig]) -> dict[str, Architecture]:
    """Returns the architectures of a family, which generate, make vectors and score labels."""
    vectors = f"{name}Model"
    return {
        f"{name}ForCausalLM": Architecture("causal_lm:CausalLM", config, embedding=vectors),
        vectors: Architecture("pooling_decoder:PoolingDecoder", config, "embed"),
        f"{name}ForSequenceClassification": Architecture("pooling_decoder:Classifier", config, "classify"),
    }


def _reward(config: type[DecoderConfig], model: str = "RewardModel") -> Architecture:
    """Declares a reward model, whose answer is one number if config.json names no labels."""
    return Architecture(f"pooling_decoder:{model}", config, "classify", labels=1)


_ROBERTA = Architecture("bert:RobertaModel", task="embed", positions_after_padding=True)
_ROBERTA_CLASSIFIER = replace(_ROBERTA, model="bert:RobertaForSequenceClassification", task="classify")

WITH_TOWERS = ("Gemma3", "Gemma3n", "Gemma4", "Qwen3_5", "Qwen3_5Moe", "Llama4")
"""Families whose decoders also occur in checkpoints with a vision tower. Text is served, and the tower is not
loaded.
"""

TEXT_CLASSIFIERS = ("Gemma3", "Qwen3_5")
"""Families among these for which transformers has a classifier of text."""


def _of_text() -> dict[str, Architecture]:
    """Returns the decoders of these families that make vectors or score labels, by transformers' names for them.

    Without Text in the name, transformers' class is that of a checkpoint with a tower.
    """
    vectors = {f"{name}TextModel": decoder(name, DECODERS[name])[f"{name}Model"] for name in WITH_TOWERS}
    kind = "ForSequenceClassification"
    return vectors | {f"{name}Text{kind}": decoder(name, DECODERS[name])[f"{name}{kind}"] for name in TEXT_CLASSIFIERS}


def _with_tower(name: str) -> Architecture:
    """Returns the decoder of the family in such a checkpoint."""
    return replace(decoder(name, DECODERS[name])[f"{name}ForCausalLM"], inside="language_model")


ARCHITECTURES: dict[str, Architecture] = {
    **{row: made for name, config in DECODERS.items() for row, made in decoder(name, config).items()},
    **{f"{name}ForConditionalGeneration": _with_tower(name) for name in WITH_TOWERS},
    **_of_text(),
    "PhiMoEForCausalLM": decoder("Phimoe", PhimoeConfig)["PhimoeForCausalLM"],
    "Mistral3ForConditionalGeneration": replace(
        decoder("Ministral3", Ministral3Config)["Ministral3ForCausalLM"], inside="language_model"
    ),
    **{
        f"MiniMax{each}ForCausalLM": decoder("MiniMax", MiniMaxConfig)["MiniMaxForCausalLM"]
        for each in ("Text01", "M1")
    },
    "LlamaEmbeddingModel": decoder("Llama", LlamaConfig)["LlamaModel"],
    "Qwen2ForRewardModel": _reward(Qwen2Config),
    "Qwen3ForRewardModel": _reward(Qwen3Config),
    "InternLM2ForRewardModel": _reward(InternLM2Config, "ValueModel"),
    "BertModel": Architecture("bert:BertModel", task="embed"),
    "BertForSequenceClassification": Architecture("bert:BertForSequenceClassification", task="classify"),
    "RobertaModel": _ROBERTA,
    "RobertaForSequenceClassification": _ROBERTA_CLASSIFIER,
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForSequenceClassification": _ROBERTA_CLASSIFIER,
}

FOREIGN = Architecture("transformers_backend.model:TransformersCausalLM", foreign=True)
"""Every causal language model of transformers that our own code does not compute."""


def find_architecture(name: str) -> Architecture | None:
    """Returns the built-in row of that name, or the row of an installed package; None if there is neither.

    Raises ConfigError for a package whose families cannot be read, and for two packages that bring the same.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    found = {
        str(point.dist and point.dist.name): rows[name]
        for point in plug_ins(name)
        if name in (rows := load_plug_in(point, Architecture, DecoderConfig, decoder))
    }
    if len(found) > 1:
        raise ConfigError(
            f"architecture {name} is brought by several packages: {', '.join(found)}; uninstall all but one"
        )
    return next(iter(found.values()), None)
