"""From an architecture to its class, and how a named architecture would be served.

Imports the file on demand, so a server loads one model's code only.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Literal, TypeVar

from mysglang.srt.configs.architectures import OWN_PACKAGE, Architecture, find_architecture
from mysglang.srt.configs.foreign import ENDINGS
from mysglang.srt.configs.unserved import why_never
from mysglang.srt.errors import ConfigError
from mysglang.srt.models.checkpoint_model import CheckpointModel

Model = TypeVar("Model", bound=CheckpointModel)


def model_class(architecture: Architecture, kind: type[Model]) -> type[Model]:
    """Returns the class that computes an architecture, which must be of this kind. Raises ConfigError for one that a
    package brings and that is not there, or is of another kind.
    """
    file, _, name = architecture.model.partition(":")
    try:
        found = getattr(importlib.import_module(f"{architecture.package}.{file}"), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{architecture.package} has no {architecture.model} ({error})") from error
    except (Exception, SystemExit) as error:
        if architecture.package == OWN_PACKAGE:
            raise  # A fault of ours is shown whole.
        raise ConfigError(
            f"{architecture.model} of {architecture.package} cannot be imported ({type(error).__name__}: {error})"
        ) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise ConfigError(f"{architecture.model} of {architecture.package} is no {kind.__name__}")
    return found


@dataclass(frozen=True, slots=True)
class Serving:
    """How an architecture is served by default (`--model-impl auto`)."""

    by: Literal["mysglang", "transformers", "nobody"]
    reason: str = ""
    """Why the architecture is not served, or a condition for serving it; empty if there is none."""


def how_served(architecture: str) -> Serving:
    """Returns how an architecture that config.json names would be served.

    transformers' code is asked with the class's own default config, without weights: a few tenths of a second. Where
    the defaults build no model, the answer depends on each config.json.
    """
    if find_architecture(architecture) is not None:
        return Serving("mysglang")
    if (reason := why_never(architecture)) is not None:
        return Serving("nobody", reason)
    if not architecture.endswith(ENDINGS):
        return Serving("nobody", f"only causal language models ({', '.join(ENDINGS)}) are taken from transformers")
    # transformers takes a second to load.
    from mysglang.srt.models.transformers_backend.examine import examine

    served, reason = examine(architecture)
    return Serving("transformers" if served else "nobody", reason)
