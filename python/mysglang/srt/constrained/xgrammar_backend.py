"""xgrammar: pushdown automata with masks worked out ahead; JSON schemas, regular expressions, EBNF, structural tags."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import xgrammar as xgr

from mysglang.srt.constrained.backend import MANY, CompiledGrammar, GrammarError, JsonStyle, Matcher, fill_threads
from mysglang.srt.constrained.client_ebnf import enforceable
from mysglang.srt.constrained.client_regex import regex_as_ebnf, regex_grammar
from mysglang.srt.constrained.json_schema.ebnf import ebnf
from mysglang.srt.constrained.json_schema.grammar import grammar_of
from mysglang.srt.constrained.json_schema.joined import JoinedGrammars
from mysglang.srt.constrained.json_schema.syntaxes import SYNTAXES
from mysglang.srt.constrained.json_strings import json_safe_in_markup, of_fixed_length
from mysglang.srt.constrained.structural_tag import (
    MAX_BEGIN,
    special_tokens,
    with_format,
    with_grammars,
    with_token_ids,
)
from mysglang.srt.constrained.utf8 import Continuations, may_be_utf8
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import Ints, mask_words
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.utils.hardware import usable_cores

_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^]\\])*\]|\w+')
"""A text, a class, or a name in a grammar that xgrammar wrote."""
_JSON_PART = {"type", "json_schema", "style", "any_order"}

# "[12:00:00] /project/cpp/file.cc:12: What is wrong" -> "What is wrong"
_WHERE = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")


class XGrammarMatcher:
    """One answer's place in a compiled grammar."""

    __slots__ = ("_bytes", "_kinds", "handle")

    def __init__(self, compiled: xgr.CompiledGrammar, continuations: Continuations, *, has_eos: bool) -> None:
        self.handle = xgr.GrammarMatcher(compiled, terminate_without_stop_token=not has_eos)
        self._bytes = continuations
        self._kinds = bytearray(1)
        """The kind of each token's end, which decides what may follow. The first entry is for the start."""

    @property
    def finished(self) -> bool:
        return self.handle.is_terminated()

    def accept(self, token: int) -> bool:
        if not self._bytes.allows(self._kinds[-1], token):
            return False
        try:
            accepted = self.handle.accept_token(token)
        except RuntimeError:
            return False
        if accepted:
            self._kinds.append(self._bytes.kind(token))
        return accepted

    def narrow(self, bits: Ints) -> None:
        """Removes from a mask the tokens after which the text could not be UTF-8."""
        if self._kinds[-1]:
            self._bytes.narrow(self._kinds[-1], bits)

    def forced_text(self) -> str:
        try:
            text: str = self.handle.find_jump_forward_string()
        except UnicodeDecodeError:  # what is forced ends inside a character, and the mask says how it may go on
            return ""
        return text

    def rollback(self, count: int) -> None:
        self.handle.rollback(count)
        if count:
            del self._kinds[-count:]


class XGrammarCompiled:
    """A compiled grammar, shared by the answers that have it."""

    def __init__(self, compiled: xgr.CompiledGrammar, continuations: Continuations, *, has_eos: bool) -> None:
        self._compiled = compiled
        self._continuations = continuations
        self._has_eos = has_eos
        self.nbytes = compiled.memory_size_bytes

    def matcher(self) -> Matcher:
        return XGrammarMatcher(self._compiled, self._continuations, has_eos=self._has_eos)


