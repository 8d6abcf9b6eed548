"""Every architecture that config.json may name has its class."""

import pytest
from transformers.models.auto import modeling_auto

from fixtures.tiny_checkpoints import FAMILIES
from mysglang.srt.configs.architectures import ARCHITECTURES, DECODERS
from mysglang.srt.models.checkpoint_model import CheckpointModel
from mysglang.srt.models.registry import model_class


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_has_a_class(name: str) -> None:
    found = model_class(ARCHITECTURES[name], CheckpointModel)
    assert found.__name__ == ARCHITECTURES[name].model.partition(":")[2] and not found.__abstractmethods__


def test_a_family_is_known_by_all_names_of_transformers() -> None:
    """The class without a head, the classifier and the one that generates, as they write config.json."""
    names = {
        table[kind]
        for kind in {make().model_type for make in FAMILIES.values()}
        for table in (
            modeling_auto.MODEL_MAPPING_NAMES,
            modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
            modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        )
        if kind in table
    }
    assert len(names) > 2 * len(DECODERS)
    assert not {name for name in names if name not in ARCHITECTURES}
