"""Converts the tokenizer in a GGUF file to tokenizer.json and tokenizer_config.json of the same model.

tokenizer.ggml.model    gpt2: BPE over bytes, whose words `tokenizer.ggml.pre` defines
                        llama: BPE by the scores of a SentencePiece model, unknown characters as bytes
tokenizer.huggingface.json, where it is there, is the tokenizer.json itself

transformers can convert these too. It needs the package gguf, loads torch, and takes no notice of
`tokenizer.ggml.pre`: Llama 3 gets the words of GPT-2, and Gemma a unigram model in the place of its BPE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mysglang.srt.utils.gguf.config_json import Facts

NORMAL, CONTROL, USER_DEFINED = 1, 3, 4
"""Types of tokens, by the numbers of llama.cpp."""

SPACE = "▁"

MAX_CHARACTERS = 1 << 24
"""Limit for all tokens together. The largest known vocabulary has about 2 million."""
MAX_MERGED = 256
"""Characters of a token that is looked for as a pair of others. The longest known ones have 64."""

_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _bytes(*, words: bool) -> dict[str, Any]:
    """Returns the byte-level pre-tokenizer. words: True to split words by GPT-2's expression."""
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": words}


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How a text is cut into words before BPE."""

    steps: tuple[dict[str, Any], ...]
    whole_words: bool = False
    """True if a word that is a token is that token, whatever its merges say."""
    add_bos: bool = False
    """True if a text begins with BOS when the file does not say it."""
    nfc: bool = False
    """True if characters are composed (NFC) first."""


GPT2 = Words(steps=(_bytes(words=True),))
DIGITS = Words(steps=({"type": "Digits", "individual_digits": True}, _bytes(words=True)))
LLAMA3 = Words(
    steps=(_split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"), _bytes(words=False)),
    whole_words=True,
    add_bos=True,
)
QWEN2 = Words(
    steps=(_split(rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"), _bytes(words=False)), nfc=True
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = Words(
    steps=(
        _split(
            rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
        _bytes(words=False),
    ),
    whole_words=True,
    add_bos=True,
)

WORDS: Mapping[str, Words] = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4"), GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), DIGITS),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN2),
    "tekken": TEKKEN,
}
"""Word rules by `tokenizer.ggml.pre`, as llama.cpp's src/llama-vocab.cpp groups them."""


def tokenizer_json(facts: Facts) -> bytes:
    """Returns the tokenizer.json. Raises ConfigError for a tokenizer that is missing, damaged or of another kind."""
    whole = facts.metadata.get("tokenizer.huggingface.json")
    if isinstance(whole, str):
        return whole.encode()
    kind = facts.metadata.get("tokenizer.ggml.model")
    if kind is None:
        raise facts.refused("it holds no tokenizer; give one with --tokenizer-path")
    if kind not in ("gpt2", "llama"):
        raise facts.refused(
            f"a tokenizer of the kind {str(kind)[:80]!r} is not supported as GGUF (gpt2 and llama are); give the "
            "model's with --tokenizer-path"
        )
    return msgspec.json.encode(_byte_bpe(facts) if kind == "gpt2" else _scored_bpe(facts))


def tokenizer_config(facts: Facts) -> dict[str, Any]:
    """Returns the tokenizer_config.json."""
    tokens = _tokens(facts) if "tokenizer.ggml.tokens" in facts.metadata else []
    config: dict[str, Any] = {}
    for name in ("bos", "eos", "unknown", "padding", "mask"):
        token_id = facts.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(token_id, int) and 0 <= token_id < len(tokens):
            config[{"unknown": "unk", "padding": "pad"}.get(name, name) + "_token"] = tokens[token_id]
    spm = facts.metadata.get("tokenizer.ggml.model") == "llama"
    words = WORDS.get(str(facts.metadata.get("tokenizer.ggml.pre")))
    adds = facts.metadata.get("tokenizer.ggml.add_bos_token")
    config["add_bos_token"] = bool(spm or (words is not None and words.add_bos)) if adds is None else bool(adds)
    config["add_eos_token"] = bool(facts.metadata.get("tokenizer.ggml.add_eos_token"))
    if (template := _templates(facts)) is not None:
        config["chat_template"] = template
    return config


def _templates(facts: Facts) -> Any:
    """Returns the chat template, or a list of several by name."""
    template = facts.metadata.get("tokenizer.chat_template")
    names = facts.metadata.get("tokenizer.chat_templates")
    named = {"default": template} if isinstance(template, str) else {}
    for name in names if isinstance(names, list) else []:
        if isinstance(name, str) and isinstance(text := facts.metadata.get(f"tokenizer.chat_template.{name}"), str):
            named[name] = text
    if list(named) == ["default"]:
        return template
    return [{"name": name, "template": text} for name, text in named.items()] or None


