"""Options that choose the model, and how it is loaded."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from mysglang.srt.args.field import arg
from mysglang.srt.configs.choices import LoadFormat, Quantization
from mysglang.srt.configs.foreign import ModelImpl

DType = Literal["auto", "half", "float16", "bfloat16", "float", "float32"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArgs:
    """The model, its tokenizer and its weights."""

    model_path: str | None = arg(
        None,
        aliases=("model",),
        help="Directory in Hugging Face format, a GGUF file, name of a Hugging Face repository (OWNER/NAME, or "
        "OWNER/NAME/FILE.gguf), which is downloaded, or a URL (s3://, gs://, https://). Unset, or with tiny, the "
        "embedded model is served.",
    )
    tokenizer_path: str | None = arg(
        None,
        help="Directory or repository of the tokenizer. Set it if the model's own directory has none. If unset, "
        "--model-path is used.",
    )
    skip_tokenizer_init: bool = arg(
        False,
        help="Load no tokenizer: requests send token ids and get token ids. Use it if clients tokenize themselves.",
    )
    load_format: LoadFormat = arg(
        "auto",
        help="Format of the weights' files. With auto, the first that the model has, of safetensors, pt and gguf. Files"
        " of torch.save (pt) are read without unpickling. Files of llama.cpp (gguf) are expanded to --dtype."
        " sharded_state: files of Engine.save_sharded_model, a part for each rank. remote: byte ranges behind a URL,"
        " which auto chooses for one. With dummy, weights are random, to measure speed without a checkpoint.",
    )
    weight_version: str = arg(
        "default", help="Name of the weights, which every answer reports. Trainers that update weights use it."
    )
    dtype: DType = arg(
        "auto",
        help="Data type of weights and activations. auto: the checkpoint's own, but bfloat16 for a float32 checkpoint.",
    )
    quantization: Quantization | None = arg(
        None,
        help="Round the weights when they are loaded. int8wo: linear layers and experts to 8-bit integers with one"
        " factor per output; halves their memory and speeds decoding up. On a CPU only.",
    )
    context_length: int | None = arg(
        None,
        at_least=2,
        help="Longest request in tokens, prompt and output together. If unset, the model's own limit, "
        "which is the maximum.",
    )
    is_embedding: bool = arg(
        False,
        help="Return embeddings from a decoder that could also generate text. Models that cannot generate need no "
        "flag.",
    )
    model_impl: ModelImpl = arg(
        "auto",
        help="Code of the model's layers. mysglang: this package's own, or that of a package which adds the "
        "architecture. transformers: that of the transformers library, on this server's cache and scheduler. "
        "auto: mysglang if it has the architecture.",
    )
    revision: str | None = arg(
        None, help="Branch, tag or commit of the Hugging Face repository. If unset, its main branch."
    )
    download_dir: str | None = arg(
        None, help="Directory to which Hugging Face repositories are downloaded. If unset, Hugging Face's own cache."
    )
    json_model_override_args: str = arg(
        "{}",
        help="JSON object whose keys replace those of the checkpoint's config.json, for example to extend the context.",
    )
    random_seed: int | None = arg(
        None,
        at_least=0,
        at_most=2**31 - 1,
        help="Seed for dummy weights, and for sampled requests without a seed. Set it to repeat a run. If unset, "
        "it is drawn.",
    )

    @property
    def overrides(self) -> dict[str, Any]:
        """The parsed `json_model_override_args`. Raises ValueError for invalid JSON."""
        value: dict[str, Any] = json.loads(self.json_model_override_args)
        return value
