"""Tokenizer against transformers on the same files, and its refusals."""

import json
import threading
import time
from pathlib import Path

import pytest

from fixtures import small_tokenizer
from fixtures.small_tokenizer import BOS, EOS, MARKER, TURN
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.errors import ConfigError
from mysglang.srt.utils.tokenizer import Tokenizer

KINDS = sorted(small_tokenizer.KINDS)
TEXTS = ["", " ", "The quick  brown fox", f"{BOS}Hi{TURN} {MARKER}x{EOS}", "你好 🎉\n\n\tend ", "Zürich"]


def transformers_tokenizer(folder: Path) -> object:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast.from_pretrained(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_encodes_and_decodes_as_transformers(kind: str, tmp_path: Path) -> None:
    ours = Tokenizer.load(small_tokenizer.write(tmp_path, kind))
    theirs = transformers_tokenizer(tmp_path)
    for text in TEXTS:
        for special in (True, False):
            ids = ours.encode(text, add_special_tokens=special)
            assert ids == theirs.encode(text, add_special_tokens=special)
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.vocab_size == len(theirs)
    assert ours.bos_token_id == theirs.bos_token_id
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.special_tokens == theirs.special_tokens_map


def test_tokens_that_only_the_configuration_knows(tmp_path: Path) -> None:
    added = {"437": {"content": "<new>", "special": True}, "438": {"content": "<plain>", "special": False}}
    small_tokenizer.write(
        tmp_path,
        "byte_level",
        added_tokens_decoder=added,
        pad_token="<pad>",
        eos_token=MARKER,
        extra_special_tokens=["jumps"],
    )
    ours = Tokenizer.load(tmp_path)
    theirs = transformers_tokenizer(tmp_path)
    text = f"a<new>b<plain>c<pad>{MARKER}jumps"
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert len(ids) == 8
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.decode(ids).startswith("ab<plain>c")


@pytest.mark.parametrize(
    ("kind", "flags", "expected"),
    [
        ("metaspace", {}, (True, False)),
        ("metaspace", {"add_bos_token": False, "add_eos_token": True}, (True, False)),  # the file's own frame decides
        ("byte_level", {}, (False, False)),
        ("byte_level", {"add_bos_token": True}, (True, False)),
        ("byte_fallback", {"add_bos_token": True, "add_eos_token": True}, (True, True)),
        ("byte_fallback", {"add_bos_token": None}, (False, False)),
    ],
)
def test_who_decides_on_bos_and_eos(
    kind: str, flags: dict[str, bool | None], expected: tuple[bool, bool], tmp_path: Path
) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, kind, **flags))
    ids = tokenizer.encode("fox")
    assert (ids[0] == tokenizer.bos_token_id, ids[-1] == tokenizer.eos_token_id) == expected
    bare = tokenizer.encode("fox", add_special_tokens=False)
    assert tokenizer.bos_token_id not in bare
    assert tokenizer.eos_token_id not in bare


def test_special_tokens_map_completes_an_old_configuration(tmp_path: Path) -> None:
    small_tokenizer.write(tmp_path, "byte_level", eos_token=None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": TURN, "lstrip": False}}))
    assert Tokenizer.load(tmp_path).special_tokens == {"bos_token": BOS, "eos_token": TURN}


class TestChatTemplates:
    """Places of a model's chat template."""

    def found(self, folder: Path) -> object:
        return Tokenizer.load(folder).config.get("chat_template")

    def test_in_the_configuration(self, tmp_path: Path) -> None:
        small_tokenizer.write(tmp_path, "byte_level", chat_template="configured")
        assert self.found(tmp_path) == "configured"
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
        assert self.found(tmp_path) == "configured"

    def test_in_a_legacy_file(self, tmp_path: Path) -> None:
        small_tokenizer.write(tmp_path, "byte_level")
        assert self.found(tmp_path) is None
        (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
        assert self.found(tmp_path) == "legacy"

    def test_in_files(self, tmp_path: Path) -> None:
        small_tokenizer.write(tmp_path, "byte_level", chat_template="configured")
        (tmp_path / "chat_template.jinja").write_text("file")
        assert self.found(tmp_path) == "file"
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
        assert self.found(tmp_path) == [
            {"name": "default", "template": "file"},
            {"name": "tool_use", "template": "tools"},
        ]

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        small_tokenizer.write(tmp_path, "byte_level")
        (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
        with pytest.raises(ConfigError, match=r"chat_template\.jinja cannot be read"):
            self.found(tmp_path)


def test_truncation_and_padding_of_the_file_are_off(tmp_path: Path) -> None:
    backend = small_tokenizer.KINDS["byte_level"]()
    backend.enable_truncation(max_length=2)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a long text")) == "a long text"


def test_token_text_keeps_spaces_and_shows_special_tokens(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, "metaspace"))
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    assert "".join(map(tokenizer.token_text, ids)) == " the dog"
    assert tokenizer.token_text(tokenizer.bos_token_id or 0) == BOS
    assert tokenizer.token_bytes(tokenizer.id_of("<0xE4>") or 0) == b"\xe4"
    assert tokenizer.token_text(tokenizer.id_of("<0xE4>") or 0) == "\ufffd"


def test_ids_that_do_not_exist_have_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, "byte_level"))
    assert tokenizer.decode([-1, 10**6, 2**40, *tokenizer.encode("fox")]) == "fox"


