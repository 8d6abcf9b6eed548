"""SamplingParams: how the tokens of one request are chosen and when it ends.

A wire struct: verified once where a request arrives, trusted everywhere after that. What a sampling feature is asked
for by is declared in the feature's own file, all else here. Knows no tokenizer and no torch.
"""

import reprlib
from collections.abc import Callable, Collection, Iterable
from itertools import compress
from operator import attrgetter, is_not
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.sampling.features import FEATURES
from mysglang.srt.sampling.grammar_spec import KINDS, GrammarKind, GrammarSpec, check_grammars, grammar_spec
from mysglang.srt.sampling.request_field import (
    OR_ONE,
    SHORT,
    Bound,
    Declared,
    RequestField,
    at_least,
    at_most,
    between,
    declared,
    joined,
    on,
)
from mysglang.srt.utils.stop_regex import compile_regex

MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 1024
MAX_STOP_LENGTH = 1024
"""Longest stop string, in characters."""
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
"""Longest bad word, in characters."""
MAX_BAD_WORDS_LENGTH = 32 << 10
"""Limit in characters for all of them together: each answer has a copy of their tokens, and a request may have many
answers.
"""
MAX_ALLOWED_TOKEN_IDS = 1 << 19
"""Larger than any vocabulary; `verify` compares the list with the model's size."""
MAX_REGEX_WORK = 2048
"""Moves that one character of the answer may cost all patterns of a request together, at most."""
MAX_N = 128
MAX_LENGTH_PENALTY = 10
MAX_CUSTOM_PARAMS = 1024

_INT32_MAX = (1 << 31) - 1

_COMPILING = 1 << 12
"""Characters that could be tokenized while a pattern is compiled."""
_BYTES_BY_ID = 40
"""Bytes of a list's entry in Python."""


def _object_bytes(custom_params: dict[str, Any]) -> int:
    """Estimates the memory of the objects, which is several times the size of their encoding."""
    return 8 * len(msgspec.msgpack.encode(custom_params))


_SCHEMA = "A JSON schema as text that the answer satisfies. At most one of json_schema, regex, ebnf and structural_tag."


def _grammar(text: str) -> RequestField:
    """Declares a grammar field for the native route only. Routes of other dialects have forms of their own for it."""
    return RequestField(text, routes={}, work=len, held_bytes=len)


if TYPE_CHECKING:
    from mysglang.srt.sampling.drawing import DrawingFields
    from mysglang.srt.sampling.logit_bias import LogitBiasFields
    from mysglang.srt.sampling.min_new_tokens import MinNewTokensFields
    from mysglang.srt.sampling.penalties import PenaltyFields

    class _FeatureFields(DrawingFields, PenaltyFields, LogitBiasFields, MinNewTokensFields, frozen=True, kw_only=True):
        """Features of which other code also reads some fields by name. A feature whose fields only its own code reads
        is not listed here; the table decides which fields there are.
        """

else:
    _FeatureFields = joined("FeatureFields", (feature.fields for feature in FEATURES))


