"""The text of a front: what does not belong to the model is named before the model is loaded."""

from pathlib import Path

import pytest

from fixtures.small_tokenizer import write
from mysglang.srt.entrypoints.ready_front import FrontText
from mysglang.srt.utils.tokenizer import Tokenizer


def test_a_tokenizer_of_another_model_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = Tokenizer.load(str(write(tmp_path, "byte_level")))
    text = FrontText(tokenizer, None)
    text.warn_of_other_vocabulary(tokenizer.largest_id + 1)
    FrontText(None, None).warn_of_other_vocabulary(1)
    assert caplog.messages == []
    text.warn_of_other_vocabulary(tokenizer.largest_id)
    (line,) = caplog.messages
    assert f"up to {tokenizer.largest_id}, and the model knows those below {tokenizer.largest_id}" in line
    assert "--tokenizer-path" in line
