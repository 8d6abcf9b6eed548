"""The architectures that mysglang serves: one row for each name under `architectures` in a config.json.

Decoders have a row for each family, from which the names of its heads follow. Classes of models are named by strings,
so that processes without torch can tell what is known; `models/registry.py` imports them. Config classes of families
are named by strings, too, and imported when they are first asked for: a server needs one of some seventy.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias, TypeVar, get_args

from mysglang.srt.configs.decoder_config import DecoderConfig
from mysglang.srt.configs.plug_ins import load_plug_in, plug_ins
from mysglang.srt.errors import ConfigError

Task: TypeAlias = Literal["generate", "embed", "classify"]
"""The output of a model: generated text, a vector for each prompt, or a score for each of its labels."""


FAMILIES = "mysglang.srt.configs.families"
OWN_PACKAGE = "mysglang.srt.models"
"""Package of the classes of built-in models."""

Value = TypeVar("Value")


class Lazily(Mapping[str, Value]):
    """A table whose names are known, and whose values are made when they are first asked for."""

    def __init__(self, makers: Mapping[str, Callable[[], Value]]) -> None:
        self._makers = makers
        self._made: dict[str, Value] = {}

    def __getitem__(self, name: str) -> Value:
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __contains__(self, name: object) -> bool:
        # Mapping's own would make the value.
        return name in self._makers

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)


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
    carries_code: bool = False
    """True if published checkpoints name code of their own (auto_map), which this class replaces, whatever others of
    the family do. The code is never run.
    """
    package: str = OWN_PACKAGE
    """Package of the class. A package that brings families of its own names itself."""

    @property
    def encoder(self) -> bool:
        """True if prompts are computed whole only, and nothing is cached."""
        return self.config is None and not self.foreign

    @property
    def replaces_code(self) -> bool:
        """True if a checkpoint may name code of its own."""
        return self.carries_code or (self.config is not None and self.config.carries_code)


_PLACES = {
    "Llama": "llama:LlamaConfig",
    "Mistral": "mistral:MistralOfLayersConfig",
    "Qwen2": "qwen:Qwen2Config",
    "MiMo": "qwen:MiMoConfig",
    "Qwen3": "qwen:Qwen3Config",
    "Qwen3Moe": "qwen:Qwen3MoeConfig",
    "Qwen3Next": "qwen3_next:Qwen3NextConfig",
    "Qwen3_5": "qwen3_next:Qwen35Config",
    "Qwen3_5Moe": "qwen3_next:Qwen35MoeConfig",
    "Gemma2": "gemma:Gemma2Config",
    "Gemma3": "gemma:Gemma3Config",
    "Gemma3n": "gemma3n:Gemma3nConfig",
    "Gemma4": "gemma4:Gemma4Config",
    "Mixtral": "mistral:MixtralConfig",
    "Qwen2Moe": "qwen:Qwen2MoeConfig",
    "Phi3": "phi:Phi3Config",
    "Glm4": "glm:Glm4Config",
    "Glm4Moe": "glm:Glm4MoeConfig",
    "GptOss": "gpt_oss:GptOssConfig",
    "GraniteMoe": "granite:GraniteMoeConfig",
    "GraniteMoeShared": "granite:GraniteMoeConfig",
    "Ernie4_5_Moe": "ernie4_5:Ernie45MoeConfig",
    "HunYuanDenseV1": "hunyuan:HunyuanConfig",
    "HunYuanMoEV1": "hunyuan:HunyuanMoeConfig",
    "MiniMaxM2": "minimax_m2:MiniMaxM2Config",
    "Dots1": "dots1:Dots1Config",
    "Phimoe": "phi:PhimoeConfig",
    "VaultGemma": "gemma:VaultGemmaConfig",
    "Llama4": "llama:Llama4Config",
    "Granite": "granite:GraniteConfig",
    "Olmo2": "olmo:Olmo2Config",
    "Olmo3": "olmo:Olmo3Config",
    "Olmoe": "olmo:OlmoeConfig",
    "Exaone4": "exaone4:Exaone4Config",
    "Ernie4_5": "ernie4_5:Ernie45Config",
    "SmolLM3": "smollm3:SmolLM3Config",
    "SeedOss": "seed_oss:SeedOssConfig",
    "Cohere": "cohere:CohereConfig",
    "Cohere2": "cohere:Cohere2Config",
    "Starcoder2": "starcoder2:Starcoder2Config",
    "StableLm": "stablelm:StableLmConfig",
    "Nemotron": "nemotron:NemotronConfig",
    "Arcee": "arcee:ArceeConfig",
    "Helium": "helium:HeliumConfig",
    "Gemma": "gemma:GemmaConfig",
    "Glm": "glm:GlmConfig",
    "Phi": "phi:PhiConfig",
    "Ministral3": "mistral:Ministral3Config",
    "Falcon": "falcon:FalconConfig",
    "InternLM2": "internlm:InternLM2Config",
    "InternLM3": "internlm:InternLM3Config",
    "BaiChuan": "baichuan:BaichuanConfig",
    "Baichuan": "baichuan:Baichuan2Config",
    "DeepseekV2": "deepseek:DeepseekV2Config",
    "DeepseekV3": "deepseek:DeepseekV3Config",
    "DeepseekV32": "deepseek_v32:DeepseekV32Config",
    "GlmMoeDsa": "deepseek_v32:GlmMoeDsaConfig",
    "Glm4MoeLite": "glm:Glm4MoeLiteConfig",
    "Bamba": "bamba:BambaConfig",
    "GraniteMoeHybrid": "granite:GraniteHybridConfig",
    "FalconH1": "falcon:FalconH1Config",
    "NemotronH": "nemotron:NemotronHConfig",
    "KimiLinear": "kimi_linear:KimiLinearConfig",
    "OlmoHybrid": "olmo_hybrid:OlmoHybridConfig",
    "MiniMax": "minimax:MiniMaxConfig",
    "Jamba": "jamba:JambaConfig",
    "Mamba": "mamba:SelectiveConfig",
    "FalconMamba": "mamba:FalconMambaConfig",
    "Mamba2": "mamba:Mamba2Config",
    "GPT2": "gpt2:GPT2Config",
    "GPTJ": "gpt:GPTJConfig",
    "GPTNeo": "gpt:GPTNeoConfig",
    "Zamba2": "zamba2:Zamba2Config",
    "Lfm2": "lfm2:Lfm2Config",
    "Lfm2Moe": "lfm2:Lfm2MoeConfig",
}
"""Config classes of families as `file:Class`, by what the names of their architectures begin with."""


def _config(place: str) -> type[DecoderConfig]:
    """Imports the config class of a family."""
    file, _, name = place.partition(":")
    found: type[DecoderConfig] = getattr(importlib.import_module(f"{FAMILIES}.{file}"), name)
    return found


DECODERS: Mapping[str, type[DecoderConfig]] = Lazily({name: partial(_config, at) for name, at in _PLACES.items()})
"""Families, by what the names of their architectures begin with."""


def decoder(name: str, config: type[DecoderConfig]) -> dict[str, Architecture]:
    """Returns the architectures of a family, which generate, make vectors and score labels."""
    generates, makes_vectors, scores = heads(name)
    return {
        generates: Architecture("causal_lm:CausalLM", config, embedding=makes_vectors),
        makes_vectors: Architecture("pooling_decoder:PoolingDecoder", config, "embed"),
        scores: Architecture("pooling_decoder:Classifier", config, "classify"),
    }


def heads(name: str) -> tuple[str, str, str]:
    """Returns the names of the architectures of a family that `decoder` makes."""
    return f"{name}ForCausalLM", f"{name}Model", f"{name}ForSequenceClassification"


def _row(family: str, architecture: str, inside: str | None = None) -> Architecture:
    """Returns one of a family's architectures, which may be inside a checkpoint of several models."""
    return replace(decoder(family, DECODERS[family])[architecture], inside=inside)