class SamplingParams(_FeatureFields, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The `sampling_params` of a request, under SGLang's names. Defaults are the native route's constants."""

    max_new_tokens: Annotated[
        int | None,
        # The value is cut off at the limit, however large it is.
        RequestField(
            "Maximum tokens of the answer; null for what the context has room for. Default: 128.",
            (at_least(0),),
            routes={},
            with_beams=True,
        ),
    ] = 128
    stop: Annotated[
        list[str],
        OR_ONE,
        SHORT,
        RequestField(
            "Texts that end the answer, one or a list. They are cut from it, unless `no_stop_trim` is set.",
            (
                at_most(MAX_STOP_STRINGS, "strings"),
                Bound(
                    lambda stop: not stop or all(0 < len(text) <= MAX_STOP_LENGTH for text in stop),
                    f"made of strings of 1 to {MAX_STOP_LENGTH} characters",
                ),
            ),
            routes=on("openai", "responses", "ollama"),
            held_bytes=lambda stop: sum(map(len, stop)),
        ),
    ] = []
    stop_regex: Annotated[
        list[str],
        OR_ONE,
        SHORT,
        RequestField(
            "Patterns that end the answer like texts of `stop`: the part of Python's syntax that takes linear time.",
            (at_most(MAX_STOP_STRINGS, "patterns"),),
            work=lambda patterns: _COMPILING * len(patterns),
        ),
    ] = []
    stop_token_ids: Annotated[
        list[int],
        SHORT,
        RequestField(
            "Token ids that end the answer. Ids outside the vocabulary have no effect.",
            (at_most(MAX_STOP_TOKEN_IDS, "ids"),),
            with_beams=True,
            held_bytes=lambda ids: _BYTES_BY_ID * len(ids),
        ),
    ] = []
    n: Annotated[
        int, RequestField(f"Answers for each prompt, 1 to {MAX_N}. Default: 1.", (between(1, MAX_N),), with_beams=True)
    ] = 1
    beam_width: Annotated[
        int | None,
        RequestField(
            f"Beams that beam search keeps, 1 to {MAX_N}. Default: no beam search.",
            (between(1, MAX_N),),
            with_beams=True,
        ),
    ] = None
    length_penalty: Annotated[
        float,
        RequestField(
            "Beam search: power of an answer's length by which its log-probability is divided. Default: 1.",
            (between(-MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY),),
            with_beams=True,
        ),
    ] = 1.0
    ignore_eos: Annotated[
        bool, RequestField("If true, the answer continues past the model's end token. Default: false.", with_beams=True)
    ] = False
    skip_special_tokens: Annotated[
        bool, RequestField("If true, the text leaves out special tokens. Default: true.", with_beams=True)
    ] = True
    spaces_between_special_tokens: Annotated[
        bool,
        RequestField(
            "No effect: this server's tokenizers put no spaces there.",
            has_effect=False,
            with_beams=True,
        ),
    ] = True
    no_stop_trim: Annotated[
        bool,
        RequestField(
            "If true, the text keeps the stop string that ended it. Default: false.",
            aliases=("include_stop_str_in_output",),
            with_beams=True,
        ),
    ] = False
    stream_interval: Annotated[
        int | None,
        RequestField(
            "Tokens between two frames of a stream, at least 1. Default: the server's.",
            (Bound(lambda tokens: 1 <= tokens <= _INT32_MAX, "at least 1"),),
            routes={},
            with_beams=True,
        ),
    ] = None
    bad_words: Annotated[
        list[str],
        SHORT,
        RequestField(
            "Words that the answer does not hold, neither at its beginning nor behind a space: their last token is not "
            "chosen where it would complete one, as the tokenizer writes it.",
            (
                at_most(MAX_BAD_WORDS, "words"),
                Bound(
                    lambda words: not words or all(word.strip() and len(word) <= MAX_BAD_WORD_LENGTH for word in words),
                    f"made of words of 1 to {MAX_BAD_WORD_LENGTH} characters that are not all spaces",
                ),
                Bound(
                    lambda words: not words or sum(map(len, words)) <= MAX_BAD_WORDS_LENGTH,
                    f"of at most {MAX_BAD_WORDS_LENGTH} characters together",
                ),
            ),
            work=len,
            held_bytes=lambda words: 8 * sum(map(len, words)),
        ),
    ] = []
    allowed_token_ids: Annotated[
        Annotated[list[int], msgspec.Meta(max_length=MAX_ALLOWED_TOKEN_IDS)] | None,
        RequestField(
            "The only token ids that may be chosen. Default: all.",
            (Bound(bool, "a list of at least one token id"),),
            are_token_ids=True,
            with_beams=True,
            work=len,
            held_bytes=lambda ids: _BYTES_BY_ID * len(ids),
        ),
    ] = None
    custom_params: Annotated[
        Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_CUSTOM_PARAMS)] | None,
        RequestField("Parameters of the logit processor.", held_bytes=_object_bytes),
    ] = None
    json_schema: Annotated[str | None, _grammar(_SCHEMA)] = None
    regex: Annotated[str | None, _grammar("Regular expression that the whole answer matches.")] = None
    ebnf: Annotated[str | None, _grammar("Grammar in EBNF that the answer satisfies.")] = None
    structural_tag: Annotated[str | None, _grammar("Text with parts that keep to schemas, in SGLang's JSON.")] = None

    @property
    def grammar(self) -> GrammarSpec | None:
        """The grammar that restricts the answer; None if nothing does."""
        if self.is_plain:
            return None
        given = self._grammars()
        return grammar_spec(given) if given else None

    @property
    def is_plain(self) -> bool:
        """True if all fields that can hold much (lists, maps, texts) have their defaults, as in most requests."""
        return _LARGE(self) == _LARGE_DEFAULTS

    @property
    def checking(self) -> int:
        """Approximate work of checking the parameters, as a number of characters that take as long to tokenize."""
        return 0 if self.is_plain else _sum(self, _WORK)

    @property
    def held_bytes(self) -> int:
        """Approximate bytes that a scheduler needs for each answer with these parameters, in addition to its prompt."""
        return 0 if self.is_plain else _sum(self, _HELD)

    def verify(self, vocab_size: int) -> None:
        """Raise InvalidRequest, naming the first field that is out of its range, and the range. Fields that can hold
        much come last.
        """
        self._verify_bounds(_SMALL_BOUNDS)
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise _out_of("min_new_tokens", f"at most max_new_tokens ({self.max_new_tokens})", self.min_new_tokens)
        if self.length_penalty != 1 and self.beam_width is None:
            raise _out_of("length_penalty", "1 without beam search", self.length_penalty)
        if not self.is_plain:
            self._verify_large(vocab_size)

    def _verify_bounds(self, bounds: "_Bounds") -> None:
        # A default keeps its bounds. Most fields hold the very object that is their default.
        for bound in compress(bounds.rows, map(is_not, bounds.values(self), bounds.defaults)):
            value = getattr(self, bound.name)
            if value is not None and not bound.holds(value):
                raise _out_of(bound.name, bound.limit, value)

    def _verify_large(self, vocab_size: int) -> None:
        """Verifies the fields that can hold much."""
        self._verify_bounds(_LARGE_BOUNDS)
        for name in _TOKEN_IDS:
            ids: Collection[int] | None = getattr(self, name)
            if ids and len(ids) > vocab_size:
                message = f"{name} must have at most {vocab_size} token ids, as many as there are, got {len(ids)}."
                raise InvalidRequest(message, param=name)
            if ids and (wrong := [i for i in ids if not 0 <= i < vocab_size]):
                message = f"{name}: token id {wrong[0]} is out-of-vocabulary (0 to {vocab_size - 1})."
                raise InvalidRequest(message, param=name)
        if sum(compile_regex(pattern).work for pattern in self.stop_regex) > MAX_REGEX_WORK:
            raise InvalidRequest("stop_regex: the patterns are too large together; repeat less.", param="stop_regex")
        check_grammars(self._grammars())

    def _grammars(self) -> dict[GrammarKind, str | None]:
        """Returns the grammars that are given."""
        return {kind: text for kind in KINDS if (text := getattr(self, kind)) is not None}


def _out_of(name: str, limit: str, value: object) -> InvalidRequest:
    # Shortened: what a client sent too much of is not sent back to it.
    return InvalidRequest(f"{name} must be {limit}, got {reprlib.repr(value)}.", param=name)


FIELDS: tuple[Declared, ...] = declared(SamplingParams)
"""All that is declared of each field."""


class _Held(NamedTuple):
    """A bound of a field that is checked for every request."""

    name: str
    holds: Callable[[Any], bool]
    limit: str


class _Bounds(NamedTuple):
    """Bounds of several fields."""

    rows: tuple[_Held, ...]
    defaults: tuple[object, ...]
    """The default of the field of each row."""
    values: Callable[[SamplingParams], tuple[Any, ...]]
    """Returns the value of the field of each row."""

    @classmethod
    def of(cls, fields: Iterable[Declared]) -> "_Bounds":
        bounded = [(each, bound) for each in fields for bound in each.facts.bounds]
        rows = tuple(_Held(each.name, *bound) for each, bound in bounded)
        return cls(rows, tuple(each.default for each, _ in bounded), attrgetter(*(row.name for row in rows)))


_Measure = tuple[tuple[str, Callable[[Any], int]], ...]

_LARGE_FIELDS = tuple(each for each in FIELDS if each.facts.work is not None or each.facts.held_bytes is not None)
_LARGE = attrgetter(*(each.name for each in _LARGE_FIELDS))
_LARGE_DEFAULTS = tuple(each.default for each in _LARGE_FIELDS)
_LARGE_BOUNDS = _Bounds.of(_LARGE_FIELDS)
_SMALL_BOUNDS = _Bounds.of(each for each in FIELDS if each not in _LARGE_FIELDS)
_TOKEN_IDS = tuple(each.name for each in FIELDS if each.facts.are_token_ids)
_WORK: _Measure = tuple((each.name, measure) for each in FIELDS if (measure := each.facts.work) is not None)
_HELD: _Measure = tuple((each.name, measure) for each in FIELDS if (measure := each.facts.held_bytes) is not None)


def _sum(params: SamplingParams, measures: _Measure) -> int:
    return sum(measure(value) for name, measure in measures if (value := getattr(params, name)))
