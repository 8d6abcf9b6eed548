"""The served model under all its names."""

import pytest

from mysglang.srt.entrypoints.openai.serving_models import OpenAIServingModels
from mysglang.srt.errors import NotFound


def test_every_name_means_the_model() -> None:
    models = OpenAIServingModels("tiny", "/models/tiny", 100, aliases=("small", "gpt-4o"), strict=True)
    for name in (None, "default", "tiny", "small", "gpt-4o"):
        models.check(name)
    with pytest.raises(NotFound, match="'large' does not exist; this server serves 'tiny'"):
        models.check("large")
    listed = models.list()["data"]
    assert isinstance(listed, list)
    assert [card["id"] for card in listed] == ["tiny", "small", "gpt-4o"]
    assert models.get("small")["id"] == "small"
    assert models.get("default")["id"] == "tiny"


def test_another_name_is_served_and_an_adapter_is_not() -> None:
    models = OpenAIServingModels("tiny", "/models/tiny", 100)
    models.check("large")
    models.check("large:latest")
    for adapter in ("tiny:mine", "default:mine"):
        with pytest.raises(NotFound, match="does not exist"):
            models.check(adapter)
    with pytest.raises(NotFound, match="'large' does not exist"):
        models.get("large")
