"""Programs of tests that are forked from one process: what one of them does, the next does not see."""

import pytest

from fixtures.triton_on_cpu import run_interpreted


def test_a_program_that_fails_is_quoted_and_changes_nothing_for_the_next() -> None:
    pytest.importorskip("triton")
    fails = "torch.changed = True\nprint('before')\nraise ValueError('such is life')"
    with pytest.raises(AssertionError, match="ValueError: such is life"):
        run_interpreted(fails)
    with pytest.raises(AssertionError, match="-9"):
        run_interpreted("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    assert run_interpreted("print(hasattr(torch, 'changed'), __name__)") == "False __main__\n"
