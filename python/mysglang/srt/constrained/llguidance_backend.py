"""llguidance: derivatives of regular expressions under an Earley parser, masks on the fly; knows all kinds of grammar.

It compiles so fast, and so lazily, that there is nothing to hand over but the grammar in its own words: compiling is
making sure that it can be made, within limits that hold for every step after that too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property

import llguidance as ll
from llguidance.gbnf_to_lark import any_to_lark

from mysglang.srt.constrained.backend import MANY, CompiledGrammar, GrammarError, JsonStyle, Matcher, fill_threads
from mysglang.srt.constrained.client_regex import regex_in_rust
from mysglang.srt.constrained.json_schema.expressions import as_lark
from mysglang.srt.constrained.json_schema.grammar import grammar_of
from mysglang.srt.constrained.structural_tag import Tag, in_tag, json_tags
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.forward.worker_batch import Ints
from mysglang.srt.sampling.grammar_spec import GrammarSpec
from mysglang.srt.utils.hardware import usable_cores

_FREE_TEXT = ("%llguidance {}", "text: TEXT", r"TEXT: /(.|\n)*/")


class _Tokens:
    """The vocabulary as the library reads it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.pieces
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.special_token_ids = [token for token, piece in enumerate(vocabulary.pieces) if not piece]
        self._bytes = {piece[0]: token for token, piece in enumerate(vocabulary.pieces) if len(piece) == 1}

    def __call__(self, text: bytes) -> list[int]:
        """Returns a token for each byte. Only forcing text needs the model's own tokenization, and that is not done
        here.
        """
        return [self._bytes[byte] for byte in text if byte in self._bytes]


class LLGuidanceMatcher:
    """The position of one answer in a grammar."""

    __slots__ = ("_ended", "_eos", "_stopped", "handle")

    def __init__(self, handle: ll.LLMatcher, eos: frozenset[int]) -> None:
        self.handle = handle
        self._eos = eos
        self._ended = False
        self._stopped = False
        """True if the last token came where only the end was allowed."""

    @property
    def finished(self) -> bool:
        return self._ended

    def accept(self, token: int) -> bool:
        if self._ended:
            return False
        self._stopped = self.handle.is_stopped()
        if not self.handle.consume_token(token):
            return False
        self._ended = token in self._eos
        return True

    def forced_text(self) -> str:
        return ""

    def rollback(self, count: int) -> None:
        # The library does not count a token after which only the end can follow.
        self.handle.rollback(count - 1 if self._ended and self._stopped and count else count)
        self._ended = self._ended and count == 0


class LLGuidanceCompiled:
    """A compiled grammar. Each answer gets a copy of its matcher."""

    def __init__(self, matcher: ll.LLMatcher, eos: frozenset[int], nbytes: int) -> None:
        self._matcher = matcher
        self._eos = eos
        self.nbytes = nbytes

    def matcher(self) -> Matcher:
        return LLGuidanceMatcher(self._matcher.deep_copy(), self._eos)


class LLGuidanceBackend:
    """Compiles and matches grammars with llguidance (a `GrammarBackend`)."""

    def __init__(self, vocabulary: Vocabulary, style: JsonStyle) -> None:
        self._eos = frozenset(vocabulary.eos_ids)
        if not self._eos:
            raise GrammarError("llguidance needs a model that has an end-of-sequence token")
        wrapper = ll.TokenizerWrapper(_Tokens(vocabulary))
        self._tokenizer = ll.LLTokenizer(wrapper, n_vocab=vocabulary.size, eos_token=list(vocabulary.eos_ids))
        self._style = style

    @cached_property
    def _executor(self) -> ll.LLExecutor:
        """Made when many masks are wanted: its threads would not be there in a forked child."""
        return ll.LLExecutor(num_threads=fill_threads(usable_cores()))

    def compile(self, spec: GrammarSpec, threads: int = 1) -> bytes:
        text = self._in_its_words(spec)
        self._matcher(text)
        return text.encode()

    def load(self, spec: GrammarSpec, data: bytes | memoryview) -> CompiledGrammar:
        return LLGuidanceCompiled(self._matcher(str(data, "utf-8")), self._eos, 16 * len(data))

    def fill(self, matchers: Sequence[Matcher], bits: Ints, rows: Sequence[int]) -> None:
        handles = [matcher.handle for matcher in matchers if isinstance(matcher, LLGuidanceMatcher)]
        # A matcher in error allows EOS alone, and refuses it.
        if len(handles) >= MANY:
            jobs = list(zip(handles, rows, strict=True))
            self._executor.unsafe_compute_mask_ptr(jobs, bits.ctypes.data, bits.strides[0], len(bits))
            return
        for handle, row in zip(handles, rows, strict=True):
            handle.unsafe_compute_mask_ptr(bits[row].ctypes.data, bits.strides[0])

    def _matcher(self, text: str) -> ll.LLMatcher:
        matcher = ll.LLMatcher(self._tokenizer, text, log_level=0)
        if matcher.is_error():
            raise GrammarError(matcher.get_error().split("\n<state>")[0].strip())
        return matcher

    def _in_its_words(self, spec: GrammarSpec) -> str:
        try:
            match spec.kind:
                case "json_schema":
                    return ll.LLMatcher.grammar_from_lark(as_lark(grammar_of(spec.schema), self._style))
                case "regex":
                    return ll.LLMatcher.grammar_from_regex(regex_in_rust(spec.text))
                case "ebnf":
                    return ll.LLMatcher.grammar_from_lark(any_to_lark(spec.text))
                case "structural_tag":
                    return self._free_text(json_tags(spec.text))
        except (ValueError, AssertionError) as error:
            raise GrammarError(str(error)) from None

    def _free_text(self, tags: Sequence[Tag]) -> str:
        """Returns the grammar of a text that may have these tags, as JSON: grammars by name, one for each schema. The
        library's own way to write it (`StructTag`) repeats a schema in each tag that has it.
        """
        if not tags:
            raise GrammarError("it has no tag")
        lines = [*_FREE_TEXT, f"start: ({' | '.join(f'tag_{number}' for number in range(len(tags)))})* text"]
        names: dict[int, str] = {}
        grammars = []
        for number, tag in enumerate(tags):
            if id(tag.schema) not in names:
                name = names[id(tag.schema)] = f"schema_{len(names)}"
                with in_tag(tag.begin):
                    lark = as_lark(grammar_of(json.dumps(tag.schema)), self._style)
                grammars.append({"name": name, "lark_grammar": lark})
            begin, end = (json.dumps(text) if text else "" for text in (tag.begin.removeprefix(tag.trigger), tag.end))
            lines.append(f"trigger_{number}[lazy]: TEXT {json.dumps(tag.trigger)}")
            lines.append(f"tag_{number}: trigger_{number} {begin} @{names[id(tag.schema)]} {end}")
        return json.dumps({"grammars": [{"name": "text", "lark_grammar": "\n".join(lines)}, *grammars]})
