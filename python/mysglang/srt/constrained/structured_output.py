"""StructuredOutput: what a scheduler needs for requests with grammars, put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from mysglang.srt.constrained.answer_grammar import AnswerMasks
from mysglang.srt.constrained.backend import GrammarBackend
from mysglang.srt.constrained.compile_messages import CompilerSetup
from mysglang.srt.constrained.compiler import GrammarCompiler, NoCompiler
from mysglang.srt.constrained.factory import make_backend
from mysglang.srt.constrained.forced_tokens import cutter
from mysglang.srt.constrained.freight import CompiledElsewhere, SharedBackend
from mysglang.srt.constrained.grammar_queue import GrammarQueue
from mysglang.srt.constrained.json_spaces import SpacedBackend
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.scheduling.grammar import MaskFiller, NoGrammars
from mysglang.srt.utils.hardware import usable_cores
from mysglang.srt.utils.tokenizer import Tokenizer

FEW_CORES = 4
"""With more cores than this, libraries are loaded while the model is; with fewer, when the first grammar arrives."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Creates the grammars of requests, and the masks of grammars."""

    role: GrammarQueue
    filler: MaskFiller

    @classmethod
    def none(cls) -> StructuredOutput:
        """Returns a null object: requests with grammars are refused."""
        return cls(GrammarQueue(NoCompiler()), NoGrammars())

    @classmethod
    def start(
        cls,
        setup: CompilerSetup,
        tokenizer: Tokenizer,
        *,
        patience_s: float,
        jump_forward: bool = False,
        followed: bool = False,
    ) -> StructuredOutput:
        """Makes the structured output of the first rank.

        `tokenizer` is the one at `setup.tokenizer_path`. `patience_s`: seconds that a request waits for its grammar.
        `jump_forward`: whether grammars force tokens. `followed`: whether other ranks `follow` this one.
        """
        backend, eager = _backend_maker(setup, tokenizer), usable_cores() > FEW_CORES
        masks = AnswerMasks(backend, setup.vocab_size, setup.eos_ids)
        cut = cutter(tokenizer) if jump_forward else None
        if not followed:
            compiler = GrammarCompiler(setup, backend, eager=eager)
            return cls(GrammarQueue(compiler, cut=cut, patience_s=patience_s), masks)
        shared = SharedBackend(backend)
        compiler = GrammarCompiler(setup, shared.ready, eager=eager)
        return cls(GrammarQueue(compiler, cut=cut, freight=shared, patience_s=patience_s), masks)

    @classmethod
    def follow(cls, setup: CompilerSetup, tokenizer: Tokenizer, *, jump_forward: bool = False) -> StructuredOutput:
        """Returns the instance of another rank, which compiles nothing: the first rank sends it the compiled
        grammars.
        """
        backend = _backend_maker(setup, tokenizer)
        cut = cutter(tokenizer) if jump_forward else None
        queue = GrammarQueue(CompiledElsewhere(), cut=cut, freight=SharedBackend(backend))
        return cls(queue, AnswerMasks(backend, setup.vocab_size, setup.eos_ids))


def _backend_maker(setup: CompilerSetup, tokenizer: Tokenizer) -> Callable[[], GrammarBackend]:
    """Returns a function that makes the backend when it is first called, and returns the same one from then on."""

    @cache
    def backend() -> GrammarBackend:
        vocabulary = Vocabulary.of(tokenizer, setup.vocab_size, setup.eos_ids)
        made = make_backend(setup.backend, vocabulary, setup.style)
        return SpacedBackend(made, vocabulary) if setup.style.pattern is None else made

    return backend
