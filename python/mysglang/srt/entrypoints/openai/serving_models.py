"""/v1/models: the one model that is served, and the names by which requests may ask for it."""

from __future__ import annotations

import time

from mysglang.srt.errors import NotFound

DEFAULT_NAME = "default"


class OpenAIServingModels:
    """Knows what the served model is called."""

    def __init__(self, name: str, root: str, max_model_len: int) -> None:
        """`root`: where the model comes from; `max_model_len`: its context, in tokens."""
        self.name = name
        self._card = {
            "id": name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "mysglang",
            "root": root,
            "parent": None,
            "max_model_len": max_model_len,
        }

    @property
    def max_model_len(self) -> object:
        return self._card["max_model_len"]

    def check(self, model: str | None) -> None:
        """Raises NotFound unless `model` means the served one; saying nothing does, and so does "default"."""
        if model not in (None, DEFAULT_NAME, self.name):
            raise NotFound(f"The model {model!r} does not exist; this server serves {self.name!r}.", param="model")

    def list(self) -> dict[str, object]:
        return {"object": "list", "data": [self._card]}

    def get(self, model: str) -> dict[str, object]:
        """Raises NotFound."""
        self.check(model)
        return self._card
