"""The made-up vocabulary as a tokenizer's files, for processes that load one. It writes pieces; it cannot cut texts."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models

from mysglang.srt.constrained.vocabulary import Vocabulary


def save_tokenizer(vocabulary: Vocabulary, folder: Path) -> None:
    """Write tokenizer.json and its companion files."""
    words = {_in_letters(piece): token for token, piece in enumerate(vocabulary.pieces) if piece}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(f"<|{token}|>", special=True) for token, piece in enumerate(vocabulary.pieces) if not piece]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": f"<|{vocabulary.eos_ids[0]}|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _in_letters(piece: bytes) -> str:
    """Bytes as byte-level tokenizers write them: those that are no printable Latin-1 stand behind U+0100."""
    return "".join(map(_LETTERS.__getitem__, piece))


def _letters() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}


_LETTERS = _letters()
