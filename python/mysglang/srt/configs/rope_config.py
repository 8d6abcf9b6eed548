"""Rotary parameters as config.json spells them, old way or new, brought into one form and checked.

The form is that of transformers 5 (`rope_parameters`); what the numbers do is in `layers/rotary_embedding.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mysglang.srt.errors import ConfigError

MOST_POSITIONS = 1 << 31
MOST = 1e12
"""Above every number that a rotary embedding is known to have; far below where float32 ends."""
LENGTH_BEFORE_SCALING = "original_max_position_embeddings"
LISTS = ("short_factor", "long_factor")
"""Parameters that are a number for each frequency."""
MOST_FACTORS = 1 << 13

# The keys that each scaling reads and cannot do without.
REQUIRED: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor", LENGTH_BEFORE_SCALING),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", LENGTH_BEFORE_SCALING),
    "yarn": ("factor", LENGTH_BEFORE_SCALING),
    "dynamic_alpha": ("alpha",),
    "proportional": (),
    "longrope": (*LISTS, LENGTH_BEFORE_SCALING),
}
_OPTIONAL = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
_STRETCHES = ("short_mscale", "long_mscale")
"""Keys of longrope for the factors that multiply heads, where they do not follow from the lengths."""
_OF_TYPE = {"longrope": ("factor", *_STRETCHES), "proportional": ("factor", "partial_rotary_factor")}
"""Optional keys of each type, in addition to `_OPTIONAL`."""
STRETCHING = ("yarn", "longrope")
"""Types that also multiply heads with a factor."""
_OTHER_NAMES = {"su": "longrope"}
"""Types by the names that older files give them."""


SPELLINGS = ("rope_scaling", "rope_parameters")
"""Keys of rotary parameters, as transformers 4 and 5 have them."""
BESIDE = ("rope_theta", "partial_rotary_factor")
"""Parameters that transformers 4 has beside the others in config.json, and transformers 5 among them."""
LAYER_ENDING = "_attention"
"""How the names of all types of layers end."""
MAIN_LAYERS = "full_attention"
"""The layers that overriding keys concern where each type of layer has parameters of its own."""


def overridden(hf: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys of config.json with those that replace them, whichever spelling of rotary parameters each has.

    New parameters replace all others but base and rotated part, which stay unless they are given too.
    """
    merged = {**hf, **given}
    if not any(key in given for key in (*SPELLINGS, *BESIDE)):
        return merged
    stored = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    new = given.get("rope_scaling") or given.get("rope_parameters") or {}
    replaced = any(key in given for key in SPELLINGS)
    if not isinstance(stored, dict) or not isinstance(new, dict) or not (stored or new):
        return merged
    if _is_by_type(new):
        found = new
    else:
        own = stored.get(MAIN_LAYERS, {}) if _is_by_type(stored) else stored
        found = {key: value for key, value in own.items() if key in BESIDE or not replaced} | new
        found |= {key: given[key] for key in BESIDE if key in own and key in given and key not in new}
        found = {**stored, MAIN_LAYERS: found} if _is_by_type(stored) else found
    rest = {key: value for key, value in merged.items() if key not in SPELLINGS}
    return rest | {"rope_parameters" if _is_by_type(found) else "rope_scaling": found}


def _is_by_type(parameters: Mapping[str, Any]) -> bool:
    """True if each type of layer has parameters of its own, also if those of some are no object."""
    objects = [isinstance(value, dict) for value in parameters.values()]
    return any(objects) and (all(objects) or any(key.endswith(LAYER_ENDING) for key in parameters))


