"""Tokenizer: text to token ids and back, from a model's tokenizer files, with the tokenizers library alone.

Loads what transformers would load (tokenizer.json, tokenizer_config.json, special_tokens_map.json, chat templates)
without importing it, so that the processes that hold a tokenizer start in a fraction of a second. Encoding releases the
GIL. Does not know what a chat template means (`parser/template_manager.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import tokenizers
from tokenizers.processors import TemplateProcessing

from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.utils.json_errors import in_words
from mysglang.srt.utils.model_source import model_source
from mysglang.srt.utils.shortage import is_panic
from mysglang.srt.utils.text import IncrementalDecoder, StoppableText
from mysglang.srt.utils.token_bytes import DecoderSpec, TokenBytes

NAMED_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

FURTHER_SPECIAL_TOKENS = ("extra_special_tokens", "additional_special_tokens")
"""Keys of tokenizer_config.json for special tokens without a meaning of their own. The first that is set is read."""

MAX_VOCAB = 1 << 20
MAX_MERGES = 1 << 20
MAX_ADDED = 1 << 17
"""Entries of a tokenizer.json. The largest known one has 262,144 tokens and 514,906 merges."""

MAX_GROWTH = 64.0
"""Times that the steps of a tokenizer.json may make a text longer. Those in use make it a few times longer. Each
step is small, and together they are exponential: thirty that double a text make gigabytes of a greeting.
"""

MAX_PREPENDED = 256
"""Characters that a step may put before a text."""

IDS_PIECE = 1 << 14
"""Tokens, some third of a millisecond."""

_NOWHERE = (0, 0)
"""Span of a token that was put into a text from outside."""

_MAX_ID = (1 << 32) - 1
"""Largest id the library takes."""


class _PostProcessor(msgspec.Struct, frozen=True):
    type: str
    processors: list[_PostProcessor] = []

    def adds_special_tokens(self) -> bool:
        """True if this post-processor defines which special tokens are put around a text, even if it puts none."""
        framing = self.type in ("TemplateProcessing", "BertProcessing", "RobertaProcessing")
        return framing or any(processor.adds_special_tokens() for processor in self.processors)


class _ModelPart(msgspec.Struct, frozen=True):
    vocab: msgspec.Raw = msgspec.Raw(b"[]")
    merges: msgspec.Raw = msgspec.Raw(b"[]")


class _TokenizerFile(msgspec.Struct, frozen=True):
    """The parts of a tokenizer.json that we read ourselves."""

    model: _ModelPart | None = None
    added_tokens: msgspec.Raw = msgspec.Raw(b"[]")
    normalizer: Any = None
    decoder: DecoderSpec | None = None
    post_processor: _PostProcessor | None = None

    def check_size(self) -> None:
        """Raises ConfigError for a part with more entries than the library can load in a few seconds, and for steps
        that make a text much longer.
        """
        for name, step in (("normalizer", self.normalizer), ("decoder", msgspec.to_builtins(self.decoder))):
            if growth(step) > MAX_GROWTH:
                raise ConfigError(
                    f"tokenizer.json: {name} can make a text more than {MAX_GROWTH:g} times longer; download it again"
                )
        model = self.model or _ModelPart()
        for name, part, limit, commas in (
            ("model.vocab", model.vocab, MAX_VOCAB, 2),
            ("model.merges", model.merges, MAX_MERGES, 2),
            ("added_tokens", self.added_tokens, MAX_ADDED, 8),
        ):
            # Commas are counted in place of entries, which takes no time. An entry has as many at most, but for texts
            # with commas, which are few.
            if bytes(part).count(b",") > commas * limit:
                raise ConfigError(f"tokenizer.json: {name} has more than {limit} entries; at most that many are loaded")


class _AddedToken(msgspec.Struct, frozen=True):
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True
    special: bool = False


class Tokenizer:
    """One model's tokenizer. Safe to use from several threads."""

    def __init__(self, backend: tokenizers.Tokenizer, decoder: DecoderSpec | None, config: dict[str, Any]) -> None:
        """`config` is the tokenizer_config.json, its special tokens and chat templates completed; see `load`."""
        self._backend = backend
        self.config = config
        self.special_tokens: dict[str, str] = {
            name: content for name in NAMED_SPECIAL_TOKENS if (content := _content(config.get(name)))
        }
        """`bos_token` … -> its text, for those that the model has: what a chat template may name."""
        self.special_ids = frozenset(i for i, token in backend.get_added_tokens_decoder().items() if token.special)
        self._bytes = TokenBytes(decoder, self._token_of, self.special_ids)

    @classmethod
    def load(cls, path: str | Path) -> Tokenizer:
        """Returns the tokenizer in directory `path`, or in the GGUF file there. Raises ConfigError."""
        source = model_source(Path(path))
        content = source.tokenizer_json()
        file = Path(path, "tokenizer.json") if Path(path).is_dir() else Path(path)
        try:
            described = msgspec.json.decode(content, type=_TokenizerFile)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"{file} is not a tokenizer that can be used here: {in_words(error)}") from error
        except RecursionError as error:
            raise ConfigError(f"{file} is not a tokenizer that can be used here: {error}") from error
        described.check_size()
        try:
            backend = tokenizers.Tokenizer.from_buffer(content)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises nothing narrower, and its panics are no Exception
            raise ConfigError(f"{file} cannot be loaded: {error}") from error
        config = source.tokenizer_config()
        _complete(backend, config, described.post_processor)
        return cls(backend, described.decoder, config)

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included. A model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        return self._named_id("eos_token")

    @property
    def longest_token(self) -> int:
        """Characters of the longest token: a text of n times as many has at least n tokens."""
        return self._extremes[0]

    @property
    def largest_id(self) -> int:
        """Largest token id."""
        return self._extremes[1]

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids of `text`; `add_special_tokens` puts around it what the model expects (usually BOS)."""
        return self.encode_batch([text], add_special_tokens=add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[list[int]]:
        """Returns the token ids of several texts. Special tokens written out in a text become those tokens."""
        # Unlike `encode`, the batch call releases the GIL, and _fast skips offsets that are not used.
        return [_ids(encoding) for encoding in self._encode(list(texts), add_special_tokens=add_special_tokens)]

    def starts(self, text: str) -> list[int]:
        """Returns for each token of `encode(text)` the character of `text` with which it begins. A token within a
        character has that character's place, and a token that the text does not contain, such as BOS, the place where
        it was put in.
        """
        [encoding] = self._encode([text], add_special_tokens=True, offsets=True)
        ids, spans = encoding.ids, encoding.offsets
        last = max((place for place, span in enumerate(spans) if span != _NOWHERE), default=-1)
        found: list[int] = []
        end = 0
        for place, (token_id, (start, stop)) in enumerate(zip(ids, spans, strict=True)):
            if (start, stop) == _NOWHERE:
                found.append(len(text) if place > last >= 0 else end)
                continue
            word = self.token_text(token_id)
            spaces = len(word) - len(word.lstrip())
            # Some tokenizers count a token from behind the spaces with which it begins.
            if 0 < spaces <= start and not text[start:stop][:1].isspace() and text[start - spaces : start].isspace():
                start -= spaces
            found.append(start)
            end = stop
        return found

    def encode_pairs(self, pairs: Sequence[tuple[str, str]]) -> list[tuple[list[int], int | None]]:
        """Returns the ids of two texts each, framed as the model expects it, and at which of them the second text
        begins; None for a tokenizer that does not tell the two apart.
        """
        encodings = self._encode(list(pairs), add_special_tokens=True)
        return [(one.ids, one.type_ids.index(1) if 1 in one.type_ids else None) for one in encodings]

    def _encode(
        self, texts: list[str] | list[tuple[str, str]], *, add_special_tokens: bool, offsets: bool = False
    ) -> list[tokenizers.Encoding]:
        """Returns the ids of texts, and with `offsets` the span of each in its text.

        Raises InvalidRequest for a text on which the library gives up, such as one that cannot be split into words in a
        bounded number of steps.
        """
        try:
            encode = self._backend.encode_batch if offsets else self._backend.encode_batch_fast
            return encode(texts, add_special_tokens=add_special_tokens)
        except BaseException as error:
            if not is_panic(error):
                raise
            raise InvalidRequest(f"The text cannot be tokenized: {error}") from error

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Returns the text of `ids` from its start. Ids outside the vocabulary have no text.

        Equal to the tokenizers library's, with one difference: where a run of byte-fallback tokens is not valid UTF-8,
        its valid characters are kept, so that a text does not depend on when it was looked at.
        """
        decoder = self.incremental_decoder(skip_special_tokens=skip_special_tokens, at_start=True)
        return decoder.feed(ids) + decoder.finish()

    def incremental_decoder(self, *, skip_special_tokens: bool = True, at_start: bool = False) -> IncrementalDecoder:
        """Returns a decoder for one growing text; see IncrementalDecoder for `at_start`."""
        return IncrementalDecoder(self._bytes, skip_special_tokens=skip_special_tokens, at_start=at_start)

    def output_text(
        self,
        stops: Sequence[str] = (),
        regexes: Sequence[str] = (),
        *,
        skip_special_tokens: bool = True,
        min_new: int = 0,
    ) -> StoppableText:
        """Returns the text of one request's output. Scheduler and detokenizer both build it here, so they cannot
        disagree. `min_new`: number of tokens before which no stop string ends the text.
        """
        decoder = self.incremental_decoder(skip_special_tokens=skip_special_tokens)
        return StoppableText(decoder, stops, regexes, min_new=min_new)

    def token_bytes(self, token_id: int) -> bytes:
        """Returns the bytes that the token adds to a text; they may be a part of a character."""
        return self._bytes.all[token_id]

    def token_text(self, token_id: int) -> str:
        """Returns the token as text of its own, for logprobs: leading space kept, special tokens shown."""
        return self.token_bytes(token_id).decode(errors="replace")

    def id_of(self, token: str) -> int | None:
        """Returns the id of a token as the vocabulary writes it."""
        return self._backend.token_to_id(token)

    @cached_property
    def _extremes(self) -> tuple[int, int]:
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        return max(map(len, vocabulary), default=1), max(vocabulary.values(), default=0)

    def _named_id(self, name: str) -> int | None:
        token = self.special_tokens.get(name)
        return None if token is None else self.id_of(token)

    def _token_of(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id) if 0 <= token_id <= _MAX_ID else None


