"""Bytes that each token adds to a text: the `decoder` of a tokenizer.json, compiled to a table.

Decoding token by token this way costs the same for the last token of a text as for its first. Knows the decoders of
generative models (byte-level, byte-fallback, Metaspace and what surrounds them) and BERT's WordPiece; others are
refused at load. Does not know how bytes become text over time (`text.py`) or how text becomes tokens (`tokenizer.py`).
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import msgspec

from mysglang.srt.errors import ConfigError


class ByteLevel(msgspec.Struct, frozen=True, tag_field="type", tag="ByteLevel"):
    """A decoder in which each character of a token stands for one byte (GPT-2, Llama 3, Qwen, DeepSeek)."""


class ByteFallback(msgspec.Struct, frozen=True, tag_field="type", tag="ByteFallback"):
    """A decoder in which a token `<0xE4>` stands for that byte (Llama 2, Mistral, Gemma)."""


class Fuse(msgspec.Struct, frozen=True, tag_field="type", tag="Fuse"):
    """A decoder that joins the tokens: later decoders get one string."""


class StringPattern(msgspec.Struct, frozen=True):
    """A pattern that is plain text; regular expressions are refused."""

    String: str


class Replace(msgspec.Struct, frozen=True, tag_field="type", tag="Replace"):
    """Replaces each occurrence of the pattern in a token by `content`."""

    pattern: StringPattern
    content: str


class Strip(msgspec.Struct, frozen=True, tag_field="type", tag="Strip"):
    """Removes up to `start` leading and `stop` trailing `content` characters."""

    content: str
    start: int = 0
    stop: int = 0


class Metaspace(msgspec.Struct, frozen=True, tag_field="type", tag="Metaspace"):
    """A decoder in which `replacement` stands for a space; in a text's first token it may stand for nothing."""

    replacement: str = "▁"
    prepend_scheme: Literal["always", "first", "never"] = "always"


class WordPiece(msgspec.Struct, frozen=True, tag_field="type", tag="WordPiece"):
    """A decoder in which a token is a word, or continues one if it begins with `prefix` (BERT).

    `cleanup`: punctuation stands without a space before it.
    """

    prefix: str = "##"
    cleanup: bool = True


class DecoderSequence(msgspec.Struct, frozen=True, tag_field="type", tag="Sequence"):
    """A decoder that applies several decoders in order."""

    decoders: list[DecoderSpec]


DecoderSpec: TypeAlias = ByteLevel | ByteFallback | Fuse | Replace | Strip | Metaspace | WordPiece | DecoderSequence

_CLEANED = (" .", " ?", " !", " ,", " n't", " 'm", " 's", " 've", " 're")
"""Texts that lose their space inside a token, by the tokenizers library."""


def _per_byte(error: UnicodeError) -> tuple[str, int]:
    """Handles a codec error: returns one U+FFFD for each invalid byte, as the byte-fallback decoder writes them."""
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


PER_BYTE = "mysglang.per_byte"
codecs.register_error(PER_BYTE, _per_byte)


