"""The embedded model's held-out answers, whatever the loop, the cache, the chunks and the pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.gguf_files import Q8_0, convert, words_of
from fixtures.warm_start import warm_engines
from mysglang.eval.engine_runner import answers
from mysglang.eval.exam import TINY, answer_text, exam_items

pytestmark = pytest.mark.usefixtures("warm")

PER_TASK = 4
FEW = 1
"""Questions of each task, where answers are compared and not counted."""
FLOAT32 = ("--dtype", "float32")

WAYS = {
    "whole prompts, no cache": ("--chunked-prefill-size", "-1", "--disable-radix-cache"),
    "pages, chunks, no overlap": ("--page-size", "16", "--chunked-prefill-size", "16", "--disable-overlap-schedule"),
}
"""Each option alone: test_cache_equality.py (pages, chunks, cache) and test_concurrency.py (overlap)."""


@pytest.fixture(scope="module")
def warm() -> Iterator[None]:
    with warm_engines():
        yield


@pytest.fixture(scope="module")
def usual(warm: None) -> list[str]:
    """The answers of a server with no flags."""
    return list(answers(exam_items(PER_TASK), ()))


def test_the_model_is_good_at_its_small_world(usual: list[str]) -> None:
    items = exam_items(PER_TASK)
    expected = [answer_text(item.answer, item.thinking) for item in items]
    right = sum(answer == wanted for answer, wanted in zip(usual, expected, strict=True))
    assert right / len(items) >= 0.95


@pytest.fixture(scope="module")
def precise(warm: None) -> list[str]:
    """The answers in float32: in bfloat16 the rows of a step differ in their last bits with who is beside them, and
    so now and then in which of two tokens that are nearly as likely is taken.
    """
    return list(answers(exam_items(FEW), FLOAT32))


@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_answers(way: str, precise: list[str]) -> None:
    assert list(answers(exam_items(FEW), (*FLOAT32, *WAYS[way]))) == precise


def test_eight_bits_of_a_gguf_file_answer_as_well(tmp_path: Path) -> None:
    """The embedded model at Q8_0 with its tokenizer in the same file, from which alone a server starts."""
    path = convert(TINY, tmp_path / "tiny-Q8_0.gguf", Q8_0, **words_of(TINY))
    items = exam_items(PER_TASK)
    expected = [answer_text(item.answer, item.thinking) for item in items]
    found = answers(items, ("--model-path", str(path)))
    right = sum(answer == wanted for answer, wanted in zip(found, expected, strict=True))
    assert right / len(items) >= 0.95