def _ids(encoding: tokenizers.Encoding) -> list[int]:
    """Returns the ids. Those of a long text are made piece by piece: while a list is made, no other thread can run."""
    if len(encoding) <= IDS_PIECE:
        return list(encoding.ids)
    encoding.truncate(IDS_PIECE)
    ids = list(encoding.ids)
    for rest in encoding.overflowing:
        ids += rest.ids
    return ids


def _complete(backend: tokenizers.Tokenizer, config: dict[str, Any], post_processor: _PostProcessor | None) -> None:
    """Adds to the backend the settings that only tokenizer_config.json has."""
    backend.no_truncation()
    backend.no_padding()
    try:
        added = msgspec.convert(config.get("added_tokens_decoder") or {}, dict[int, _AddedToken], strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"tokenizer_config.json: added_tokens_decoder: {in_words(error)}") from error
    tokens = [tokenizers.AddedToken(**msgspec.structs.asdict(token)) for _, token in sorted(added.items())]
    tokens += [tokenizers.AddedToken(token, special=True, normalized=False) for token in _special_contents(config)]
    if len(tokens) > MAX_ADDED:
        raise ConfigError(f"tokenizer_config.json: names {len(tokens)} added tokens; at most {MAX_ADDED} are loaded")
    # Flags of a token that the backend knows already are the backend's.
    known = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_tokens([token for token in tokens if token.content not in known])
    if post_processor is None or not post_processor.adds_special_tokens():
        bos = _content(config.get("bos_token")) if config.get("add_bos_token") is True else None
        eos = _content(config.get("eos_token")) if config.get("add_eos_token") is True else None
        _frame(backend, bos, eos)


