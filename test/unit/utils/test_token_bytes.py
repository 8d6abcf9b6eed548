"""The table of token bytes against the tokenizers library's own decoders."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from fixtures import small_tokenizer
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.text import IncrementalDecoder
from mysglang.srt.utils.token_bytes import DecoderSpec, TokenBytes, compile_decoder

VOCAB = ["▁", "▁▁a", "a", "b▁", "▁é", "世", " c", "<0x41>", "<0xE4>", "<0xB8>", "<0x9C>", "<0xFF>", "<0xzz>", "Ġx", "Ā"]

DECODERS = {
    "llama": decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "gemma": decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    "byte_level": decoders.ByteLevel(),
    "metaspace": decoders.Metaspace(replacement="▁", prepend_scheme="always"),
    "metaspace_never": decoders.Metaspace(replacement="▁", prepend_scheme="never"),
    "strip_each": decoders.Sequence([decoders.Strip("▁", 1, 0), decoders.Fuse()]),
    "none": None,
}


def library(decoder: decoders.Decoder | None) -> Tokenizer:
    backend = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(VOCAB)}, merges=[]))
    if decoder is not None:
        backend.decoder = decoder
    return backend


def spec(backend: Tokenizer) -> DecoderSpec | None:
    return msgspec.convert(json.loads(backend.to_str())["decoder"], DecoderSpec | None)


def broken_run(ids: list[int]) -> bool:
    """True if some run of byte tokens is not UTF-8; there we keep the valid characters and the library does not."""
    run = b""
    for token in [*(VOCAB[i] for i in ids), "end"]:
        if token.startswith("<0x") and token != "<0xzz>":
            run += bytes([int(token[3:5], 16)])
            continue
        try:
            run.decode()
        except UnicodeDecodeError:
            return True
        run = b""
    return False


@pytest.mark.parametrize("name", sorted(DECODERS))
@given(ids=st.lists(st.integers(0, len(VOCAB) - 1), max_size=8))
def test_decodes_as_the_library(name: str, ids: list[int]) -> None:
    backend = library(DECODERS[name])
    if name in ("llama", "gemma") and broken_run(ids):
        return
    decoder = IncrementalDecoder(TokenBytes(spec(backend), backend.id_to_token, ()), at_start=True)
    shown = "".join(decoder.feed([token]) for token in ids) + decoder.finish()
    assert shown == backend.decode(ids)


@pytest.mark.parametrize("kind", sorted(small_tokenizer.KINDS))
def test_every_token_alone_decodes_as_the_library(kind: str) -> None:
    backend = small_tokenizer.KINDS[kind]()
    special = [i for i, token in backend.get_added_tokens_decoder().items() if token.special]
    table = TokenBytes(spec(backend), backend.id_to_token, special)
    for skip in (True, False):
        for token in range(backend.get_vocab_size()):
            decoder = IncrementalDecoder(table, skip_special_tokens=skip, at_start=True)
            assert decoder.feed([token]) + decoder.finish() == backend.decode([token], skip_special_tokens=skip)


def test_a_broken_run_keeps_its_valid_characters() -> None:
    backend = library(DECODERS["gemma"])
    ids = [VOCAB.index(token) for token in ("<0x41>", "<0xE4>", "<0xB8>", "<0x9C>", "<0xFF>", "a")]
    decoder = IncrementalDecoder(TokenBytes(spec(backend), backend.id_to_token, ()))
    assert decoder.feed(ids) == "A东\ufffda"


def test_unknown_ids_have_no_text_and_leave_no_trace() -> None:
    backend = library(None)
    table = TokenBytes(None, lambda i: backend.id_to_token(i) if i < 10_000 else None, ()).all
    assert [table[i] for i in range(len(VOCAB), 5_000)] == [b""] * (5_000 - len(VOCAB))
    assert not table


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.Sequence([decoders.Fuse(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Replace("a", "b")]),
        decoders.Sequence([decoders.ByteLevel(), decoders.ByteFallback()]),
    ],
)
def test_an_order_that_is_not_token_by_token_is_refused(decoder: decoders.Decoder) -> None:
    with pytest.raises(ConfigError, match="decoder step"):
        compile_decoder(spec(library(decoder)))