def rope_parameters(
    hf: dict[str, Any],
    max_position_embeddings: int,
    *,
    usual_theta: float = 10000.0,
    layer_type: str | None = None,
) -> dict[str, Any]:
    """Returns `rope_type`, `rope_theta` and the numbers that the type needs. Understands the spellings of transformers
    4 and 5. Raises ConfigError.

    usual_theta: where the file does not say it. layer_type: that of the layers that are asked for, where a family has
    other parameters for each type of layer; None: the family has one set.
    """
    given = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    if not isinstance(given, dict):
        raise ConfigError("config.json: rope_scaling must be an object")
    if _is_by_type(given):
        if layer_type is None:
            raise ConfigError("config.json: rope_parameters for each type of layer are not supported")
        given = given.get(layer_type)
        if given is None:
            raise ConfigError(f"config.json: rope_parameters lack those of {layer_type} layers")
        if not isinstance(given, dict):
            raise ConfigError(f"config.json: rope_parameters of {layer_type} layers must be an object")
    rope_type = given.get("rope_type", given.get("type", "default"))
    rope_type = _OTHER_NAMES.get(rope_type, rope_type) if isinstance(rope_type, str) else rope_type
    if not isinstance(rope_type, str) or rope_type not in REQUIRED:
        raise ConfigError(f"config.json: rope type {rope_type!r} is unknown; known are {', '.join(REQUIRED)}")
    if rope_type == "dynamic" and given.get("alpha"):
        rope_type = "dynamic_alpha"
    theta = given.get("rope_theta", hf.get("rope_theta"))
    newer = hf.get("rope_parameters")
    if theta is None and isinstance(newer, dict) and newer.get("rope_theta") is not None:
        raise ConfigError(
            "config.json: rope_scaling replaces rope_parameters, and lacks the rope_theta that is there; move all "
            "parameters into one of the two"
        )
    rope = {"rope_theta": usual_theta if theta is None else theta}
    if given.get("truncate", True) is None:
        raise ConfigError("config.json: truncate of the rotary embedding must be true or false, not null")
    values = given | _lengths(hf, given, max_position_embeddings)
    optional = (*_OF_TYPE.get(rope_type, ()), *_OPTIONAL)
    for key in (*REQUIRED[rope_type], *optional):
        if values.get(key) is not None:
            rope[key] = values[key]
        elif key in REQUIRED[rope_type]:
            raise ConfigError(f"config.json: rope type {rope_type} needs {key}")
    for key, value in rope.items():
        if key == "truncate" and isinstance(value, bool):
            continue
        if key in LISTS:
            _check_factors(key, value)
            continue
        if type(value) not in (int, float) or not 0 < value <= MOST:
            raise ConfigError(
                f"config.json: {key} of the rotary embedding must be a number above 0 and at most {MOST:g}, "
                f"not {value!r}"
            )
    if rope["rope_theta"] <= 1:
        raise ConfigError(f"config.json: rope_theta must be more than 1, not {rope['rope_theta']}")
    if rope_type == "llama3" and rope["high_freq_factor"] < rope["low_freq_factor"]:
        raise ConfigError("config.json: high_freq_factor of the rotary embedding must not be less than low_freq_factor")
    return {"rope_type": rope_type} | rope


def _check_factors(key: str, factors: object) -> None:
    if not isinstance(factors, list) or not 0 < len(factors) <= MOST_FACTORS:
        raise ConfigError(
            f"config.json: {key} of the rotary embedding must be a list of at most {MOST_FACTORS} numbers"
        )
    for factor in factors:
        if type(factor) not in (int, float) or not 0 < factor <= MOST:
            raise ConfigError(f"config.json: {key} of the rotary embedding must hold numbers above 0, not {factor!r}")


def rotary_part(hf: dict[str, Any], usual: float | None) -> float:
    """Returns the part of each head that is turned, from either spelling of config.json. The rotary parameters come
    first, as they do for `rope_theta`.

    usual: where the file does not say it; None: models of this family turn whole heads. Raises ConfigError.
    """
    given = hf.get("rope_scaling") or hf.get("rope_parameters") or {}
    part = given.get("partial_rotary_factor")
    part = hf.get("partial_rotary_factor") if part is None else part
    if usual is not None and "proportional" in (given.get("rope_type"), given.get("type")):
        raise ConfigError(
            "config.json: rope type proportional is not supported for this architecture, whose heads are turned in part"
        )
    if part is None:
        if usual is not None and "partial_rotary_factor" in hf:
            raise ConfigError("config.json: partial_rotary_factor must be a number, not null")
        return 1.0 if usual is None else usual
    if usual is None and part != 1:
        raise ConfigError("config.json: a partial_rotary_factor other than 1 is not supported for this architecture")
    if type(part) not in (int, float) or not 0 < part <= 1:
        raise ConfigError(f"config.json: partial_rotary_factor must be a number above 0 and at most 1, not {part!r}")
    return float(part)


def longest_context(rope: dict[str, Any], max_position_embeddings: int) -> int:
    """Returns the number of positions that the model can use, its scaling included. Raises ConfigError above
    `MOST_POSITIONS`.
    """
    longest = _scaled_context(rope, max_position_embeddings)
    if longest > MOST_POSITIONS:
        raise ConfigError(
            f"config.json: max_position_embeddings {max_position_embeddings}, scaled by {rope['factor']}, makes more "
            f"than {MOST_POSITIONS} positions"
        )
    return longest


def _scaled_context(rope: dict[str, Any], max_position_embeddings: int) -> int:
    match rope["rope_type"]:
        case "linear" | "dynamic":
            return int(max_position_embeddings * rope["factor"])
        case "yarn":
            return max(max_position_embeddings, int(rope[LENGTH_BEFORE_SCALING] * rope["factor"]))
        case _:
            return max_position_embeddings


def _lengths(hf: dict[str, Any], given: dict[str, Any], max_position_embeddings: int) -> dict[str, Any]:
    """Returns the length before scaling, from any of its possible keys, and for yarn the factor if it must be computed
    from it.
    """
    if given.get("rope_type", given.get("type")) == "dynamic":
        return {LENGTH_BEFORE_SCALING: max_position_embeddings}
    written = (where.get(LENGTH_BEFORE_SCALING) for where in (hf, given))
    original = next((length for length in written if length is not None), max_position_embeddings)
    lengths = {LENGTH_BEFORE_SCALING: original}
    if given.get("factor") is None and isinstance(original, (int, float)) and original > 0:
        lengths["factor"] = max_position_embeddings / original if original < max_position_embeddings else None
    return lengths
