"""/v1/models: the one model that is served, and the names by which requests may ask for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from mysglang.srt.entrypoints.body import read_model
from mysglang.srt.errors import NotFound
from mysglang.srt.utils.said_once import SaidOnce

logger = logging.getLogger(__name__)

Body = TypeVar("Body", bound=BaseModel)

DEFAULT_NAME = "default"
MAX_SHOWN = 100
"""Characters of a client's name for a model that are logged."""


class OpenAIServingModels:
    """Knows what the served model is called."""

    def __init__(
        self, name: str, root: str, max_model_len: int, *, aliases: Sequence[str] = (), strict: bool = False
    ) -> None:
        """`root`: where the model was loaded from. `max_model_len`: its context, in tokens. `aliases`: more names for
        it.

        `strict`: whether requests for a model by another name are refused.
        """
        self._strict = strict
        self._said = SaidOnce(logger, "names of models that are not served")
        self.name = name
        self.max_model_len = max_model_len
        card = {
            "object": "model",
            "created": int(time.time()),
            "owned_by": "mysglang",
            "root": root,
            "parent": None,
            "max_model_len": max_model_len,
        }
        self._cards = {known: {"id": known, **card} for known in (name, *aliases)}

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Reads a body whose field `model` names the served model. Raises what `read_model` and `check` raise."""
        body = await read_model(request, kind)
        self.check(vars(body)["model"])
        return body

    def check(self, model: str | None) -> None:
        """Raises NotFound for an unknown adapter, and for another model if the server is strict.

        Else the served model answers for the other one, under its own name, and one log line says so.
        """
        if self._means_the_served(model):
            return
        assert model is not None, "saying nothing means the served model"
        base = model.partition(":")[0]
        if self._strict or self._means_the_served(base):
            raise self._absent(model)
        shown = ascii(model[:MAX_SHOWN])
        self._said.warn(
            shown, f"Requests for the model {shown} are answered by {self.name!r}; --strict-model-name refuses them."
        )

    def list(self) -> dict[str, object]:
        return {"object": "list", "data": [*self._cards.values()]}

    def get(self, model: str) -> dict[str, object]:
        """Returns the card of a model. Raises NotFound."""
        if not self._means_the_served(model):
            raise self._absent(model)
        return self._cards.get(model, self._cards[self.name])

    def _means_the_served(self, model: str | None) -> bool:
        """Returns whether `model` means the served model, as null and "default" do."""
        return model in (None, DEFAULT_NAME) or model in self._cards

    def _absent(self, model: str) -> NotFound:
        return NotFound(f"The model {model!r} does not exist; this server serves {self.name!r}.", param="model")
