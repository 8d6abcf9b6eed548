"""A tokenizer whose files are damaged, by accident or on purpose: it is refused with a ConfigError, or it works. The
chat templates in it are read alike."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures.small_tokenizer import KINDS, write
from mysglang.srt.errors import ConfigError, InvalidRequest
from mysglang.srt.parser.template_manager import TemplateManager
from mysglang.srt.utils import tokenizer as tokenizer_module
from mysglang.srt.utils.tokenizer import FURTHER_SPECIAL_TOKENS, Tokenizer

FILES = ("tokenizer.json", "tokenizer_config.json")
WRONG: list[Any] = [
    None, True, -1, 0, 1 << 31, 1 << 40, 0.5, "", "x", "[", "(?<", "\x00", [], [[]], [None], {}, {"type": "ByteLevel"},
    {"type": "nobody knows"}, {"content": 5}, {"content": "<s>", "id": -5}, [{"name": "default", "template": 5}],
    "{{ messages.__class__.__mro__[1].__subclasses__() }}", "{% for a in range(10**6) %}{% for b in [] %}", "{{",
    [{"name": "default", "template": "{{ ''.join.__globals__ }}"}], "../../../etc/passwd", {"auto_map": "a.b"},
]  # fmt: skip
ADDED = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
DAMAGES = 250


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to the values in a JSON value; the first few and the last of long lists and objects."""
    yield path
    if isinstance(value, dict):
        names = list(value)
        for name in names[:12] + names[12:][-1:]:
            yield from places(value[name], (*path, name))
    elif isinstance(value, list):
        for index in [*range(len(value))[:2], *range(len(value))[2:][-1:]]:
            yield from places(value[index], (*path, index))


def damaged(draw: random.Random, text: str) -> str:
    """The file with one thing in it replaced or taken away."""
    value = json.loads(text)
    path = draw.choice([*places(value)][1:])
    inner = value
    for step in path[:-1]:
        inner = inner[step]
    if draw.random() < 0.3:
        del inner[path[-1]]
    else:
        inner[path[-1]] = draw.choice(WRONG)
    return json.dumps(value)


def use(folder: Path) -> None:
    """A server's calls of a tokenizer."""
    tokenizer = Tokenizer.load(folder)
    ids = tokenizer.encode("The quick brown fox: 10, señor 你好 <think>")
    tokenizer.decode(ids)
    templates = TemplateManager(tokenizer.config, tokenizer.special_tokens)
    try:
        templates.render([{"role": "user", "content": "Hello"}])
    except InvalidRequest as error:
        assert str(error)


@pytest.mark.promise(39)
@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named_or_harmless(tmp_path: Path, kind: str, file: str) -> None:
    write(tmp_path, kind, chat_template="{% for m in messages %}{{ m.content }}{% endfor %}")
    sound = (tmp_path / file).read_text(encoding="utf-8")
    draw = random.Random(f"{kind} {file}")
    named = 0
    for _ in range(DAMAGES):
        (tmp_path / file).write_text(damaged(draw, sound), encoding="utf-8")
        try:
            use(tmp_path)
        except ConfigError as error:
            assert str(error)
            named += 1
    # Nearly all of the second file may be missing.
    assert named < DAMAGES and (named > 0 or file != "tokenizer.json")


