"""StructuredOutput: what a scheduler needs for requests with grammars, put together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from mysglang.srt.constrained.answer_grammar import AnswerMasks
from mysglang.srt.constrained.backend import GrammarBackend
from mysglang.srt.constrained.compile_messages import CompilerSetup
from mysglang.srt.constrained.compiler import GrammarCompiler, NoCompiler
from mysglang.srt.constrained.factory import make_backend
from mysglang.srt.constrained.forced_tokens import cutter
from mysglang.srt.constrained.grammar_queue import GrammarQueue
from mysglang.srt.constrained.vocabulary import Vocabulary
from mysglang.srt.scheduling.grammar import MaskFiller, NoGrammars
from mysglang.srt.utils.hardware import usable_cores
from mysglang.srt.utils.tokenizer import Tokenizer

FEW_CORES = 4
"""With more than these, libraries are loaded while the model is; with fewer, when the first grammar comes."""


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """Where requests get their grammars, and what turns grammars into masks."""

    role: GrammarQueue
    filler: MaskFiller

    @classmethod
    def none(cls) -> StructuredOutput:
        """Requests with grammars are refused."""
        return cls(GrammarQueue(NoCompiler()), NoGrammars())

    @classmethod
    def start(
        cls, setup: CompilerSetup, tokenizer: Tokenizer, *, patience_s: float, jump_forward: bool = False
    ) -> StructuredOutput:
        """`tokenizer` is the one at `setup.tokenizer_path`. `patience_s`: how long a request waits for its grammar.
        `jump_forward`: whether grammars force tokens.
        """

        @cache
        def backend() -> GrammarBackend:
            vocabulary = Vocabulary.of(tokenizer, setup.vocab_size, setup.eos_ids)
            return make_backend(setup.backend, vocabulary, setup.style)

        compiler = GrammarCompiler(setup, backend, eager=usable_cores() > FEW_CORES)
        cut = cutter(tokenizer) if jump_forward else None
        queue = GrammarQueue(compiler, cut=cut, patience_s=patience_s)
        return cls(queue, AnswerMasks(backend, setup.vocab_size, setup.eos_ids))
