"""/v1/models: the one model that is served, and the names by which requests may ask for it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from mysglang.srt.errors import NotFound

DEFAULT_NAME = "default"


class OpenAIServingModels:
    """Knows what the served model is called."""

    def __init__(self, name: str, root: str, max_model_len: int, *, aliases: Sequence[str] = ()) -> None:
        """`root`: where the model comes from; `max_model_len`: its context, in tokens; `aliases`: more names of it."""
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

    def check(self, model: str | None) -> None:
        """Raises NotFound unless `model` means the served one; saying nothing does, and so does "default"."""
        if model not in (None, DEFAULT_NAME) and model not in self._cards:
            raise NotFound(f"The model {model!r} does not exist; this server serves {self.name!r}.", param="model")

    def list(self) -> dict[str, object]:
        return {"object": "list", "data": [*self._cards.values()]}

    def get(self, model: str) -> dict[str, object]:
        """Raises NotFound."""
        self.check(model)
        return self._cards.get(model, self._cards[self.name])
