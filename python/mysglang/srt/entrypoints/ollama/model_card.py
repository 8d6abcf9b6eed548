"""Description of the served model for Ollama's clients."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mysglang.srt.configs.architectures import Task
from mysglang.srt.entrypoints.front import Front
from mysglang.srt.entrypoints.openai.answer_formats import AnswerFormats
from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.errors import ConfigError, NotFound
from mysglang.srt.utils.checkpoint_files import find_weights
from mysglang.srt.utils.hardware import GIB

NEVER = "9999-12-31T23:59:59Z"
"""When the model will be unloaded."""

LATEST = ":latest"
"""The tag that Ollama's clients put behind a name that has none."""


class ModelCard:
    """Ollama's descriptions of the served model, the same under every name."""

    def __init__(
        self,
        front: Front,
        models: OpenAIServingModels,
        formats: AnswerFormats,
        model_path: str,
        model_info: Mapping[str, Any],
        *,
        task: Task | None = None,
        on_gpu: bool = False,
    ) -> None:
        """`model_info`: the answer of `/model_info`, from which the family is taken. `task`: what a model does that
        does not generate. `on_gpu`: True if the model is on a GPU.
        """
        self._task = task
        self._on_gpu = on_gpu
        self._front = front
        self._models = models
        self._formats = formats
        self._family = str(model_info.get("model_type") or "")
        self._size = _weight_bytes(model_path)
        # A digest of the model's name and facts, because computing the digest of all its weights would take too long.
        self._digest = hashlib.sha256(f"{self._models.name}\n{model_path}\n{self._size}".encode()).hexdigest()
        self._since = datetime.now(UTC).isoformat()

    @property
    def context_len(self) -> int:
        return self._front.facts.context_len

    def check(self, model: str) -> None:
        """Raises NotFound unless `model` is a name of the served model."""
        check_name(self._models, model)

    def tag(self) -> dict[str, object]:
        """Returns the model's entry in /api/tags."""
        return {
            "name": self._models.name,
            "model": self._models.name,
            "modified_at": self._since,
            "size": self._size,
            "digest": self._digest,
            "details": self._details(),
        }

    def running(self) -> dict[str, object]:
        """Returns the model's entry in /api/ps: it is always loaded, and its memory is that of the weights and the
        cache.
        """
        facts = self._front.facts
        held = int(sum(facts.memory_usage.values()) * GIB)
        return {
            **self.tag(),
            "size": held,
            "expires_at": NEVER,
            "size_vram": held if self._on_gpu else 0,
            "context_length": self.context_len,
        }

    def show(self) -> dict[str, object]:
        """Returns the answer to /api/show. There is no model file, and nothing that it would set."""
        templates = self._front.template_manager
        return {
            "modelfile": "",
            "parameters": "",
            "template": "" if templates is None else templates.source,
            "modified_at": self._since,
            "details": self._details(),
            "model_info": {
                "general.architecture": self._family,
                f"{self._family or 'general'}.context_length": self.context_len,
            },
            "capabilities": self._capabilities(),
        }

    def _details(self) -> dict[str, object]:
        return {
            "parent_model": "",
            "format": "safetensors",
            "family": self._family,
            "families": [self._family],
            "parameter_size": "",
            "quantization_level": self._front.facts.dtype,
        }

    def _capabilities(self) -> list[str]:
        generates = self._task is None
        known = {
            "completion": generates,
            "tools": generates and self._formats.detector is not None,
            "thinking": generates and self._formats.reasoning is not None,
            "embedding": self._task == "embed",
        }
        return [name for name, there in known.items() if there]


def _weight_bytes(model_path: str) -> int:
    """Returns the number of bytes of the weight files; 0 if there are none."""
    try:
        return sum(path.stat().st_size for path in find_weights(Path(model_path)).paths) if model_path else 0
    except ConfigError:
        return 0


def check_name(models: OpenAIServingModels, model: str) -> None:
    """Raises NotFound unless `model` is a name of the served model, with or without a tag."""
    try:
        models.check(model)
    except NotFound:
        if not model.endswith(LATEST):
            raise
        models.check(model.removesuffix(LATEST))
