"""Building ahead of time; and that every source here really compiles, where there is a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest
from workshop import Workshop, builds, wait_for_builds

from mysgl_kernel import build, compiled, sources
from mysgl_kernel.cpu import build as cpu_build
from mysgl_kernel.environ import cache_directory
from mysgl_kernel.library import Library
from mysgl_kernel.toolchain import find_nvcc


@pytest.fixture
def two(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> list[Library]:
    workshop.write("csrc/area/more.cu", "int more;\n")
    libraries = [Library("area/add.cu"), Library("area/more.cu")]
    monkeypatch.setattr(build, "declared_libraries", lambda: libraries)
    monkeypatch.setattr(build, "present_arch", lambda: "90a")
    return libraries


def test_builds_everything_into_the_package(
    workshop: Workshop, two: list[Library], capsys: pytest.CaptureFixture[str]
) -> None:
    assert build.main(["--arch", "90a", "--out", str(workshop.lib)]) == 0
    assert sorted(path.name.split(".")[0] for path in workshop.lib.glob("*.so")) == ["area-add", "area-more"]
    told = capsys.readouterr().out
    assert "[1/2]" in told and "[2/2]" in told and "area/more.cu" in told
    assert all(library.available() for library in two) and not workshop.cache.exists()


def test_one_failure_does_not_stop_the_others(
    workshop: Workshop, two: list[Library], capsys: pytest.CaptureFixture[str]
) -> None:
    workshop.write("csrc/area/add.cu", "wrong\n")
    assert build.main(["--arch", "90a", "--out", str(workshop.lib)]) == 1
    assert [path.name.split(".")[0] for path in workshop.lib.glob("*.so")] == ["area-more"]
    assert "error: this is wrong" in capsys.readouterr().out


def test_sources_for_other_architectures_are_left_out(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "declared_libraries", lambda: [Library("area/add.cu", archs=("90a",))])
    assert build.main(["--arch", "80", "--out", str(workshop.lib)]) == 0
    assert workshop.compiled == 0


def test_a_server_has_what_is_missing_compiled_meanwhile(workshop: Workshop, two: list[Library]) -> None:
    assert two[0].available()
    build.start_building()
    assert two[1].available()
    wait_for_builds()
    assert workshop.compiled == 2
    build.start_building()
    assert not builds()


def test_only_what_serves_the_model_is_compiled_meanwhile(workshop: Workshop, two: list[Library]) -> None:
    two[0].traits, two[1].traits = {"head_dim": 64}, {"dtype": "bfloat16"}
    build.start_building({"head_dim": 128, "dtype": "bfloat16"})
    wait_for_builds()
    assert [path.name.split(".")[0] for path in workshop.cache.glob("*.so")] == ["area-more"]
    assert two[0].serves({}) and not two[0].serves({"head_dim": 128})


def test_a_background_failure_is_told_by_who_needs_it(workshop: Workshop, two: list[Library]) -> None:
    workshop.write("csrc/area/add.cu", "wrong\n")
    build.start_building()
    wait_for_builds()
    assert two[1].available() and not two[0].available()


def test_nothing_is_started_where_nothing_can_be_built(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    build.start_building()
    assert workshop.compiled == 0


def test_a_folder_that_cannot_be_written_is_reported_once(
    workshop: Workshop, two: list[Library], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    workshop.write("file", "")
    folder = workshop.cache.parent / "file" / "kernels"
    monkeypatch.setenv("MYSGLANG_KERNEL_CACHE", str(folder))
    build.start_building()
    wait_for_builds()
    assert not two[0].available() and not two[1].available()
    (line,) = caplog.messages
    assert f"their folder {folder} cannot be written (Not a directory)" in line
    assert "slower" in line and "Set MYSGLANG_KERNEL_CACHE to a folder that can be written" in line
    assert workshop.compiled == 0 and compiled.reasons_for_all == {line}


def test_without_a_compiler_it_says_so(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "find_nvcc", lambda: None)
    with pytest.raises(SystemExit):
        build.main(["--arch", "90a"])
    assert "CUDA_HOME" in capsys.readouterr().err


def test_the_cache_follows_the_standard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MYSGLANG_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_directory() == Path("/somewhere/mysglang/kernels")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_directory() == Path.home() / ".cache/mysglang/kernels"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("MYSGLANG_KERNEL_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert cache_directory() == Path("/nonexistent/.cache/mysglang/kernels")


def test_every_source_is_declared() -> None:
    declared = [*build.declared_libraries(), *cpu_build.declared_libraries()]
    assert {library.source for library in declared} == set(sources.all_sources())


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc")
def test_every_source_compiles() -> None:
    """Compile every source for Hopper, into the cache of this user: only what changed since the last run takes time.

    Two libraries of each source, the first and the last that are declared. The tests on a GPU build all of them.
    """
    compiler = find_nvcc()
    assert compiler is not None
    declared = [library for library in build.declared_libraries() if library.supports("90a")]
    first, last = ({library.source: library for library in some} for some in (reversed(declared), declared))
    libraries = list({repr(library): library for library in (*first.values(), *last.values())}.values())
    assert {library.source for library in libraries} == {library.source for library in declared}
    ended = build.build_all(libraries, "90a", compiler, cache_directory(), jobs=2)
    assert not [str(error) for _, error, _ in ended if error is not None]
