"""The served model under all its names."""

import pytest

from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.errors import NotFound


def test_every_name_means_the_model() -> None:
    models = OpenAIServingModels("tiny", "/models/tiny", 100, aliases=("small", "gpt-4o"))
    for name in (None, "default", "tiny", "small", "gpt-4o"):
        models.check(name)
    with pytest.raises(NotFound, match="'large' does not exist; this server serves 'tiny'"):
        models.check("large")
    listed = models.list()["data"]
    assert isinstance(listed, list)
    assert [card["id"] for card in listed] == ["tiny", "small", "gpt-4o"]
    assert models.get("small")["id"] == "small"
    assert models.get("default")["id"] == "tiny"