def _frame(backend: tokenizers.Tokenizer, bos: str | None, eos: str | None) -> None:
    """Adds `bos` before and `eos` after a text that is encoded with special tokens."""
    ids = [(token, token_id) for token in (bos, eos) if token and (token_id := backend.token_to_id(token)) is not None]
    if ids:
        frame = [token for token in (bos, "$A", eos) if token]
        backend.post_processor = TemplateProcessing(single=frame, pair=[*frame, "$B"], special_tokens=ids)


def _special_contents(config: dict[str, Any]) -> list[str]:
    """Returns every special token that the configuration names. Raises ConfigError."""
    key = next((key for key in FURTHER_SPECIAL_TOKENS if config.get(key)), None)
    extra = [] if key is None else config[key]
    if not isinstance(extra, (list, dict)):
        raise ConfigError(f"tokenizer_config.json: {key} must be a list or an object of tokens, not {extra!r}")
    values = [config.get(name) for name in NAMED_SPECIAL_TOKENS]
    values += extra.values() if isinstance(extra, dict) else extra
    return [content for value in values if (content := _content(value))]


def _content(value: object) -> str | None:
    """Returns a token as the configuration writes it, a string or an object with `content`."""
    content = value.get("content") if isinstance(value, dict) else value
    return content if isinstance(content, str) else None


def growth(step: object) -> float:
    """Returns the most by which a normalizer or decoder makes a text longer, as a factor; infinite above all bounds.

    Counts only what a file can make as large as it likes. What is malformed counts as 1: the library refuses it.
    """
    if not isinstance(step, dict):
        return 1.0
    parts = next((step[name] for name in ("normalizers", "decoders") if isinstance(step.get(name), list)), None)
    if parts is not None:
        total = 1.0
        for part in parts:
            total = min(total * growth(part), math.inf)
        return total
    prepended = step.get("prepend")
    if isinstance(prepended, str) and len(prepended) > MAX_PREPENDED:
        return math.inf
    content, pattern = step.get("content"), step.get("pattern")
    if step.get("type") != "Replace" or not isinstance(content, str) or not isinstance(pattern, dict):
        return 1.0
    plain = pattern.get("String")
    if isinstance(plain, str) and plain:
        return max(1.0, len(content) / len(plain))
    # An expression may match between any two characters.
    return len(content) + 1.0
