"""xgrammar: pushdown automata with masks worked out ahead; JSON schemas, regular expressions, EBNF, structural tags."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import xgrammar as xgr

from mysglang.srt.constrained.backend import MANY, CompiledGrammar, GrammarError, JsonStyle, Matcher, fill_threads
from mysglang.srt.constrained.json_strings import json_safe, json_safe_in_markup, of_fixed_length
from mysglang.srt.constrained.structural_tag import with_format, with_schemas
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.sampling.grammar_spec import ANY_JSON, GrammarSpec
from mysglang.srt.utils.hardware import usable_cores

NEVER_UTF8 = bytes([0xC0, 0xC1, *range(0xF5, 0x100)])

_JSON_PART = {"type", "json_schema", "style", "any_order"}

# "[12:00:00] /project/cpp/file.cc:12: What is wrong" -> "What is wrong"
_WHERE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")


class XGrammarMatcher:
    """One answer's place in a compiled grammar."""

    __slots__ = ("handle",)

    def __init__(self, compiled: xgr.CompiledGrammar, *, has_eos: bool) -> None:
        self.handle = xgr.GrammarMatcher(compiled, terminate_without_stop_token=not has_eos)

    @property
    def finished(self) -> bool:
        return self.handle.is_terminated()

    def accept(self, token: int) -> bool:
        try:
            return self.handle.accept_token(token)
        except RuntimeError:
            return False

    def forced_text(self) -> str:
        text: str = self.handle.find_jump_forward_string()
        return text

    def rollback(self, count: int) -> None:
        self.handle.rollback(count)


class XGrammarCompiled:
    """Shared by the answers that have this grammar."""

    def __init__(self, compiled: xgr.CompiledGrammar, *, has_eos: bool) -> None:
        self._compiled = compiled
        self._has_eos = has_eos
        self.nbytes = compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        return XGrammarMatcher(self._compiled, has_eos=self._has_eos)


class XGrammarBackend:
    """Implements GrammarBackend."""

    def __init__(self, vocabulary: Vocabulary, style: JsonStyle) -> None:
        self._style = style
        self._has_eos = bool(vocabulary.eos_ids)
        self._info = xgr.TokenizerInfo(
            [_valid(piece) for piece in vocabulary.pieces],
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.eos_ids),
        )

    @cached_property
    def _batch(self) -> xgr.BatchGrammarMatcher:
        """Made when many masks are wanted: its threads would not be there in a forked child."""
        return xgr.BatchGrammarMatcher(max_threads=fill_threads(usable_cores()))

    def compile(self, spec: GrammarSpec) -> bytes:
        # A compiler of its own for each: what it holds goes with the process.
        compiler = xgr.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        try:
            return self._compile(compiler, spec).serialize_json().encode()
        except RuntimeError as error:  # the library raises nothing narrower
            raise GrammarError(_words(error)) from None

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        compiled = xgr.CompiledGrammar.deserialize_json(str(data, "utf-8"), self._info)
        return XGrammarCompiled(compiled, has_eos=self._has_eos)

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        handles = [matcher.handle for matcher in matchers if isinstance(matcher, XGrammarMatcher)]
        if len(handles) >= MANY:
            try:
                self._batch.batch_fill_next_token_bitmask(handles, bits, list(rows))
                return
            except RuntimeError:
                pass  # one of them failed: find out which
        for handle, row in zip(handles, rows, strict=True):
            try:
                handle.fill_next_token_bitmask(bits, row)
            except RuntimeError:
                bits[row] = 0

    def _compile(self, compiler: xgr.GrammarCompiler, spec: GrammarSpec) -> xgr.CompiledGrammar:
        match spec.kind:
            case "json_schema" if spec.text == ANY_JSON:
                return compiler.compile_builtin_json_grammar()
            case "json_schema":
                grammar = self._of_schema(spec.text)
                text = str(grammar)
                safe = json_safe(text)
                return compiler.compile_grammar(grammar if safe == text else safe)
            case "regex":
                return compiler.compile_regex(spec.text)
            case "ebnf":
                return compiler.compile_grammar(spec.text)
            case "structural_tag":
                tag = with_schemas(with_format(spec.text), self._part_of_tag)
                return compiler.compile_structural_tag(json.dumps(tag))

    def _of_schema(self, schema: str, *, any_order: bool = False) -> xgr.Grammar:
        return xgr.Grammar.from_json_schema(
            schema,
            any_whitespace=self._style.any_whitespace,
            max_whitespace_cnt=self._style.max_whitespace,
            any_order=any_order,
        )

    def _part_of_tag(self, part: dict[str, Any]) -> str:
        """The grammar of a part that keeps to a schema, as JSON or as a model's own markup, with JSON inside."""
        if part.keys() <= _JSON_PART and part.get("style", "json") == "json":
            grammar = self._of_schema(json.dumps(part["json_schema"]), any_order=bool(part.get("any_order", False)))
            return of_fixed_length(json_safe(str(grammar)))
        alone = {"type": "structural_tag", "format": part}
        return json_safe_in_markup(str(xgr.Grammar.from_structural_tag(json.dumps(alone))))


def _valid(piece: bytes) -> bytes:
    """`piece`; of one with a byte that no UTF-8 has nothing, which is never allowed: xgrammar takes such a byte for the
    beginning of a character.
    """
    return b"" if piece.translate(None, NEVER_UTF8) != piece else piece


def _words(error: RuntimeError) -> str:
    text = _WHERE.sub("", str(error)).strip()
    return text.removeprefix("Check failed: (std::holds_alternative<Grammar>(result)) is false: ")
