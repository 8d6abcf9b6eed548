"""The source of a model's config and tokenizer: the files of a directory, or the metadata of a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.hf import adapter_refused, read_json, read_json_if_there
from mysglang.srt.utils.plain_files import TEMPLATE_LIMIT, check_tokenizer_files, is_there, read_plain, size_limit

MODELOPT = "hf_quant_config.json"
MAX_TEMPLATES = 64
"""Additional chat templates of one model."""


class ModelSource(Protocol):
    """Config and tokenizer of a model, in the forms of Hugging Face. Every method raises ConfigError for missing or
    damaged files.
    """

    def config(self) -> dict[str, Any]:
        """Returns the content of config.json."""
        ...

    def generation_config(self) -> dict[str, Any]:
        """Returns the content of generation_config.json, empty if there is none."""
        ...

    def check_tokenizer(self) -> None:
        """Checks the tokenizer's files without loading it."""
        ...

    def tokenizer_json(self) -> bytes: ...

    def tokenizer_config(self) -> dict[str, Any]:
        """Returns the content of tokenizer_config.json, completed by the files that may exist beside it, such as chat
        templates.
        """
        ...


def model_source(path: Path) -> ModelSource:
    """Returns the source for a directory, or for a file in GGUF."""
    return GgufSource(path) if path.is_file() else FolderSource(path)


class FolderSource:
    """Implements `ModelSource` by the files of a directory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def config(self) -> dict[str, Any]:
        if not is_there(self._folder / "config.json"):
            if is_there(self._folder / "adapter_config.json"):
                raise adapter_refused(f"{self._folder} is a LoRA adapter")
            raise ConfigError(
                f"{self._folder} has no config.json; give the directory of a model in Hugging Face format"
            )
        return self._quantized_by_modelopt() | read_json(self._folder / "config.json")

    def _quantized_by_modelopt(self) -> dict[str, Any]:
        """Returns what config.json would say of weights that ModelOpt quantized. Its older versions say it only in a
        file of their own, whose `quant_algo` is null if the weights are plain.
        """
        quantized = read_json_if_there(self._folder / MODELOPT).get("quantization")
        algorithm = quantized.get("quant_algo") if isinstance(quantized, dict) else None
        return {"quantization_config": {"quant_method": f"modelopt, {algorithm}"}} if algorithm else {}

    def generation_config(self) -> dict[str, Any]:
        return read_json_if_there(self._folder / "generation_config.json")

    def check_tokenizer(self) -> None:
        check_tokenizer_files(self._folder)

    def tokenizer_json(self) -> bytes:
        file = self._folder / "tokenizer.json"
        if not is_there(file):
            raise ConfigError(
                f"{self._folder} holds no tokenizer.json. Make one with transformers: "
                "AutoTokenizer.from_pretrained(path).save_pretrained(path)"
            )
        return read_plain(file, size_limit(file))

    def tokenizer_config(self) -> dict[str, Any]:
        folder = self._folder
        config = read_json_if_there(folder / "tokenizer_config.json")
        if "added_tokens_decoder" not in config:
            config |= read_json_if_there(folder / "special_tokens_map.json")
        template = folder / "chat_template.jinja"
        legacy = folder / "chat_template.json"
        if is_there(template):
            config["chat_template"] = _read_text(template)
            more = sorted((folder / "additional_chat_templates").glob("*.jinja"))
            if len(more) > MAX_TEMPLATES:
                raise ConfigError(
                    f"{folder} holds {len(more)} additional chat templates; at most {MAX_TEMPLATES} are read"
                )
            if more:
                named = {"default": template} | {file.stem: file for file in more}
                config["chat_template"] = [{"name": name, "template": _read_text(named[name])} for name in named]
        elif "chat_template" not in config and is_there(legacy):
            config["chat_template"] = read_json(legacy).get("chat_template")
        return config


class GgufSource:
    """Implements `ModelSource` by the metadata of a GGUF file."""

    def __init__(self, path: Path) -> None:
        # Most models are directories, and each process with a tokenizer imports this module.
        from mysglang.srt.utils.gguf.model import GgufModel

        self._model = GgufModel(path)

    def config(self) -> dict[str, Any]:
        return self._model.config()

    def generation_config(self) -> dict[str, Any]:
        return {}

    def check_tokenizer(self) -> None:
        self._model.tokenizer_config()

    def tokenizer_json(self) -> bytes:
        return self._model.tokenizer_json()

    def tokenizer_config(self) -> dict[str, Any]:
        return self._model.tokenizer_config()


def _read_text(file: Path) -> str:
    try:
        text = read_plain(file, TEMPLATE_LIMIT).decode("utf-8")
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
