"""PoolingConfig: how a model that does not generate makes one vector of a prompt, and the meaning of the vector.

Read from config.json and, where they are beside it, from the files of sentence-transformers: modules.json, the
pooling module's config.json, sentence_bert_config.json. Plain JSON; no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec

from mysglang.srt.configs.architectures import Architecture, Task
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import read_json, read_json_if_there
from mysglang.srt.utils.json_errors import in_words
from mysglang.srt.utils.plain_files import JSON_LIMIT, is_there, read_plain

PoolingMode: TypeAlias = Literal["last", "cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean"]

MODULES_FILE = "modules.json"
LENGTH_FILE = "sentence_bert_config.json"

ORDER = ("Transformer", "Pooling", "Dense", "Normalize")
"""Modules that are supported, in the order in which they may stand."""
MAX_DENSE = 16
"""Dense modules of a model. Known models have at most two."""
MAX_DENSE_WIDTH = 1 << 17

MAX_LABELS = 1 << 17
"""Labels of a classifier."""

Likelihood: TypeAlias = Literal["softmax", "sigmoid", "identity"]

_MODE_KEYS: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
DenseActivation: TypeAlias = Literal["Identity", "Tanh", "GELU", "ReLU", "SiLU", "Sigmoid"]

_DENSE_ACTIVATIONS: dict[str, DenseActivation] = {
    f"{module}.{name}": name
    for name in get_args(DenseActivation)
    for module in ("torch.nn", f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}")
}
"""Names in config.json of a Dense module, which are looked up here, and never imported."""

MODES = "one of cls, lasttoken, mean, max, mean_sqrt_len_tokens and weightedmean"

OF_GGUF = "gguf.pooling_type"
"""Key of the mode that a GGUF file names; no config.json has it."""

_MODE_NAMES = {"lasttoken": "last"}
"""The newer spelling, one string under `pooling_mode`, where it differs from ours."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseConfig:
    """A linear layer that pooled vectors pass through, and its activation: sentence-transformers' module Dense."""

    path: str
    """Folder of its weights in the model's directory."""
    in_features: int
    out_features: int
    bias: bool
    activation: DenseActivation


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingConfig:
    """The facts of one model that pools."""

    task: Task
    """embed or classify."""
    mode: PoolingMode
    width: int
    """Numbers in a vector."""
    normalize: bool
    """True if vectors are normalized to length 1."""
    dense: tuple[DenseConfig, ...] = ()
    """Layers between pooling and that norm, in order."""
    dimensions: tuple[int, ...] | None = None
    """Shorter lengths that a vector may be cut to; empty: any; None: it may not be cut."""
    labels: tuple[str, ...] = ()
    """Labels of a classifier, by position in its vector."""
    activation: Literal["sigmoid", "identity"] = "identity"
    """Function from a score to a relevance, for a classifier with one label."""
    likelihood: Likelihood = "softmax"
    """Function from a classifier's scores to the probabilities of its labels."""
    pairs: bool = False
    """True for a cross-encoder, which reads two texts at once."""
    max_length: int | None = None
    """Tokens that it was trained with, where that is less than its positions."""

    @property
    def needs_whole_prompts(self) -> bool:
        """True if the vector depends on the hidden states of more than the last token."""
        return self.mode != "last"


