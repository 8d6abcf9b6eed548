"""Files of torch.save, read without unpickling: what was saved is read, and what becomes of hostile files."""

import io
import os
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from mysglang.srt.errors import ConfigError
from mysglang.srt.model_loader.torch_file import TorchFile
from mysglang.srt.utils.torch_archive import STORAGES, archived_tensors
from mysglang.srt.utils.weight_headers import HeaderRoom

NAME = "model.bin"


def read(path: Path) -> dict[str, Tensor]:
    file = TorchFile(path, HeaderRoom())
    return {name: file.read(name) for name in file.names}


def refusal(path: Path, room: HeaderRoom | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        archived_tensors(path, room or HeaderRoom())
    return str(caught.value)


def archive(
    path: Path, program: bytes, files: dict[str, bytes] | None = None, method: int = zipfile.ZIP_STORED
) -> Path:
    with zipfile.ZipFile(path, "w", method) as found:
        found.writestr("x/data.pkl", program)
        for name, content in (files or {"x/data/0": bytes(64)}).items():
            found.writestr(name, content)
    return path


def short(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def number(value: int) -> bytes:
    return b"\x8a\x08" + value.to_bytes(8, "little", signed=True)


def program(shape: list[int], strides: list[int], offset: int = 0, key: str = "0", kind: str = "FloatStorage") -> bytes:
    """A dict of one tensor, as torch.save would write it."""
    storage = b"(" + short("storage") + f"ctorch\n{kind}\n".encode() + short(key) + short("cpu") + number(16) + b"tQ"
    sizes = [b"(" + b"".join(map(number, each)) + b"t" for each in (shape, strides)]
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(offset) + b"".join(sizes) + b"\x89NtR"
    return b"\x80\x02}" + short("a") + tensor + b"s."


def test_what_torch_saved_is_read(tmp_path: Path) -> None:
    base = torch.arange(24.0)
    tensors: dict[str, Tensor] = OrderedDict(
        whole=base,
        part=base[3:11].view(2, 4),
        turned=torch.randn(3, 5).t(),
        scalar=torch.tensor(2.5),
        empty=torch.empty(0, 7),
        parameter=torch.nn.Parameter(torch.randn(2, 2)),
        **{name: torch.ones(3).to(getattr(torch, name)) for name, _ in STORAGES.values()},
    )
    torch.save(tensors, tmp_path / NAME)
    found = read(tmp_path / NAME)
    assert list(found) == list(tensors)
    for name, tensor in found.items():
        assert tensor.dtype == tensors[name].dtype and tensor.stride() == tensors[name].stride()
        assert torch.equal(tensor, tensors[name])


def test_values_that_are_not_those_of_the_file(tmp_path: Path) -> None:
    """torch saves a negated view as it is, and a mark beside it."""
    torch.save({"a": torch._neg_view(torch.ones(3))}, tmp_path / NAME)
    assert "tensor a is a negated or conjugated view" in refusal(tmp_path / NAME)


def test_a_state_dict_with_versions_of_its_modules(tmp_path: Path) -> None:
    layer = torch.nn.Linear(3, 2)
    torch.save(layer.state_dict(), tmp_path / NAME)
    assert torch.equal(read(tmp_path / NAME)["weight"], layer.weight)


@pytest.mark.promise(39)
@pytest.mark.parametrize("call", [b"cposix\nsystem\n", b"cbuiltins\neval\n", b"ctorch\nload\n"])
def test_a_name_that_could_run_code_is_refused_and_not_run(tmp_path: Path, call: bytes) -> None:
    mark = tmp_path / "mark"
    path = archive(tmp_path / NAME, b"\x80\x02" + call + short(f"touch {mark}") + b"\x85R.")
    assert "which could run code; only files of tensors by name are read" in refusal(path)
    assert not mark.exists()


@pytest.mark.promise(39)
@pytest.mark.parametrize(
    ("code", "words"),
    [
        (b"\x80\x02]" + short("a") + b"a.", "the instruction APPEND"),
        (b"\x80\x02}" + short("a") + number(3) + b"s.", "holds 'a', which is no tensor"),
        (b"\x80\x02}" + short("a") + b"}ss.", "damaged"),
        (b"\x80\x02}.", "no dict of tensors"),
        (b"\x80\x02}" + short("a"), "damaged"),
        (b"\x80\x02\x940.", "damaged"),
        (b"\x80\x02((((.", "damaged"),
        (b"", "damaged"),
        (program([4], [1], key="../x"), "unknown kind"),
        (program([4], [1], key="1"), "tensor a are missing"),
        (program([4], [1], kind="UntypedStorage"), "could run code"),
        (program([17], [1]), "is not within its 64 bytes"),
        (program([4], [1], offset=13), "is not within its 64 bytes"),
        (program([1 << 40], [0]), "is not within its 64 bytes"),
        (program([2, 1 << 40], [8, 0]), "is not within its 64 bytes"),
        (program([1 << 61, 1 << 61], [1 << 61, 1]), "is not within its 64 bytes"),
        (program([-1], [1]), "a size that is none"),
        (program([1] * 9, [1] * 9), "a tensor that is none"),
        (program([1], [1, 1]), "a tensor that is none"),
    ],
)
def test_programs_that_describe_something_else(tmp_path: Path, code: bytes, words: str) -> None:
    assert words in refusal(archive(tmp_path / NAME, code))


@pytest.mark.promise(39)
def test_archives_that_torch_does_not_write(tmp_path: Path) -> None:
    path = tmp_path / NAME
    archive(path, program([4], [1]), method=zipfile.ZIP_DEFLATED)
    assert "is compressed or encrypted" in refusal(path)
    archive(path, program([4], [1]), {"x/data/0": bytes(64), "x/byteorder": b"big"})
    assert "big-endian" in refusal(path)
    with zipfile.ZipFile(path, "w") as found:
        found.writestr("x/other", b"")
    assert "has no data.pkl" in refusal(path)
    torch.save({"a": torch.ones(2)}, path, _use_new_zipfile_serialization=False)
    assert "older format; load it with torch.load" in refusal(path)
    path.unlink()
    os.mkfifo(path)
    assert "is a pipe" in refusal(path)


@pytest.mark.promise(49)
def test_a_directory_or_a_program_of_hostile_length_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / NAME
    torch.save({f"t{i}": torch.ones(1) for i in range(50)}, path)
    assert "and the headers of a checkpoint have at most 5000 together" in refusal(path, HeaderRoom(5000))
    content = path.read_bytes()
    # The counts of the zip archive's end: its entries, the bytes of its directory.
    for at, words in ((32, "would hold"), (40, "reaches beyond its end")):
        place = content.rindex(b"PK\x06\x06") + at
        path.write_bytes(content[:place] + struct.pack("<Q", 1 << 40) + content[place + 8 :])
        assert words in refusal(path)


@pytest.mark.promise(39)
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 5000), byte=st.integers(0, 255), kept=st.none() | st.integers(0, 2000))
def test_any_damage_is_found_or_harmless(tmp_path: Path, at: int, byte: int, kept: int | None) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(3, 5), "b": torch.zeros(4).bfloat16()}, buffer)
    content = bytearray(buffer.getvalue())
    content[at % len(content)] = byte
    path = tmp_path / NAME
    path.write_bytes(content[:kept])
    try:
        found = read(path)
    except ConfigError as error:
        assert NAME in str(error)
    else:
        assert sum(tensor.nbytes for tensor in found.values()) <= 2 * len(content)
