"""Vertex AI's predictions: many instances and parameters for all of them -> one batch of the native route's.

Where Vertex asks, it says by environment variables of its own when it starts a container; these are read here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mysglang.srt.entrypoints.strict_model import StrictModel
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.messages.generate import REFUSED, FieldReport, GenerateReqInput, parse_generate

PROMPTS = ("text", "input_ids")
"""An instance must contain one of these fields."""

_TYPES = {"text": str, "input_ids": list}
_WORDS = {"text": "one text", "input_ids": "a list of token ids"}


@dataclass(frozen=True, slots=True)
class VertexRoutes:
    """Paths of Vertex AI; unset ones are SGLang's paths."""

    predict: str = "/vertex_generate"
    health: str = "/ping"

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> VertexRoutes:
        """Reads AIP_PREDICT_ROUTE and AIP_HEALTH_ROUTE. Raises ConfigError if one is not a path."""
        found = {"predict": "AIP_PREDICT_ROUTE", "health": "AIP_HEALTH_ROUTE"}
        given = {name: environment[variable] for name, variable in found.items() if environment.get(variable)}
        for name, path in given.items():
            if not path.startswith("/") or set(path) & set("{}?# "):
                raise ConfigError(f"{found[name]}={path!r} is no path; it must begin with a slash.")
        return cls(**given)


class VertexGenerateReqInput(StrictModel):
    """Body of POST /vertex_generate, or of the path that Vertex sets. `parameters` are fields of /generate."""

    instances: list[dict[str, Any]]
    parameters: dict[str, Any] | None = None

    def batch(self, report: FieldReport = REFUSED) -> GenerateReqInput:
        """Returns the one request that answers all instances, of which there is at least one. Raises InvalidRequest."""
        kind = next((name for name in PROMPTS if name in self.instances[0]), PROMPTS[0])
        for index, instance in enumerate(self.instances):
            if set(instance) != {kind}:
                message = f"instances.{index}: must hold {' or '.join(PROMPTS)}, all instances the same, and no more."
                raise InvalidRequest(message, param=f"instances.{index}")
            if not isinstance(instance[kind], _TYPES[kind]):
                # A lone id, or a list of texts, would make another number of predictions than of instances.
                message = f"instances.{index}.{kind}: must be {_WORDS[kind]}."
                raise InvalidRequest(message, param=f"instances.{index}.{kind}")
        parameters = self.parameters or {}
        if taken := [name for name in (*PROMPTS, "stream") if parameters.get(name)]:
            message = f"parameters.{taken[0]}: not here; prompts are instances, and predictions come whole."
            raise InvalidRequest(message, param=f"parameters.{taken[0]}")
        return parse_generate({**parameters, kind: [instance[kind] for instance in self.instances]}, report)
