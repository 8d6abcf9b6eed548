"""Every architecture that config.json may name has its class."""

import pytest

from mysglang.srt.configs.architectures import ARCHITECTURES
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.registry import model_class


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_has_a_class(name: str) -> None:
    found = model_class(ARCHITECTURES[name], CheckpointModel)
    assert found.__name__ == ARCHITECTURES[name].model.partition(":")[2] and not found.__abstractmethods__