def _byte_level_alphabet() -> dict[str, int]:
    """Returns character -> byte. Printable Latin-1 stands for itself; the other bytes are moved behind it, from U+0100
    on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(moved)}


_BYTE_OF = _byte_level_alphabet()


def _plain_bytes(token: str) -> bytes:
    return token.encode()


def _byte_level_bytes(token: str) -> bytes:
    try:
        return bytes([_BYTE_OF[character] for character in token])
    except KeyError:
        return token.encode()  # an added token outside the alphabet is its own text


def _byte_fallback_bytes(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.encode()


@dataclass(slots=True)
class DecodingRules:
    """A decoder as functions. A token goes through `rewrites`, then `to_bytes`."""

    rewrites: list[Callable[[str], str]] = field(default_factory=list)
    first_rewrites: list[Callable[[str], str]] = field(default_factory=list)
    """The rewrites for the first token of a text."""
    to_bytes: Callable[[str], bytes] = _plain_bytes
    on_invalid: str = "replace"
    """Codec error handler for bytes that are not UTF-8."""
    strip: bytes = b""
    """Bytes that are removed from the start of a text, up to `strip_count` times."""
    strip_count: int = 0

    def piece(self, token: str) -> bytes:
        for rewrite in self.rewrites:
            token = rewrite(token)
        return self.to_bytes(token)

    def first_piece(self, token: str) -> bytes:
        for rewrite in self.first_rewrites:
            token = rewrite(token)
        return self.to_bytes(token)


def compile_decoder(spec: DecoderSpec | None) -> DecodingRules:
    """Returns the rules of a tokenizer.json's `decoder`. Raises ConfigError if its parts are in an order not known
    here.

    Without a decoder, tokens are joined by spaces, as the tokenizers library does.
    """
    rules = DecodingRules()
    if spec is None:
        rules.rewrites.append(lambda token: " " + token)
        return rules
    one_string = False
    for step in _flatten(spec):
        match step:
            case Fuse():
                one_string = True
            case ByteLevel() if not one_string:
                rules.to_bytes, one_string = _byte_level_bytes, True
            case ByteFallback() if not one_string and rules.to_bytes is _plain_bytes:
                rules.to_bytes, rules.on_invalid = _byte_fallback_bytes, PER_BYTE
            case Strip(content=content, start=start, stop=0) if one_string and not rules.strip_count:
                rules.strip, rules.strip_count = content.encode(), start
            case Replace() | Strip() | Metaspace() | WordPiece() if not one_string and rules.to_bytes is _plain_bytes:
                rules.rewrites.append(_rewrite(step, first=False))
                rules.first_rewrites.append(_rewrite(step, first=True))
            case _:
                raise ConfigError(f"tokenizer.json: the decoder step {step!r} is not supported at this place.")
    return rules


def _flatten(spec: DecoderSpec) -> list[DecoderSpec]:
    if isinstance(spec, DecoderSequence):
        return [step for inner in spec.decoders for step in _flatten(inner)]
    return [spec]


def _rewrite(step: Replace | Strip | Metaspace | WordPiece, *, first: bool) -> Callable[[str], str]:
    match step:
        case Replace(pattern=pattern, content=content):
            return lambda token: token.replace(pattern.String, content)
        case Strip(content=content, start=start, stop=stop):
            return lambda token: _strip(token, content, start, stop)
        case Metaspace(replacement=mark, prepend_scheme=scheme):
            space = "" if first and scheme != "never" else " "
            return lambda token: token.replace(mark, space)
        case WordPiece(prefix=prefix, cleanup=cleanup):
            return lambda token: _word_piece(token, prefix, first=first, cleanup=cleanup)


def _word_piece(token: str, prefix: str, *, first: bool, cleanup: bool) -> str:
    if not first:
        token = token.removeprefix(prefix) if token.startswith(prefix) else " " + token
    if cleanup:
        for spaced in _CLEANED:
            token = token.replace(spaced, spaced[1:])
    return token


def _strip(token: str, content: str, start: int, stop: int) -> str:
    while start and token.startswith(content):
        token, start = token[len(content) :], start - 1
    while stop and token.endswith(content):
        token, stop = token[: -len(content)], stop - 1
    return token


class PieceTable(dict[int, bytes]):
    """Maps a token id to the bytes that it adds to a text. Entries are computed on first use. Ids in `hidden` and
    unknown ids add no bytes.
    """

    def __init__(self, token_of: Callable[[int], str | None], rules: DecodingRules, hidden: Collection[int]) -> None:
        super().__init__()
        self._token_of = token_of
        self._rules = rules
        self._hidden = hidden

    def __missing__(self, token_id: int) -> bytes:
        token = None if token_id in self._hidden else self._token_of(token_id)
        if token is None:
            return b""  # not kept: the number of ids that do not exist has no bound
        piece = self[token_id] = self._rules.piece(token)
        return piece

    def first(self, token_id: int) -> bytes | None:
        """Returns the bytes of the token at the start of a text; None if the token is not part of it."""
        token = None if token_id in self._hidden else self._token_of(token_id)
        return None if token is None else self._rules.first_piece(token)


class TextTable(dict[int, str | None]):
    """Maps a token id to the text that it adds if no character is incomplete; None if it holds a part of one.

    Filled on first use, like the pieces that it is made of.
    """

    def __init__(self, pieces: PieceTable) -> None:
        super().__init__()
        self._pieces = pieces

    def __missing__(self, token_id: int) -> str | None:
        try:
            text = self._pieces[token_id].decode()
        except UnicodeDecodeError:
            text = None
        if token_id in self._pieces:
            self[token_id] = text
        return text


class TokenBytes:
    """The tables of one tokenizer: with special tokens in the text, and without."""

    def __init__(
        self, spec: DecoderSpec | None, token_of: Callable[[int], str | None], special: Collection[int]
    ) -> None:
        self.rules = compile_decoder(spec)
        self.all = PieceTable(token_of, self.rules, ())
        self.ordinary = PieceTable(token_of, self.rules, frozenset(special))
        self._texts = {False: TextTable(self.all), True: TextTable(self.ordinary)}

    def table(self, *, skip_special_tokens: bool) -> PieceTable:
        return self.ordinary if skip_special_tokens else self.all

    def texts(self, *, skip_special_tokens: bool) -> TextTable:
        return self._texts[skip_special_tokens]


class ContinuedText:
    """Joins the pieces of a text that continues another: no rule about a text's start applies."""

    def __init__(self, table: PieceTable) -> None:
        self._piece = table.__getitem__

    def join(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._piece, ids))


class StartingText:
    """Joins the pieces of a text from its start, where the decoder drops a leading space."""

    def __init__(self, table: PieceTable, rules: DecodingRules) -> None:
        self._table = table
        self._strip = rules.strip
        self._strips_left = rules.strip_count
        self._empty = True

    def join(self, ids: Sequence[int]) -> bytes:
        pieces = [self._table[token_id] for token_id in ids]
        if self._empty:
            self._correct_first(pieces, ids)
        data = b"".join(pieces)
        while self._strips_left and data:
            if data.startswith(self._strip):
                data, self._strips_left = data[len(self._strip) :], self._strips_left - 1
            else:
                self._strips_left = 0
        return data

    def _correct_first(self, pieces: list[bytes], ids: Sequence[int]) -> None:
        for position, token_id in enumerate(ids):
            first = self._table.first(token_id)
            if first is not None:
                pieces[position], self._empty = first, False
                return
