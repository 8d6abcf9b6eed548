"""Limits of a child of the grammar compiler; its work on grammars is tested through `GrammarCompiler`."""

import subprocess
import sys

import pytest

from fixtures.patience import PATIENCE_S
from mysglang.srt.constrained.compile_messages import Frames, Refused, ToParent

HUNGRY = """
from mysglang.srt.constrained.compile_messages import CompilerSetup, Job
from mysglang.srt.constrained.compile_process import compile_in_child

class Hungry:
    def compile(self, spec, threads=1):
        return bytes(1 << 30)

setup = CompilerSetup(backend="", tokenizer_path="", vocab_size=8, eos_ids=(0,), memory_bytes=1 << 26)
compile_in_child(setup, Hungry(), Job(number=7, kind="regex", text="a"), 1)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.promise(34)
def test_promise_34_memory_is_limited() -> None:
    child = subprocess.run([sys.executable, "-c", HUNGRY], capture_output=True, timeout=PATIENCE_S)
    frames: Frames[ToParent] = Frames(ToParent)
    [refused] = frames.feed(child.stdout)
    assert isinstance(refused, Refused) and refused.number == 7 and refused.lasting
    assert refused.reason == "compiling it takes more memory than the limit of 64 MiB"
