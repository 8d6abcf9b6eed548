"""From an architecture's name to its class. Imports the module on demand, so a server loads one model's code only."""

from __future__ import annotations

import importlib
from typing import TypeVar

from mysglang.srt.configs.architectures import ARCHITECTURES
from mysglang.srt.models.checkpoint_model import CheckpointModel

Model = TypeVar("Model", bound=CheckpointModel)


def model_class(architecture: str, kind: type[Model]) -> type[Model]:
    """The class in the module that `ARCHITECTURES` names: its `EntryClass`, or the one of that name among several."""
    module = importlib.import_module(f"mysglang.srt.models.{ARCHITECTURES[architecture].module}")
    entries = module.EntryClass if isinstance(module.EntryClass, tuple) else (module.EntryClass,)
    found: type[CheckpointModel] = next(entry for entry in entries if entry.__name__ == architecture)
    assert issubclass(found, kind), f"{architecture} is no {kind.__name__}"
    return found
