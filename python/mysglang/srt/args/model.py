"""Which model is served."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from mysglang.srt.args.field import arg
from mysglang.srt.configs.load_config import LoadFormat, Quantization

DType = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgs:
    """Which model, tokenizer and weights."""

    model_path: str | None = arg(
        None,
        aliases=("model",),
        help="A directory in Hugging Face format, or a Hugging Face repository; the embedded model if unset.",
    )
    tokenizer_path: str | None = arg(None, help="Directory or repository of the tokenizer; the model's if unset.")
    skip_tokenizer_init: bool = arg(False, help="Load no tokenizer: token ids in, token ids out.")
    load_format: LoadFormat = arg("auto", help="Where weights come from; dummy makes random ones (for speed tests).")
    weight_version: str = arg("default", help="Name of the weights, told with every answer.")
    dtype: DType = arg("auto", help="Data type of weights and activations; auto takes the checkpoint's.")
    quantization: Quantization | None = arg(
        None,
        help="Round the weights of linear layers and experts when they are loaded; int8wo: to eight-bit integers with "
        "a factor for each output. On a CPU.",
    )
    context_length: int | None = arg(
        None, at_least=2, help="Longest request in tokens, output included; what the model allows if unset."
    )
    is_embedding: bool = arg(
        False, help="Make vectors of prompts, with a model that could generate; others do what their architecture says."
    )
    revision: str | None = arg(None, help="Branch, tag or commit of the Hugging Face repository.")
    download_dir: str | None = arg(
        None, help="Where Hugging Face repositories are downloaded to; their cache if unset."
    )
    json_model_override_args: str = arg("{}", help="A JSON object laid over the checkpoint's config.json.")
    random_seed: int | None = arg(
        None,
        at_least=0,
        at_most=2**31 - 1,
        help="Seed of dummy weights and of requests that bring none; drawn if unset.",
    )

    @property
    def overrides(self) -> dict[str, Any]:
        """`json_model_override_args`, read. Raises ValueError for what is no JSON."""
        value: dict[str, Any] = json.loads(self.json_model_override_args)
        return value
