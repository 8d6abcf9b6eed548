"""SamplingParams: how the tokens of one request are chosen and when it ends.

A wire struct: verified once where a request arrives, trusted everywhere after that. Knows no tokenizer and no torch.
"""

from __future__ import annotations

import math
import reprlib
from typing import Any

import msgspec

from mysglang.srt.errors import InvalidRequest
from mysglang.srt.sampling.grammar_spec import KINDS, GrammarKind, GrammarSpec, check_grammars, grammar_spec
from mysglang.srt.utils.stop_regex import compile_regex

TOP_K_ALL = 1 << 30
"""top_k that keeps the whole vocabulary."""

GREEDY_TEMPERATURE = 1e-6
"""Below this temperature a request is greedy."""

MAX_STOP_STRINGS = 32
MAX_STOP_TOKEN_IDS = 1024
MAX_STOP_LENGTH = 1024
"""Longest stop string, in characters."""
MAX_LOGIT_BIAS = 4096
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_LENGTH = 256
"""Longest bad word, in characters."""
MAX_N = 128
MAX_LENGTH_PENALTY = 10

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The `sampling_params` of a request, under SGLang's names. Defaults are the native route's constants.

    `max_new_tokens` None means: until the context is full. `sampling_seed` None means: a seed is drawn on arrival,
    so that every request that reaches a scheduler has one.
    """

    max_new_tokens: int | None = 128
    min_new_tokens: int = 0
    stop: list[str] = []
    stop_regex: list[str] = []
    """Patterns that end the answer like stop strings; see utils/stop_regex.py for what they may be."""
    stop_token_ids: list[int] = []
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = TOP_K_ALL
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    n: int = 1
    beam_width: int | None = None
    """How many beginnings beam search goes on with; None for no search."""
    length_penalty: float = 1.0
    """Of beam search: the power of an answer's length by which its log-probability is divided."""
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    """Without effect, as in every tokenizer of the tokenizers library: it puts no spaces there."""
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: dict[int, float] = {}
    bad_words: list[str] = []
    """Words that the answer does not hold, neither at its beginning nor behind a space: their last token is not chosen
    where it would complete one, as the tokenizer writes it."""
    allowed_token_ids: list[int] | None = None
    """The only tokens that may be chosen; None for all."""
    custom_params: dict[str, Any] | None = None
    """What the request's logit processor is told."""
    sampling_seed: int | None = None
    json_schema: str | None = None
    """A JSON schema as text that the answer satisfies. At most one of this and the next three."""
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None

    @property
    def grammar(self) -> GrammarSpec | None:
        """Which strings the answer may be, if that is restricted."""
        return grammar_spec(self._grammars())

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
        for name, ok, limit in self._rules():
            if not ok:
                # Shortened: what a client sent too much of is not sent back to it.
                raise InvalidRequest(f"{name} must be {limit}, got {reprlib.repr(getattr(self, name))}.", param=name)
        id_lists = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": list(self.logit_bias),
            "allowed_token_ids": self.allowed_token_ids or [],
        }
        for name, ids in id_lists.items():
            if wrong := [i for i in ids if not 0 <= i < vocab_size]:
                message = f"{name}: token id {wrong[0]} is outside the vocabulary (0 to {vocab_size - 1})."
                raise InvalidRequest(message, param=name)
        for pattern in self.stop_regex:
            compile_regex(pattern)
        check_grammars(self._grammars())

    def _grammars(self) -> dict[GrammarKind, str | None]:
        return {kind: getattr(self, kind) for kind in KINDS}

    def _rules(self) -> list[tuple[str, bool, str]]:
        """(field, holds, the range in words) of every rule that needs no other fact than the params."""
        max_new = self.max_new_tokens
        return [
            ("max_new_tokens", max_new is None or 0 <= max_new <= _INT32_MAX, f"between 0 and {_INT32_MAX}"),
            ("min_new_tokens", 0 <= self.min_new_tokens <= _INT32_MAX, f"between 0 and {_INT32_MAX}"),
            (
                "min_new_tokens",
                max_new is None or self.min_new_tokens <= max_new,
                f"at most max_new_tokens ({max_new})",
            ),
            ("temperature", math.isfinite(self.temperature) and self.temperature >= 0, "a finite number >= 0"),
            ("top_p", 0 < self.top_p <= 1, "greater than 0 and at most 1"),
            ("top_k", self.top_k == -1 or 1 <= self.top_k <= TOP_K_ALL, f"-1 (all) or between 1 and {TOP_K_ALL}"),
            ("min_p", 0 <= self.min_p <= 1, "between 0 and 1"),
            ("frequency_penalty", -2 <= self.frequency_penalty <= 2, "between -2 and 2"),
            ("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2"),
            ("repetition_penalty", 0 < self.repetition_penalty <= 2, "greater than 0 and at most 2"),
            ("n", 1 <= self.n <= MAX_N, f"between 1 and {MAX_N}"),
            ("beam_width", self.beam_width is None or 1 <= self.beam_width <= MAX_N, f"between 1 and {MAX_N}"),
            ("length_penalty", self.length_penalty == 1 or self.beam_width is not None, "1 without beam search"),
            (
                "length_penalty",
                math.isfinite(self.length_penalty) and abs(self.length_penalty) <= MAX_LENGTH_PENALTY,
                f"between -{MAX_LENGTH_PENALTY} and {MAX_LENGTH_PENALTY}",
            ),
            (
                "stream_interval",
                self.stream_interval is None or 1 <= self.stream_interval <= _INT32_MAX,
                "at least 1",
            ),
            ("stop", len(self.stop) <= MAX_STOP_STRINGS, f"a list of at most {MAX_STOP_STRINGS} strings"),
            (
                "stop",
                all(0 < len(s) <= MAX_STOP_LENGTH for s in self.stop),
                f"made of strings of 1 to {MAX_STOP_LENGTH} characters",
            ),
            ("stop_regex", len(self.stop_regex) <= MAX_STOP_STRINGS, f"a list of at most {MAX_STOP_STRINGS} patterns"),
            (
                "stop_token_ids",
                len(self.stop_token_ids) <= MAX_STOP_TOKEN_IDS,
                f"a list of at most {MAX_STOP_TOKEN_IDS} ids",
            ),
            ("logit_bias", len(self.logit_bias) <= MAX_LOGIT_BIAS, f"a map of at most {MAX_LOGIT_BIAS} entries"),
            ("logit_bias", all(math.isfinite(v) for v in self.logit_bias.values()), "a map of finite numbers"),
            ("bad_words", len(self.bad_words) <= MAX_BAD_WORDS, f"a list of at most {MAX_BAD_WORDS} words"),
            (
                "bad_words",
                all(word.strip() and len(word) <= MAX_BAD_WORD_LENGTH for word in self.bad_words),
                f"made of words of 1 to {MAX_BAD_WORD_LENGTH} characters that are not all spaces",
            ),
            ("allowed_token_ids", self.allowed_token_ids != [], "a list of at least one token id"),
            (
                "sampling_seed",
                self.sampling_seed is None or -_INT64_MAX - 1 <= self.sampling_seed <= _INT64_MAX,
                "a 64-bit integer",
            ),
        ]