class _Module(msgspec.Struct, frozen=True):
    """An entry of modules.json."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        return self.type.rpartition(".")[2]


def pooling_config(folder: Path, hf: dict[str, Any], architecture: Architecture) -> PoolingConfig:
    """Returns the pooling config of the model in `folder`, whose architecture does not generate. Raises ConfigError if
    something in it is not supported.
    """
    if architecture.task == "classify":
        labels = _labels({"num_labels": architecture.labels, **hf})
        return PoolingConfig(
            task="classify",
            mode="cls" if architecture.encoder else "last",
            width=len(labels),
            normalize=False,
            labels=labels,
            activation=_activation(hf, len(labels)),
            likelihood=_likelihood(hf, len(labels)),
            pairs=architecture.encoder,
        )
    modules = _modules(folder)
    mode = _known_mode(hf.get(OF_GGUF, "mean" if architecture.encoder else "last"))
    if mode is None:
        raise ConfigError(f"{folder}: pooling_type {hf[OF_GGUF]} is not supported; {MODES} is")
    pooling = next((module for module in modules if module.name == "Pooling"), None)
    dense = _dense(folder, modules, hf["hidden_size"])
    width = dense[-1].out_features if dense else hf["hidden_size"]
    return PoolingConfig(
        task="embed",
        mode=mode if pooling is None else _mode(folder / pooling.path / "config.json"),
        width=width,
        normalize=not modules or any(module.name == "Normalize" for module in modules),
        dense=dense,
        dimensions=_dimensions(hf, width, "out_features of the last Dense" if dense else "hidden_size"),
        max_length=_max_length(folder),
    )


def is_sentence_encoder(folder: Path) -> bool:
    """True if the files of sentence-transformers say that the model in `folder` makes vectors."""
    return is_there(folder / MODULES_FILE)


def _modules(folder: Path) -> list[_Module]:
    """Returns the modules of sentence-transformers; none where there is no such file."""
    file = folder / MODULES_FILE
    if not is_there(file):
        return []
    try:
        modules = msgspec.json.decode(read_plain(file, JSON_LIMIT), type=list[_Module])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file}: {in_words(error)}") from error
    except (UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{file}: {error}") from error
    names = [module.name for module in modules]
    unknown = [name for name in names if name not in ORDER]
    if unknown:
        raise ConfigError(f"{file}: the module {unknown[0]} is not supported; supported are {', '.join(ORDER)}")
    twice = [name for name in ORDER if name != "Dense" and names.count(name) > 1]
    if twice:
        raise ConfigError(f"{file}: the module {twice[0]} occurs more than once, which is not supported")
    if sorted(names, key=ORDER.index) != names or ("Dense" in names and "Pooling" not in names):
        raise ConfigError(f"{file}: the modules {', '.join(names)} are not supported in this order: {', '.join(ORDER)}")
    if names.count("Dense") > MAX_DENSE:
        raise ConfigError(
            f"{file}: the module Dense occurs {names.count('Dense')} times, and at most {MAX_DENSE} times is supported"
        )
    for module in modules:
        path = PurePosixPath(module.path)
        if path.is_absolute() or ".." in path.parts:
            raise ConfigError(f"{file}: the path {module.path} leads out of the model's directory")
    return modules


class _DenseKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of config.json of a Dense module. Without a value, they are those of sentence-transformers."""

    in_features: Annotated[int, msgspec.Meta(ge=1, le=MAX_DENSE_WIDTH)]
    out_features: Annotated[int, msgspec.Meta(ge=1, le=MAX_DENSE_WIDTH)]
    bias: bool = True
    activation_function: str | None = "torch.nn.modules.activation.Tanh"
    module_input_name: Literal["sentence_embedding"] = "sentence_embedding"
    module_output_name: Literal["sentence_embedding"] | None = None
    use_residual: Literal[False] = False


def _dense(folder: Path, modules: list[_Module], width: int) -> tuple[DenseConfig, ...]:
    """Returns the Dense modules, of which the first takes vectors of that width. Raises ConfigError for what is not
    supported, and for widths that do not follow one another.
    """
    found: list[DenseConfig] = []
    for module in modules:
        if module.name != "Dense":
            continue
        file = folder / module.path / "config.json"
        try:
            keys = msgspec.convert(read_json(file), _DenseKeys)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{file}: {in_words(error)}") from error
        named = keys.activation_function or "torch.nn.Identity"
        if named not in _DENSE_ACTIVATIONS:
            known = ", ".join(f"torch.nn.{name}" for name in get_args(DenseActivation))
            raise ConfigError(f"{file}: activation_function {named} is not supported; supported are {known}")
        if keys.in_features != width:
            raise ConfigError(f"{file}: in_features is {keys.in_features}, and the module before gives {width} numbers")
        width = keys.out_features
        found.append(
            DenseConfig(
                path=module.path,
                in_features=keys.in_features,
                out_features=width,
                bias=keys.bias,
                activation=_DENSE_ACTIVATIONS[named],
            )
        )
    return tuple(found)


