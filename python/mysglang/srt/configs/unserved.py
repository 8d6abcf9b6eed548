"""why_unserved: one line about an architecture that is not served, from its name and the keys of its config.json."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

MAX_NAMES, MAX_NAME_CHARS = 4, 80
"""Limits for the architectures that an error message lists."""

ALIKE = 0.85
"""Part of two names that must agree for one to be a slip of the pen for the other."""

TEXT_ALONE = "and only text is read here"

BY_KEY = {
    "is_encoder_decoder": "it is an encoder with a decoder, and here each is served by itself only",
    "vision_config": f"it reads pictures (vision_config), {TEXT_ALONE}",
    "audio_config": f"it reads sound (audio_config), {TEXT_ALONE}",
    "num_channels": f"it reads pictures (num_channels), {TEXT_ALONE}",
}
"""A key of config.json that is set -> what that says of the model."""

BY_ENDING = {
    r"For(Image|Object|Semantic|Instance|Universal|Depth|Video|Zero|Keypoint|Mask(ed)?Image)\w+": "it reads pictures, "
    + TEXT_ALONE,
    r"For(Audio|Speech|CTC|XVector)\w*": f"it reads sound, {TEXT_ALONE}",
    "ForMaskedLM|ForPreTraining": "it fills in masked tokens, and generates no text",
    "ForTokenClassification": "it labels single tokens, and here a whole text gets its labels",
    "ForQuestionAnswering": "it marks a part of a given text, and generates none",
    "ForMultipleChoice|ForNextSentencePrediction": "it compares given texts, and generates none",
    "ForConditionalGeneration": "it is an encoder with a decoder, or reads more than text",
}
"""How a name ends -> what that says of the model."""


STATES = "its layers keep a state for each request, and no code here computes layers of this kind"
BIASES = "its positions are a bias of the scores (ALiBi), which no attention here adds"
HALF = "it is the decoder of an encoder with a decoder, and here each is served by itself only"
NEVER: Mapping[str, str] = {
    **dict.fromkeys(("Qwen4Exp", "RecurrentGemma", "Rwkv", "Zamba", "Zaya", "xLSTM"), STATES),
    **dict.fromkeys(("Bloom", "Mpt"), BIASES),
    **dict.fromkeys(("Bart", "BigBirdPegasus", "Blenderbot", "BlenderbotSmall", "Marian", "MBart", "Mvp"), HALF),
    **dict.fromkeys(("Musicgen", "MusicgenMelody", "Pegasus", "PLBart", "ProphetNet", "TrOCR", "Whisper"), HALF),
}
"""Families of causal language models that neither code of ours nor transformers' serves here, and why."""


def why_never(name: str) -> str | None:
    """Returns why this architecture is never served, or None if some config.json of it may be."""
    return NEVER.get(name.removesuffix("ForCausalLM"))


def why_unserved(names: Sequence[object], hf: Mapping[str, Any], served: Collection[str]) -> str:
    """Returns the error message for a model that is not served.

    `names`: the `architectures` in the config.json `hf`, none of which is among the `served`.
    """
    listed = ", ".join(str(name)[:MAX_NAME_CHARS] for name in names[:MAX_NAMES])
    first = str(names[0])[:MAX_NAME_CHARS]
    meant, headless = _meant(first, served), re.sub(r"For\w+$", "Model", first)
    reason, advice = _kind(first, hf) or "no such architecture is known here", ""
    if meant is not None:
        reason = f"there is no such name. Is {meant} meant?"
    elif headless != first and headless in served:
        advice = f'; to make vectors with it, give --json-model-override-args \'{{"architectures": ["{headless}"]}}\''
    return f"architecture {listed} is not supported: {reason} (`mysglang models` lists those that are{advice})"


def _meant(name: str, served: Collection[str]) -> str | None:
    """Returns a served name that this one may be a misspelling of.

    Names of other families are often as close as a misspelling. So the family must be right, and its figures.
    """
    by_folded = {other.casefold(): other for other in served}
    folded = name.casefold()
    close = [by_folded[each] for each in get_close_matches(folded, by_folded, cutoff=ALIKE)]
    same = [other for other in close if _family(other) == _family(name)]
    return same[0] if same and not _ending(name) else None


def _family(name: str) -> str:
    """Returns the part of a name before its head."""
    return re.split("for|model|lmhead", name.casefold())[0]


def _ending(name: str) -> str | None:
    return next((said for ending, said in BY_ENDING.items() if re.search(f"({ending})$", name)), None)


def _kind(name: str, hf: Mapping[str, Any]) -> str | None:
    """Returns a description of a model that belongs to no supported family."""
    return next((said for key, said in BY_KEY.items() if hf.get(key)), None) or _ending(name) or why_never(name)