def _reward(family: str, model: str = "RewardModel") -> Architecture:
    """Declares a reward model, whose answer is one number if config.json names no labels."""
    return Architecture(f"pooling_decoder:{model}", DECODERS[family], "classify", labels=1, carries_code=True)


_ROBERTA = Architecture("bert:RobertaModel", task="embed", positions_after_padding=True)
_ROBERTA_CLASSIFIER = replace(_ROBERTA, model="bert:RobertaForSequenceClassification", task="classify")
_ENCODERS = {
    "BertModel": Architecture("bert:BertModel", task="embed"),
    "BertForSequenceClassification": Architecture("bert:BertForSequenceClassification", task="classify"),
    "RobertaModel": _ROBERTA,
    "RobertaForSequenceClassification": _ROBERTA_CLASSIFIER,
    "XLMRobertaModel": _ROBERTA,
    "XLMRobertaForSequenceClassification": _ROBERTA_CLASSIFIER,
}

WITH_TOWERS = ("Gemma3", "Gemma3n", "Gemma4", "Qwen3_5", "Qwen3_5Moe", "Llama4")
"""Families whose decoders also occur in checkpoints with a vision tower. Text is served, and the tower is not
loaded.
"""

TEXT_CLASSIFIERS = ("Gemma3", "Qwen3_5")
"""Families among these for which transformers has a classifier of text."""