def _byte_bpe(facts: Facts) -> dict[str, Any]:
    pre = str(facts.metadata.get("tokenizer.ggml.pre", "default"))
    if pre not in WORDS:
        raise facts.refused(
            f"how its tokenizer splits words (tokenizer.ggml.pre, {pre[:80]!r}) is not known here; give the "
            "model's tokenizer with --tokenizer-path"
        )
    words = WORDS[pre]
    merges = []
    for merge in _texts(facts, "merges"):
        # A token may begin with a space.
        left, space, right = merge[:1] + merge[1:].partition(" ")[0], " " in merge[1:], merge[1:].partition(" ")[2]
        if not space:
            raise facts.refused(f"tokenizer.ggml.merges holds {merge[:80]!r}, which is no pair")
        merges.append((left, right))
    model = {"type": "BPE", "vocab": _vocab(facts), "merges": merges, "ignore_merges": words.whole_words}
    return {
        **_frame(facts),
        "normalizer": {"type": "NFC"} if words.nfc else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(words.steps)},
        "decoder": _bytes(words=True),
        "model": model,
    }


def _scored_bpe(facts: Facts) -> dict[str, Any]:
    prefix = facts.metadata.get("tokenizer.ggml.add_space_prefix", True)
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    steps = [{"type": "Prepend", "prepend": SPACE}, replaced] if prefix else [replaced]
    back = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
        *([{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []),
    ]
    unknown = facts.metadata.get("tokenizer.ggml.unknown_token_id")
    tokens = _tokens(facts)
    model = {
        "type": "BPE",
        "vocab": _vocab(facts),
        "merges": _scored_merges(facts, tokens),
        "unk_token": tokens[unknown] if isinstance(unknown, int) and 0 <= unknown < len(tokens) else None,
        "fuse_unk": True,
        "byte_fallback": True,
    }
    return {
        **_frame(facts),
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": back},
        "model": model,
    }


def _scored_merges(facts: Facts, tokens: list[str]) -> list[tuple[str, str]]:
    """Returns every pair of tokens that is a token, the one of the highest score first."""
    if (characters := sum(map(len, tokens))) > MAX_CHARACTERS:
        raise facts.refused(f"it has tokens of {characters} characters together, and at most {MAX_CHARACTERS} are read")
    scores, types = _numbers(facts, "scores", len(tokens)), _types(facts, len(tokens))
    parts = {token for token, kind in zip(tokens, types, strict=True) if kind in (NORMAL, USER_DEFINED)}
    found: list[tuple[float, str, str]] = []
    for token, score, kind in zip(tokens, scores, types, strict=True):
        if kind == NORMAL and len(token) <= MAX_MERGED:
            halves = ((token[:at], token[at:]) for at in range(1, len(token)))
            found += [(score, left, right) for left, right in halves if left in parts and right in parts]
    found.sort(key=lambda merge: -merge[0])
    return [(left, right) for _, left, right in found]


def _frame(facts: Facts) -> dict[str, Any]:
    """Returns the part that all kinds share: tokens that are found in a text before it is split into words."""
    tokens = _tokens(facts)
    kinds = _types(facts, len(tokens))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": number, "content": token, **flags, "special": kind == CONTROL}
        for number, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, USER_DEFINED) and token
    ]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}


def _vocab(facts: Facts) -> dict[str, int]:
    return {token: number for number, token in enumerate(_tokens(facts))}


def _tokens(facts: Facts) -> list[str]:
    return _texts(facts, "tokens")


def _texts(facts: Facts, key: str) -> list[str]:
    found = facts.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise facts.refused(f"tokenizer.ggml.{key} must be a list of texts; give a tokenizer with --tokenizer-path")
    return found


def _types(facts: Facts, count: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in facts.metadata:
        return [NORMAL] * count
    kinds = _numbers(facts, "token_type", count)
    if not all(isinstance(kind, int) for kind in kinds):
        raise facts.refused("tokenizer.ggml.token_type must be a list of whole numbers, one for each token")
    return [int(kind) for kind in kinds]


def _numbers(facts: Facts, key: str, count: int) -> list[float]:
    found = facts.metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or len(found) != count or not all(isinstance(each, int | float) for each in found):
        raise facts.refused(f"tokenizer.ggml.{key} must be a list of {count} numbers, one for each token")
    return found
