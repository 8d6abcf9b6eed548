"""SamplingParams: how the tokens of one request are chosen and when it ends.

A wire struct: verified once where a request arrives, trusted everywhere after that. Knows no tokenizer and no torch.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Collection
from typing import Annotated, Any, NamedTuple

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.sampling.grammar_spec import KINDS, GrammarKind, GrammarSpec, check_grammars, grammar_spec
from mysglang.srt.utils.stop_regex import compile_regex

TOP_K_ALL = 1 << 30
"""top_k that keeps the whole vocabulary."""

GREEDY_TEMPERATURE = 1e-6
"""Below this temperature a request is greedy."""

# Behind these bounds a float32 logit would not be finite, whatever the fields do to it together.
MAX_TEMPERATURE = 1e20
MIN_REPETITION_PENALTY = 1e-6

MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 1024
MAX_STOP_LENGTH = 1024
"""Longest stop string, in characters."""
MAX_LOGIT_BIAS = 4096
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
"""Longest bad word, in characters."""
MAX_BAD_WORDS_LENGTH = 32 << 10
"""Of all together, in characters: each answer has a copy of their tokens, and a request may have many answers."""
MAX_ALLOWED_TOKEN_IDS = 1 << 19
"""More than any vocabulary has; `verify` holds the list to the size of the model's."""
MAX_ENTRIES = 1 << 16
"""Of any other list or map, before its entries are looked at."""
MAX_REGEX_WORK = 2048
"""Moves that one character of the answer may cost all patterns of a request together, at most."""
MAX_N = 128
MAX_LENGTH_PENALTY = 10
MAX_CUSTOM_PARAMS = 1024

OR_ONE = msgspec.Meta(extra_json_schema={"x-or-one": True})
"""Marks a list that clients may leave out around its only entry; `parse_sampling_params` puts it there."""

_SHORT = msgspec.Meta(max_length=MAX_ENTRIES)

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1

