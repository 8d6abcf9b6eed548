"""How answers are held to a grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg

GrammarBackend = Literal["xgrammar", "llguidance", "outlines", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarArgs:
    """Which library compiles grammars, within which time, and how JSON is laid out."""

    grammar_backend: GrammarBackend | None = arg(
        None, help="Library for structured output; the first that is installed if unset, none to refuse it."
    )
    grammar_compile_timeout: float = arg(
        5.0, at_least=0.1, help="Seconds after which compiling a grammar is given up and its request refused."
    )
    grammar_queue_timeout: float = arg(
        60.0,
        at_least=0.1,
        help="Seconds that a request waits for its grammar to be compiled, behind others of its key above all, before "
        "it is answered 503.",
    )
    enable_jump_forward: bool = arg(
        False,
        help="Write what a grammar forces as the tokenizer cuts it, and compute it in one step where few requests run "
        "(xgrammar).",
    )
    constrained_json_disable_any_whitespace: bool = arg(
        False, help="JSON answers have no whitespace but what their layout needs."
    )
    constrained_json_max_whitespace_cnt: int | None = arg(
        None, at_least=1, help="Most whitespace characters in a row in a JSON answer; no bound if unset."
    )
    constrained_json_whitespace_pattern: str | None = arg(
        None, help="Regular expression of the whitespace in JSON answers (llguidance and outlines)."
    )
