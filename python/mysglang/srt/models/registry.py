"""From an architecture's name to its class. Imports the file on demand, so a server loads one model's code only."""

from __future__ import annotations

import importlib
from typing import TypeVar

from mysglang.srt.configs.architectures import ARCHITECTURES
from mysglang.srt.models.checkpoint_model import CheckpointModel

Model = TypeVar("Model", bound=CheckpointModel)


def model_class(architecture: str, kind: type[Model]) -> type[Model]:
    """The class that `ARCHITECTURES` names, which must be of this kind."""
    file, _, name = ARCHITECTURES[architecture].model.partition(":")
    found: type[CheckpointModel] = getattr(importlib.import_module(f"mysglang.srt.models.{file}"), name)
    assert issubclass(found, kind), f"{architecture} is no {kind.__name__}"
    return found