_COMPILING = 1 << 12
"""Characters that could be tokenized while a pattern is compiled."""
_BYTES_BY_ID = 40
_BYTES_BY_BIAS = 150
"""Of objects in a list or a map."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The `sampling_params` of a request, under SGLang's names. Defaults are the native route's constants.

    `max_new_tokens` None means: until the context is full. `sampling_seed` None means: a seed is drawn on arrival,
    so that every request that reaches a scheduler has one.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    stop: Annotated[list[str], OR_ONE, _SHORT] = []
    stop_regex: Annotated[list[str], OR_ONE, _SHORT] = []
    """Patterns that end the answer like stop strings: the part of Python's syntax that takes linear time."""
    stop_token_ids: Annotated[list[int], _SHORT] = []
    """Token ids that end the answer. Ids outside the vocabulary have no effect."""
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    beam_width: int | None = None
    """How many beginnings beam search goes on with; null for no search."""
    length_penalty: float = 1.0
    """Beam search: the power of an answer's length by which its log-probability is divided."""
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Without effect, as in every tokenizer of the tokenizers library: it puts no spaces there."""
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: Annotated[dict[int, float], _SHORT] = {}
    bad_words: Annotated[list[str], _SHORT] = []
    """Words that the answer does not hold, neither at its beginning nor behind a space: their last token is not chosen
    where it would complete one, as the tokenizer writes it."""
    allowed_token_ids: Annotated[list[int], msgspec.Meta(max_length=MAX_ALLOWED_TOKEN_IDS)] | None = None
    """The only token ids that may be chosen; null for all."""
    custom_params: Annotated[dict[str, Any], msgspec.Meta(max_length=MAX_CUSTOM_PARAMS)] | None = None
    """What the request's logit processor is told."""
    sampling_seed: int | None = None
    json_schema: str | None = None
    """A JSON schema as text that the answer satisfies. At most one of json_schema, regex, ebnf and structural_tag."""
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None

    @property
    def grammar(self) -> GrammarSpec | None:
        """Which strings the answer may be, if that is restricted."""
        given = self._grammars()
        return grammar_spec(given) if given else None

    @property
    def checking(self) -> int:
        """About how much work it is to verify them: as much as to tokenize so many characters."""
        grammars = sum(len(text) for kind in KINDS if (text := getattr(self, kind)) is not None)
        ids = len(self.logit_bias) + len(self.allowed_token_ids or ())
        return grammars + ids + len(self.bad_words) + _COMPILING * len(self.stop_regex)

    @property
    def held_bytes(self) -> int:
        """About how much memory a scheduler needs for each answer that has these, beside its prompt."""
        grammars = sum(len(text) for kind in KINDS if (text := getattr(self, kind)) is not None)
        texts = sum(map(len, self.stop)) + 8 * sum(map(len, self.bad_words))
        ids = _BYTES_BY_BIAS * len(self.logit_bias) + _BYTES_BY_ID * (
            len(self.allowed_token_ids or ()) + len(self.stop_token_ids)
        )
        return grammars + texts + ids + _told_bytes(self.custom_params)

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is always taken."""
        return self.top_k == 1 or self.temperature < GREEDY_TEMPERATURE

    @property
    def penalized(self) -> bool:
        """Whether the choice depends on the tokens so far."""
        return self.frequency_penalty != 0 or self.presence_penalty != 0 or self.repetition_penalty != 1

    def verify(self, vocab_size: int) -> None:
        """Raise InvalidRequest, naming the first field that is out of its range and the range."""
        for name, holds, limit in _RULES:
            if not holds(self):
                words = limit if isinstance(limit, str) else limit(self)
                # Shortened: what a client sent too much of is not sent back to it.
                raise InvalidRequest(f"{name} must be {words}, got {reprlib.repr(getattr(self, name))}.", param=name)
        id_lists: dict[str, Collection[int] | None] = {
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids,
        }
        for name, ids in id_lists.items():
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
        """Those that are given."""
        return {kind: text for kind in KINDS if (text := getattr(self, kind)) is not None}


def _told_bytes(custom_params: dict[str, Any] | None) -> int:
    """Objects take several times the room of what is written of them."""
    return 8 * len(msgspec.msgpack.encode(custom_params)) if custom_params else 0


class _Rule(NamedTuple):
    """One that needs no other fact than the params."""

    field: str
    holds: Callable[[SamplingParams], bool]
    limit: str | Callable[[SamplingParams], str]
    """What the field must be, in words."""


# Every request is held to each of them: words are found only for the one that is broken.
_RULES: tuple[_Rule, ...] = (
    # Of more than fits the rest is cut off, however much it is.
    _Rule("max_new_tokens", lambda p: p.max_new_tokens is None or p.max_new_tokens >= 0, "at least 0"),
    _Rule("min_new_tokens", lambda p: 0 <= p.min_new_tokens <= _INT32_MAX, f"between 0 and {_INT32_MAX}"),
    _Rule(
        "min_new_tokens",
        lambda p: p.max_new_tokens is None or p.min_new_tokens <= p.max_new_tokens,
        lambda p: f"at most max_new_tokens ({p.max_new_tokens})",
    ),
    _Rule(
        "temperature",
        lambda p: 0 <= p.temperature <= MAX_TEMPERATURE,
        f"a finite number >= 0 and at most {MAX_TEMPERATURE:g}",
    ),
    _Rule("top_p", lambda p: 0 < p.top_p <= 1, "greater than 0 and at most 1"),
    _Rule("top_k", lambda p: p.top_k == -1 or 1 <= p.top_k <= TOP_K_ALL, f"-1 (all) or between 1 and {TOP_K_ALL}"),
    _Rule("min_p", lambda p: 0 <= p.min_p <= 1, "between 0 and 1"),
    _Rule("frequency_penalty", lambda p: -2 <= p.frequency_penalty <= 2, "between -2 and 2"),
    _Rule("presence_penalty", lambda p: -2 <= p.presence_penalty <= 2, "between -2 and 2"),
    _Rule(
        "repetition_penalty",
        lambda p: MIN_REPETITION_PENALTY <= p.repetition_penalty <= 2,
        f"between {MIN_REPETITION_PENALTY:g} and 2",
    ),
    _Rule("n", lambda p: 1 <= p.n <= MAX_N, f"between 1 and {MAX_N}"),
    _Rule("beam_width", lambda p: p.beam_width is None or 1 <= p.beam_width <= MAX_N, f"between 1 and {MAX_N}"),
    _Rule("length_penalty", lambda p: p.length_penalty == 1 or p.beam_width is not None, "1 without beam search"),
    _Rule(
        "length_penalty",
        lambda p: abs(p.length_penalty) <= MAX_LENGTH_PENALTY,
        f"between -{MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}",
    ),
    _Rule("stream_interval", lambda p: p.stream_interval is None or 1 <= p.stream_interval <= _INT32_MAX, "at least 1"),
    _Rule("stop", lambda p: len(p.stop) <= MAX_STOP_STRINGS, f"a list of at most {MAX_STOP_STRINGS} strings"),
    _Rule(
        "stop",
        lambda p: not p.stop or all(0 < len(s) <= MAX_STOP_LENGTH for s in p.stop),
        f"made of strings of 1 to {MAX_STOP_LENGTH} characters",
    ),
    _Rule(
        "stop_regex", lambda p: len(p.stop_regex) <= MAX_STOP_STRINGS, f"a list of at most {MAX_STOP_STRINGS} patterns"
    ),
    _Rule(
        "stop_token_ids",
        lambda p: len(p.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
        f"a list of at most {MAX_STOP_TOKEN_IDS} ids",
    ),
    _Rule("logit_bias", lambda p: len(p.logit_bias) <= MAX_LOGIT_BIAS, f"a map of at most {MAX_LOGIT_BIAS} entries"),
    _Rule(
        "logit_bias",
        lambda p: not p.logit_bias or all(map(math.isfinite, p.logit_bias.values())),
        "a map of finite numbers",
    ),
    _Rule("bad_words", lambda p: len(p.bad_words) <= MAX_BAD_WORDS, f"a list of at most {MAX_BAD_WORDS} words"),
    _Rule(
        "bad_words",
        lambda p: not p.bad_words or all(word.strip() and len(word) <= MAX_BAD_WORD_LENGTH for word in p.bad_words),
        f"made of words of 1 to {MAX_BAD_WORD_LENGTH} characters that are not all spaces",
    ),
    _Rule(
        "bad_words",
        lambda p: not p.bad_words or sum(map(len, p.bad_words)) <= MAX_BAD_WORDS_LENGTH,
        f"of at most {MAX_BAD_WORDS_LENGTH} characters together",
    ),
    _Rule("allowed_token_ids", lambda p: p.allowed_token_ids != [], "a list of at least one token id"),
    _Rule(
        "sampling_seed",
        lambda p: p.sampling_seed is None or -_INT64_MAX - 1 <= p.sampling_seed <= _INT64_MAX,
        "a 64-bit integer",
    ),
)
