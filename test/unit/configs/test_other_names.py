"""Keys of config.json under the other names that transformers takes for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from fixtures.tiny_checkpoints import CLASSES, FAMILIES
from mysglang.srt.configs.model_config import ModelConfig

OTHER_NAMES: dict[str, dict[str, str]] = {family: dict(type(FAMILIES[family]()).attribute_map) for family in CLASSES}

COMPUTED = {("bamba", "layer_types"), ("falcon_h1", "layer_types")}
"""Names of what these configs compute of other keys, and do not read."""

NAMED = [
    (family, name, key)
    for family, names in OTHER_NAMES.items()
    for name, key in names.items()
    if (family, name) not in COMPUTED
]


def config_of(folder: Path, family: str, keys: dict[str, Any]) -> ModelConfig:
    (folder / "config.json").write_text(json.dumps(keys | {"architectures": [CLASSES[family]]}))
    return ModelConfig.from_path(str(folder))


@pytest.mark.parametrize(("family", "name", "key"), NAMED)
def test_another_name_is_read_as_the_key(family: str, name: str, key: str, tmp_path: Path) -> None:
    keys: dict[str, Any] = json.loads(FAMILIES[family]().to_json_string(use_diff=False))
    written = keys.get(key, keys.get(name))
    plain = {own: value for own, value in keys.items() if own not in (key, name)}
    expected = config_of(tmp_path, family, plain | {key: written})
    found = config_of(tmp_path, family, plain | {name: written})
    facts = ("decoder", "context_len", "hidden_size", "num_layers")
    assert [getattr(found, fact) for fact in facts] == [getattr(expected, fact) for fact in facts]
