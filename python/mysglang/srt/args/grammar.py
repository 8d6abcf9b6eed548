"""Options of structured output: how answers are restricted to a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

GrammarBackend = Literal["xgrammar", "llguidance", "outlines", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarArgs:
    """The library for grammars, its time limits, and the whitespace of JSON answers."""

    grammar_backend: GrammarBackend | None = arg(
        None,
        help="Library for structured output. If unset, the first that is installed. none: requests with a grammar "
        "are refused.",
    )
    grammar_compile_timeout: float = arg(
        5.0, at_least=0.1, help="Seconds after which the compilation of a grammar is stopped and its request refused."
    )
    grammar_queue_timeout: float = arg(
        60.0,
        at_least=0.1,
        help="Seconds that a request may wait for its grammar to be compiled; after that it gets a 503.",
    )
    enable_jump_forward: bool = arg(
        False,
        help="Append text that a grammar forces without asking the model. Faster for JSON with long property "
        "names, but tokens are cut differently. With --speculative-algorithm, such tokens are drafts. Needs xgrammar.",
    )
    constrained_json_disable_any_whitespace: bool = arg(
        False, help="Allow no optional whitespace in JSON answers. Use it if a model fills answers with spaces."
    )
    constrained_json_max_whitespace_cnt: int | None = arg(
        None,
        at_least=1,
        help="Whitespace characters in a row that a JSON answer may have. If unset, tokens that begin with whitespace "
        "are forbidden behind 128, where the grammar allows others.",
    )
    constrained_json_whitespace_pattern: str | None = arg(
        None, help="Regular expression for whitespace in JSON answers (llguidance and outlines only)."
    )