def test_longest_token_bounds_the_length(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, "byte_level"))
    text = "The quick brown fox jumps over the lazy dog. " * 20
    assert len(text) / tokenizer.longest_token <= len(tokenizer.encode(text)) < len(text)


def test_encoding_lets_other_threads_run(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, "byte_level"))
    text = "The quick brown fox jumps over the lazy dog. " * 20_000

    def turns_beside_it() -> int:
        """How often this thread runs while another one encodes."""
        worker = threading.Thread(target=tokenizer.encode, args=(text,))
        worker.start()
        turns = 0
        while worker.is_alive():
            time.sleep(0.001)
            turns += 1
        return turns

    # Had encoding kept the GIL, this thread would have one turn or two; a busy machine may take some away once.
    assert any(turns_beside_it() > 5 for _ in range(20))


class TestRefusals:
    def test_no_tokenizer_json(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="save_pretrained"):
            Tokenizer.load(tmp_path)

    @pytest.mark.parametrize(
        "content",
        [
            "not json",
            "[]",
            '{"model": 1}',
            '{"decoder": {"type": "CTC"}, "model": {"type": "BPE", "vocab": {}, "merges": []}}',
            '{"decoder": {"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}}',
        ],
    )
    def test_a_tokenizer_json_that_cannot_be_used(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(ConfigError, match=r"tokenizer\.json"):
            Tokenizer.load(tmp_path)

    def test_broken_added_tokens(self, tmp_path: Path) -> None:
        small_tokenizer.write(tmp_path, "byte_level", added_tokens_decoder={"x": 1})
        with pytest.raises(ConfigError, match="added_tokens_decoder"):
            Tokenizer.load(tmp_path)


def test_ids_of_a_long_text_are_made_in_pieces_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = Tokenizer.load(EMBEDDED_MODEL)
    text = "A long text, word for word. " * 50
    whole = tokenizer.encode(text)
    for piece in (1, 7, len(whole) - 1, len(whole)):
        monkeypatch.setattr("mysglang.srt.utils.tokenizer.IDS_PIECE", piece)
        assert tokenizer.encode(text) == whole


def test_the_largest_id(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, "byte_level"))
    assert tokenizer.token_text(tokenizer.largest_id)
    assert all(tokenizer.id_of(token) is None or tokenizer.id_of(token) <= tokenizer.largest_id for token in ("a", "b"))
    assert tokenizer.largest_id == tokenizer.vocab_size - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "text", ["The quick  brown\n\n fox", " The é你🎉! ", f"{BOS}Hi{TURN} {MARKER} x{EOS}", "", "Zürich "]
)
def test_where_tokens_begin(kind: str, text: str, tmp_path: Path) -> None:
    """Each begins behind the text of those before it; half a character begins where the whole one does."""
    ours = Tokenizer.load(small_tokenizer.write(tmp_path, kind))
    ids, starts = ours.encode(text), ours.starts(text)
    framed = kind == "metaspace"
    own = ids[framed:]
    texts = [b"".join(map(ours.token_bytes, own[:place])) for place in range(len(own))]
    # The space that a tokenizer puts before a text is not in it.
    dropped = len(b"".join(map(ours.token_bytes, own)).decode()) - len(text)
    expected = [max(len(said.decode(errors="ignore")) - dropped, 0) for said in texts]
    assert starts == [0] * framed + expected


def test_where_tokens_begin_that_are_counted_without_their_spaces(tmp_path: Path) -> None:
    """Byte-level tokenizers may cut spaces from spans, and put tokens around a text."""
    folder = small_tokenizer.write(tmp_path, "byte_level")
    config = json.loads((folder / "tokenizer.json").read_text())
    cutting = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    (folder / "tokenizer.json").write_text(json.dumps({**config, "post_processor": cutting}))
    framing = Tokenizer.load(small_tokenizer.write(tmp_path / "framing", "byte_level", add_bos_token=True))
    text = " The quick  brown\n\n fox "
    whole = Tokenizer.load(small_tokenizer.write(tmp_path / "whole", "byte_level")).starts(text)
    assert Tokenizer.load(folder).starts(text) == whole
    assert framing.starts(text) == [0, *whole]


def test_where_tokens_begin_of_a_text_that_a_tokenizer_changes(tmp_path: Path) -> None:
    folder = small_tokenizer.write(tmp_path, "byte_level")
    config = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**config, "normalizer": {"type": "NFC"}}))
    starts = Tokenizer.load(folder).starts("e\u0301e\u0301!")
    assert (starts[0], starts[-1]) == (0, 4)
