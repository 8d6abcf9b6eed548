"""HumanEval: functions to be written, judged by running their tests.

Chen et al., "Evaluating Large Language Models Trained on Code" (arXiv 2107.03374).
"""

from __future__ import annotations

import re

from mysglang.eval.examples import Example, TaskOptions, Verdict, chosen, fields, read_lines
from mysglang.eval.sandbox import runs_well

RUN_S = 10.0
"""Time limit in seconds for all tests of one function."""

_INSTRUCTION = "Complete this Python function. Reply with the whole function, and what it needs, in one code block.\n\n"
_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


class HumanEval:
    """Each function is a message of its own. Judging an answer runs it."""

    chat = True
    stop: tuple[str, ...] = ()
    max_tokens = 1024
    num_shots = 0

    def examples(self, options: TaskOptions) -> list[Example]:
        """Examples from JSON lines with `prompt`, `entry_point` and `test`."""
        path = options.data_path
        records = [fields(record, ("prompt", "entry_point", "test"), path) for record in read_lines(path)]
        return [self._example(*record) for record in chosen(records, options, path)]

    @staticmethod
    def _example(prompt: str, entry_point: str, test: str) -> Example:
        def judge(answer: str) -> Verdict:
            code = code_in(answer)
            if f"def {entry_point}" not in code:
                # The body alone, as a continuation of the prompt.
                code = prompt + code
            return Verdict(runs_well(f"{code}\n\n{test}\n\ncheck({entry_point})\n", RUN_S), valid=bool(code.strip()))

        return Example(f"{_INSTRUCTION}```python\n{prompt.rstrip()}\n```", judge)


def code_in(answer: str) -> str:
    """The last code block of an answer, or all of it if there is none."""
    blocks = _BLOCK.findall(answer)
    return str(blocks[-1]) if blocks else answer
