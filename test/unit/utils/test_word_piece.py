"""BERT's WordPiece: decoded as the tokenizers library does it; where the second text of a pair begins."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Library

from mysglang.srt.utils.tokenizer import Tokenizer

WORDS = ["[UNK]", "[CLS]", "[SEP]", "do", "n't", "'", "'s", ".", ",", "!", "a", "fox", "##es", "##.", "x ?", "##n't"]


def library(*, cleanup: bool) -> Library:
    tokenizer = Library(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=cleanup)
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in WORDS[:3]])
    frame = [("[CLS]", 1), ("[SEP]", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=frame
    )
    return tokenizer


@pytest.fixture(scope="module", params=[True, False])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Library, Tokenizer]:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    theirs = library(cleanup=request.param)
    theirs.save(str(folder / "tokenizer.json"))
    return theirs, Tokenizer.load(folder)


@settings(max_examples=200)
@given(ids=st.lists(st.integers(0, len(WORDS) - 1), max_size=12), skip=st.booleans())
def test_decodes_as_the_library(both: tuple[Library, Tokenizer], ids: list[int], skip: bool) -> None:
    theirs, ours = both
    assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)


def test_pairs(both: tuple[Library, Tokenizer]) -> None:
    _, ours = both
    found = ours.encode_pairs([("a fox", "do"), ("a", ""), ("[SEP]", "fox")])
    assert found == [([1, 10, 11, 2, 3, 2], 4), ([1, 10, 2, 2], 3), ([1, 2, 2, 11, 2], 3)]


def test_pairs_that_nothing_tells_apart(tmp_path: Path) -> None:
    theirs = library(cleanup=True)
    frame = [("[SEP]", 2)]
    theirs.post_processor = processors.TemplateProcessing(single="$A", pair="$A [SEP] $B", special_tokens=frame)
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path).encode_pairs([("a", "fox")]) == [([10, 2, 11], None)]