class XGrammarBackend:
    """Compiles and matches grammars with xgrammar (a `GrammarBackend`)."""

    def __init__(self, vocabulary: Vocabulary, style: JsonStyle) -> None:
        self._style = style
        self._has_eos = bool(vocabulary.eos_ids)
        self._vocabulary = vocabulary
        self._usual_info = self._info(vocabulary.pieces)
        self._continuations = Continuations(vocabulary.pieces, mask_words(vocabulary.size))

    def _info(self, pieces: Sequence[bytes]) -> xgr.TokenizerInfo:
        return xgr.TokenizerInfo(
            # Bytes that cannot be UTF-8 are never allowed.
            [piece if may_be_utf8(piece) else b"" for piece in pieces],
            vocab_size=self._vocabulary.size,
            stop_token_ids=list(self._vocabulary.eos_ids),
        )

    @cached_property
    def _info_with_special(self) -> xgr.TokenizerInfo:
        return self._info(self._vocabulary.pieces_shown())

    def _info_of(self, spec: GrammarSpec) -> xgr.TokenizerInfo:
        shown = spec.kind == "structural_tag" and special_tokens(spec.text)
        return self._info_with_special if shown else self._usual_info

    @cached_property
    def _batch(self) -> xgr.BatchGrammarMatcher:
        """Made when many masks are wanted: its threads would not be there in a forked child."""
        return xgr.BatchGrammarMatcher(max_threads=fill_threads(usable_cores()))

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        # A compiler of its own for each: what it holds goes with the process.
        compiler = xgr.GrammarCompiler(self._info_of(spec), max_threads=threads, cache_enabled=False)
        try:
            return self._compile(compiler, spec).serialize_json().encode()
        except RuntimeError as error:  # the library raises nothing narrower
            raise GrammarError(_words(error)) from None

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        compiled = xgr.CompiledGrammar.deserialize_json(str(data, "utf-8"), self._info_of(spec))
        return XGrammarCompiled(compiled, self._continuations, has_eos=self._has_eos)

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        known = [matcher for matcher in matchers if isinstance(matcher, XGrammarMatcher)]
        self._fill([matcher.handle for matcher in known], bits, rows)
        for matcher, row in zip(known, rows, strict=True):
            matcher.narrow(bits[row])

    def _fill(self, handles: list[xgr.GrammarMatcher], bits: Ints, rows: Sequence[int]) -> None:
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
            case "json_schema":
                return compiler.compile_grammar(ebnf(grammar_of(spec.schema), self._style))
            case "regex":
                return compiler.compile_grammar(regex_as_ebnf(spec.text))
            case "ebnf":
                return compiler.compile_grammar(enforceable(spec.text))
            case "structural_tag":
                return compiler.compile_grammar(self._tag_as_ebnf(with_format(spec.text), special_tokens(spec.text)))

    def _tag_as_ebnf(self, tag: dict[str, Any], special: bool) -> str:
        """Returns a structural tag as one grammar, in which parts share rules. `special`: special tokens are text."""
        pieces = self._vocabulary.pieces_shown() if special else self._vocabulary.pieces
        prefix = _unused(json.dumps(tag, ensure_ascii=False))
        joined = JoinedGrammars(self._style, prefix)
        tag = with_grammars(tag, partial(self._part_of_tag, joined))
        tag["format"] = with_token_ids(tag["format"], partial(_token_id, pieces))
        written = of_fixed_length(str(xgr.Grammar.from_structural_tag(json.dumps(tag))))
        # The place of each part is a rule, which is the name of the part's first rule as a text.
        places = dict(re.findall(rf'^(\w+) ::= \(\("({prefix}\w+)"\)\)$', written, re.MULTILINE))
        rest = "".join(line for line in written.splitlines(keepends=True) if line.split(" ", 1)[0] not in places)
        written = _TOKEN.sub(lambda token: places.get(token[0], token[0]), rest)
        if f'"{prefix}' in written:
            raise GrammarError("this version of xgrammar writes the parts of a structural tag in an unknown way")
        return written + joined.text()

    def _part_of_tag(self, joined: JoinedGrammars, part: dict[str, Any]) -> str:
        """Returns the grammar of a part that keeps to a regex, a grammar, or a schema: as JSON, or as a model's own
        markup with JSON inside. Where its rules are among the joined ones, that is the name of the first as a text.
        """
        match part:
            case {"type": "regex", "pattern": str(pattern)}:
                return f'root ::= "{joined.add(regex_grammar(pattern))}"'
            case {"type": "grammar", "grammar": str(grammar)}:
                return enforceable(grammar)
        syntax = SYNTAXES.get(str(part.get("style", "json")))
        if part.keys() <= _JSON_PART and syntax is not None:
            # In any order is a wish that the order of the schema fulfils.
            return f'root ::= "{joined.add(grammar_of(json.dumps(part["json_schema"]), syntax))}"'
        alone = {"type": "structural_tag", "format": part}
        return enforceable(json_safe_in_markup(str(xgr.Grammar.from_structural_tag(json.dumps(alone)))))


def _unused(text: str) -> str:
    """Returns the beginning of names that the text does not contain."""
    name = "part_"
    while name in text:
        name += "_"
    return name


def _token_id(pieces: Sequence[bytes], text: str) -> int:
    try:
        return pieces.index(text.encode())
    except ValueError:
        raise GrammarError(f"no token is the text {text[:MAX_BEGIN]!r}") from None


def _words(error: RuntimeError) -> str:
    text = _WHERE.sub("", str(error)).strip()
    return text.removeprefix("Check failed: (std::holds_alternative<Grammar>(result)) is false: ")