TOWER = "language_model"
"""The decoder's module in a checkpoint with a tower."""

# Without Text in the name, transformers' class of these families is that of a checkpoint with a tower.
_OTHER_NAMES: Mapping[str, tuple[str, str, str | None]] = {
    **{f"{name}ForConditionalGeneration": (name, f"{name}ForCausalLM", TOWER) for name in WITH_TOWERS},
    **{f"{name}TextModel": (name, f"{name}Model", None) for name in WITH_TOWERS},
    **{
        f"{name}TextForSequenceClassification": (name, f"{name}ForSequenceClassification", None)
        for name in TEXT_CLASSIFIERS
    },
    "PhiMoEForCausalLM": ("Phimoe", "PhimoeForCausalLM", None),
    "Mistral3ForConditionalGeneration": ("Ministral3", "Ministral3ForCausalLM", TOWER),
    **{f"MiniMax{each}ForCausalLM": ("MiniMax", "MiniMaxForCausalLM", None) for each in ("Text01", "M1")},
    "Ernie4_5_ForCausalLM": ("Ernie4_5", "Ernie4_5ForCausalLM", None),
    "GPT2LMHeadModel": ("GPT2", "GPT2ForCausalLM", None),
    "LlamaEmbeddingModel": ("Llama", "LlamaModel", None),
}
"""Architecture -> its family, the family's architecture that it is the same as, and the module that it is in."""

ARCHITECTURES: Mapping[str, Architecture] = Lazily(
    {
        **{name: partial(_row, family, name) for family in DECODERS for name in heads(family)},
        **{name: partial(_row, *same) for name, same in _OTHER_NAMES.items()},
        "Qwen2ForRewardModel": partial(_reward, "Qwen2"),
        "Qwen3ForRewardModel": partial(_reward, "Qwen3"),
        "InternLM2ForRewardModel": partial(_reward, "InternLM2", "ValueModel"),
        **{name: partial(replace, row) for name, row in _ENCODERS.items()},
    }
)

FOREIGN = Architecture("transformers_backend.model:TransformersCausalLM", foreign=True)
"""Every causal language model of transformers that our own code does not compute."""


def find_architecture(name: str) -> Architecture | None:
    """Returns the built-in row of that name, or the row of an installed package; None if there is neither.

    Raises ConfigError for a package whose families cannot be read, and for two packages that bring the same.
    """
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]
    found = [
        (str(point.dist and point.dist.name), rows[name])
        for point in plug_ins(name)
        if name in (rows := load_plug_in(point, Architecture, DecoderConfig, decoder, _wrong))
    ]
    packages = list(dict.fromkeys(package for package, _ in found))
    if len(packages) > 1:
        raise ConfigError(
            f"architecture {name} is brought by several packages: {', '.join(packages)}; uninstall all but one"
        )
    if len(found) > 1:
        raise ConfigError(f"architecture {name} is brought {len(found)} times by the package {packages[0]}")
    return found[0][1] if found else None


def _wrong(row: Architecture) -> str | None:
    """Returns what is wrong with a row of a package, as far as it shows before the class is imported; None: nothing."""
    if not (isinstance(row.model, str) and re.fullmatch(r"[\w.]+:\w+", row.model)):
        return f"model is {row.model!r}, and must be a text file:Class"
    if not (isinstance(row.package, str) and row.package):
        return f"package is {row.package!r}, and must be the name of a package"
    if row.config is not None and not (isinstance(row.config, type) and issubclass(row.config, DecoderConfig)):
        return f"config is {row.config!r}, and must be a subclass of DecoderConfig or None"
    if row.task not in get_args(Task):
        return f"task is {row.task!r}, and must be one of {', '.join(get_args(Task))}"
    return None
