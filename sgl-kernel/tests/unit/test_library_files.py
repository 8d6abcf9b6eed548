"""Libraries are found, compiled once and never stale; with a compiler that is a script."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
from pathlib import Path

import pytest
from workshop import Workshop

from fixtures.patience import PATIENCE_S
from mysgl_kernel import library
from mysgl_kernel.library import Library
from mysgl_kernel.toolchain import KernelBuildError, Nvcc, find_nvcc

SOURCE = "area/add.cu"


def compiler() -> Nvcc:
    found = find_nvcc()
    assert found is not None
    return found


def test_compiles_at_first_use_and_keeps_it(workshop: Workshop) -> None:
    assert Library(SOURCE).available()
    assert Library(SOURCE).available()
    assert workshop.compiled == 1
    (kept,) = workshop.cache.glob("*.so")
    assert kept.name.startswith("area-add.sm90a.")
    (call,) = workshop.calls.read_text().splitlines()
    assert "-gencode=arch=compute_90a,code=sm_90a" in call and f"-I{workshop.include}" in call


def test_functions_return_nothing_for_success(workshop: Workshop) -> None:
    exponent = Library(SOURCE).function("ilogb", ctypes.c_double)
    assert exponent(1.0) is None
    with pytest.raises(ctypes.ArgumentError):
        exponent("1")
    with pytest.raises(AttributeError):
        Library(SOURCE).function("no_such_function")


@pytest.mark.parametrize("changed", ["csrc/area/add.cu", "include/add.cuh"])
def test_a_changed_text_is_compiled_again(workshop: Workshop, changed: str) -> None:
    assert Library(SOURCE).available()
    workshop.write(changed, '#include "add.cuh"\nint other;\n' if changed.endswith(".cu") else "int other;\n")
    assert Library(SOURCE).available()
    assert workshop.compiled == 2


def test_flags_architecture_and_compiler_are_part_of_the_name(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Library(SOURCE).available()
    assert Library(SOURCE, flags=("-DX=1",)).available()
    monkeypatch.setattr(library, "present_arch", lambda: "80")
    assert Library(SOURCE).available()
    workshop.install("13.1")
    assert Library(SOURCE).available()
    assert workshop.compiled == len(list(workshop.cache.glob("*.so"))) == 4


def test_an_unrelated_header_is_not(workshop: Workshop) -> None:
    assert Library(SOURCE).available()
    workshop.write("include/other.cuh", "int other;\n")
    assert Library(SOURCE).available()
    assert workshop.compiled == 1


def test_headers_of_headers_count(workshop: Workshop) -> None:
    workshop.write("include/add.cuh", '  # include "deep/inner.cuh"\n')
    workshop.write("include/deep/inner.cuh", '#include "sibling.cuh"\n#include "cuda_runtime.h"\n')
    workshop.write("include/deep/sibling.cuh", "int a;\n")
    assert Library(SOURCE).available()
    workshop.write("include/deep/sibling.cuh", "int b;\n")
    assert Library(SOURCE).available()
    assert workshop.compiled == 2


def test_what_was_built_ahead_comes_first(workshop: Workshop) -> None:
    built = Library(SOURCE).build("90a", compiler(), workshop.lib)
    workshop.install("another release")
    assert Library(SOURCE).built("90a", compiler()) == built
    assert Library(SOURCE).available()
    assert workshop.compiled == 1 and not workshop.cache.exists()
    workshop.write("csrc/area/add.cu", "int newer;\n")
    assert Library(SOURCE).built("90a", compiler()) is None


def test_without_a_compiler_the_cache_will_do(workshop: Workshop, caplog: pytest.LogCaptureFixture) -> None:
    assert Library(SOURCE).available()
    workshop.uninstall()
    assert Library(SOURCE).available()
    workshop.write("csrc/area/add.cu", "int newer;\n")
    with caplog.at_level(logging.WARNING):
        assert not Library(SOURCE).available()
        assert not Library(SOURCE).available()
    assert sum("no nvcc" in message for message in caplog.messages) == 1
    with pytest.raises(KernelBuildError, match="CUDA_HOME"):
        Library(SOURCE).function("ilogb")


def test_a_failure_tells_source_command_and_the_compilers_words(workshop: Workshop) -> None:
    workshop.write("csrc/area/add.cu", "this is wrong\n")
    with pytest.raises(KernelBuildError) as caught:
        Library(SOURCE).function("ilogb")
    told = str(caught.value)
    assert "area/add.cu does not compile for sm_90a (status 2)" in told
    assert "bin/nvcc -O3" in told and "error: this is wrong" in told
    assert not list(workshop.cache.glob("*.so")) and not list(workshop.cache.glob("*.part"))


@pytest.mark.promise(50)
@pytest.mark.parametrize("damage", ["cut short", "zeros", "empty", "one bit", "appended"])
def test_a_damaged_library_is_compiled_again(workshop: Workshop, damage: str) -> None:
    assert Library(SOURCE).available()
    (kept,) = workshop.cache.glob("*.so")
    sound = kept.read_bytes()
    half = len(sound) // 2
    damaged = {
        "cut short": sound[:half],
        "zeros": sound[:half] + bytes(len(sound) - half),
        "empty": b"",
        "one bit": sound[:half] + bytes([sound[half] ^ 1]) + sound[half + 1 :],
        "appended": sound + b"\0",
    }[damage]
    # Under another inode, as after a restart: this process has the first one mapped.
    kept.unlink()
    kept.write_bytes(damaged)
    assert Library(SOURCE).built("90a", compiler()) is None
    assert Library(SOURCE).available()
    assert (workshop.compiled, kept.read_bytes()) == (2, sound)


def test_what_a_killed_process_left_is_cleared_away(workshop: Workshop) -> None:
    assert Library(SOURCE).available()
    (kept,) = workshop.cache.glob("*.so")
    left = kept.rename(kept.with_suffix(".1.part"))
    assert Library(SOURCE).available()
    assert kept.exists() and not left.exists()


def test_a_cache_that_cannot_be_written_is_no_crash(workshop: Workshop) -> None:
    workshop.write("cache", "a file where the folder should be")
    assert not Library(SOURCE).available()


@pytest.mark.parametrize(
    ("archs", "arch", "able"), [((), "80", True), ((), "75", False), (("90a",), "90a", True), (("90a",), "100", False)]
)
def test_other_architectures(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, archs: tuple[str, ...], arch: str, able: bool
) -> None:
    monkeypatch.setattr(library, "present_arch", lambda: arch)
    assert Library(SOURCE, archs=archs).available() is able
    assert workshop.compiled == able


def test_without_a_device_nothing_is_compiled(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "present_arch", lambda: None)
    assert not Library(SOURCE).available()
    assert workshop.compiled == 0


def _build(folder: Path) -> None:
    Library(SOURCE).build("90a", compiler(), folder)


def test_processes_build_once(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SECONDS", "0.5")
    fork = multiprocessing.get_context("fork")  # the children need this test's folders
    children = [fork.Process(target=_build, args=(workshop.cache,)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(PATIENCE_S)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert workshop.compiled == 1