@pytest.mark.promise(39)
@pytest.mark.parametrize("file", FILES)
def test_bytes_that_are_no_json(tmp_path: Path, file: str) -> None:
    write(tmp_path, "byte_level")
    sound = (tmp_path / file).read_bytes()
    for content in (b"", b"\xff\xfe\x00", b"[]", b"null", sound[: len(sound) // 2], b"[" * 100_000, b'{"a":' * 100_000):
        (tmp_path / file).write_bytes(content)
        with pytest.raises(ConfigError, match=r"tokenizer"):
            use(tmp_path)


@pytest.mark.promise(39)
@pytest.mark.parametrize("key", FURTHER_SPECIAL_TOKENS)
def test_special_tokens_that_are_no_list(tmp_path: Path, key: str) -> None:
    for value in (5, -1.5, True, "<a>"):
        write(tmp_path, "byte_level", **{key: value})
        with pytest.raises(ConfigError, match=f"{key} must be a list or an object of tokens, not {value!r}"):
            use(tmp_path)


def write_part(folder: Path, *path: str, part: Any) -> None:
    """Put `part` into the tokenizer.json, at `path`."""
    write(folder, next(iter(KINDS)))
    file = folder / "tokenizer.json"
    inner = value = json.loads(file.read_text(encoding="utf-8"))
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = part
    file.write_text(json.dumps(value), encoding="utf-8")


@pytest.mark.promise(49)
@pytest.mark.parametrize(
    ("path", "limit", "entries"),
    [
        (("model", "vocab"), "MAX_VOCAB", {f"t{i}": i for i in range(300)}),
        (("model", "merges"), "MAX_MERGES", ["a b"] * 300),
        (("added_tokens",), "MAX_ADDED", [{"id": i, "content": f"<{i}>", **ADDED} for i in range(300)]),
    ],
)
def test_a_part_of_too_many_entries(
    path: tuple[str, ...], limit: str, entries: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part(tmp_path, *path, part=entries)
    monkeypatch.setattr(tokenizer_module, limit, 100)
    with pytest.raises(ConfigError, match=rf"tokenizer.json: {'.'.join(path)} has more than 100 entries"):
        Tokenizer.load(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_device_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    write(tmp_path, next(iter(KINDS)))
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(ConfigError, match=f"{name} is a device"):
        Tokenizer.load(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize("part", ["normalizer", "decoder"])
@pytest.mark.parametrize("pattern", [{"String": ""}, {"String": "a"}, {"Regex": "(?=a)"}])
def test_steps_that_make_a_text_ever_longer(part: str, pattern: dict[str, str], tmp_path: Path) -> None:
    """Thirty of them made gigabytes of the warm-up's prompt."""
    if part == "decoder" and "Regex" in pattern:
        pattern = {"String": "é"}
    step = {"type": "Replace", "pattern": pattern, "content": "aa"}
    inner = {"normalizer": "normalizers", "decoder": "decoders"}[part]
    write_part(tmp_path, part, part={"type": "Sequence", inner: [{"type": "Sequence", inner: [step] * 5}] * 6})
    with pytest.raises(ConfigError, match=f"tokenizer.json: {part} can make a text more than 64 times longer"):
        Tokenizer.load(tmp_path)


def test_steps_of_tokenizers_in_use_are_let_be(tmp_path: Path) -> None:
    steps = [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"},
        {"type": "Replace", "pattern": {"Regex": "\\s+"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
        {"type": "NFKC"},
        {"type": "Lowercase"},
    ]
    write_part(tmp_path, "normalizer", part={"type": "Sequence", "normalizers": steps})
    use(tmp_path)


@pytest.mark.promise(35)
def test_promise_35_a_text_on_which_the_library_gives_up_is_refused(tmp_path: Path) -> None:
    """Its panic is no Exception: a batch broke off, and a response in the background was never over."""
    split = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    write_part(tmp_path, "pre_tokenizer", part=split)
    tokenizer = Tokenizer.load(tmp_path)
    for encode in (tokenizer.encode, lambda text: tokenizer.encode_pairs([(text, "b")])):
        with pytest.raises(InvalidRequest, match="cannot be tokenized"):
            encode("x" * 32)
    assert tokenizer.encode("x")


def test_too_many_chat_templates(tmp_path: Path) -> None:
    write(tmp_path, next(iter(KINDS)))
    (tmp_path / "chat_template.jinja").write_text("x")
    (tmp_path / "additional_chat_templates").mkdir()
    for number in range(65):
        (tmp_path / "additional_chat_templates" / f"{number}.jinja").touch()
    with pytest.raises(ConfigError, match="65 additional chat templates; at most 64"):
        Tokenizer.load(tmp_path)


@pytest.mark.promise(49)
@pytest.mark.parametrize("key", ["added_tokens_decoder", "extra_special_tokens"])
def test_a_configuration_of_too_many_tokens(key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, next(iter(KINDS)))
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    tokens = {f"{i}": {"content": f"<{i}>"} for i in range(300)}
    config[key] = tokens if key == "added_tokens_decoder" else [f"<{i}>" for i in range(300)]
    file.write_text(json.dumps(config), encoding="utf-8")
    monkeypatch.setattr(tokenizer_module, "MAX_ADDED", 250)
    with pytest.raises(ConfigError, match=r"tokenizer_config.json: names \d+ added tokens; at most 250 are loaded"):
        Tokenizer.load(tmp_path)