def _mode(file: Path) -> PoolingMode:
    config = read_json(file)
    named = config.get("pooling_mode")
    if isinstance(named, str):
        modes = [_MODE_NAMES.get(named, named)]
    else:
        chosen = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        modes = [_MODE_KEYS.get(key, key) for key in chosen]
    if len(modes) == 1 and (known := _known_mode(modes[0])):
        return known
    raise ConfigError(f"{file}: pooling by {' and '.join(modes) or 'nothing'} is not supported; {MODES} is")


def _known_mode(name: object) -> PoolingMode | None:
    """Returns the mode of this name; None: there is no such mode."""
    known: tuple[PoolingMode, ...] = get_args(PoolingMode)
    return next((mode for mode in known if mode == name), None)


def _max_length(folder: Path) -> int | None:
    value = read_json_if_there(folder / LENGTH_FILE).get("max_seq_length")
    if value is not None and (type(value) is not int or value < 1):
        raise ConfigError(f"{folder / LENGTH_FILE}: max_seq_length must be a positive number, not {value!r}")
    return value


def _dimensions(hf: dict[str, Any], width: int, whose: str) -> tuple[int, ...] | None:
    """Returns the allowed dimensions of shortened vectors (matryoshka), by SGLang's keys of config.json; None if
    vectors cannot be shortened. width: of a whole vector, by the key `whose`.
    """
    lengths = hf.get("matryoshka_dimensions")
    if lengths is not None:
        if not isinstance(lengths, list) or not all(type(one) is int and one >= 1 for one in lengths) or not lengths:
            raise ConfigError(f"config.json: matryoshka_dimensions must be a list of lengths, not {lengths!r}")
        if max(lengths) > width:
            raise ConfigError(f"config.json: matryoshka_dimensions {max(lengths)} is more than {whose} {width}")
        return tuple(sorted(lengths))
    return () if hf.get("is_matryoshka") is True else None


def _labels(hf: dict[str, Any]) -> tuple[str, ...]:
    """Returns the labels by index. If `id2label` is absent, `num_labels` gives their number, and they are named as in
    transformers.
    """
    named = hf.get("id2label")
    if isinstance(named, dict) and named:
        texts = {str(key): str(value) for key, value in named.items()}
        if set(texts) != {str(index) for index in range(len(texts))}:
            raise ConfigError("config.json: id2label must name the labels 0, 1 and so on")
        return tuple(texts[str(index)] for index in range(len(texts)))
    count = hf["num_labels"]
    if type(count) is not int or not 1 <= count <= MAX_LABELS:
        raise ConfigError(f"config.json: num_labels must be a number from 1 to {MAX_LABELS}, not {count!r}")
    return tuple(f"LABEL_{index}" for index in range(count))


def _likelihood(hf: dict[str, Any], num_labels: int) -> Likelihood:
    """Returns the function that transformers' pipeline applies to scores. Labels exclude each other unless config.json
    says something else, and a single label is present or not.
    """
    match kind := hf.get("problem_type"):
        case None | "single_label_classification":
            return "softmax" if num_labels > 1 else "sigmoid"
        case "multi_label_classification":
            return "sigmoid"
        case "regression":
            return "identity"
    raise ConfigError(
        f"config.json: problem_type {kind!r} is not supported; single_label_classification, "
        "multi_label_classification and regression are"
    )


def _activation(hf: dict[str, Any], num_labels: int) -> Literal["sigmoid", "identity"]:
    """Returns the activation that sentence-transformers' CrossEncoder chooses: the one in the config, or a sigmoid for
    a single label.
    """
    newer = hf.get("sentence_transformers")
    named = (newer.get("activation_fn") if isinstance(newer, dict) else None) or hf.get(
        "sbert_ce_default_activation_function"
    )
    if named is None:
        return "sigmoid" if num_labels == 1 else "identity"
    match str(named).rpartition(".")[2]:
        case "Sigmoid":
            return "sigmoid"
        case "Identity":
            return "identity"
    raise ConfigError(f"config.json: the activation {named} is not supported; supported are Sigmoid and Identity")
