"""The CPU as a platform, and the choice of one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mysglang.srt.errors import ConfigError
from mysglang.srt.platforms import cpu, platform_named
from mysglang.srt.platforms.cpu import CpuPlatform
from mysglang.srt.platforms.cuda import CudaPlatform
from mysglang.srt.platforms.interface import DeviceMemory
from mysglang.srt.utils.hardware import GIB

PYTHON = Path(__file__).parents[3] / "python"


def test_importing_the_platforms_imports_no_torch() -> None:
    program = "import sys, mysglang.srt.platforms; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(PYTHON)}
    )
    assert done.stdout.strip() == "False", done.stderr


def test_names() -> None:
    assert platform_named("cpu") is platform_named("cpu")
    assert platform_named("cpu").device == torch.device("cpu")
    with pytest.raises(ConfigError, match="--device gpu"):
        platform_named("gpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_cuda_where_there_is_none() -> None:
    with pytest.raises(ConfigError, match="--device cpu"):
        platform_named("cuda")
    assert platform_named("auto").name == "cpu"


def test_memory_is_that_of_the_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit, usage = tmp_path / "max", tmp_path / "current"
    monkeypatch.setattr(cpu, "CGROUP_LIMITS", (limit,))
    monkeypatch.setattr(cpu, "CGROUP_USAGE", (usage,))
    whole = CpuPlatform().memory()
    assert 0 < whole.free <= whole.total
    limit.write_text("max\n")
    assert CpuPlatform().memory().total == whole.total
    limit.write_text(f"{GIB}\n")
    usage.write_text(f"{GIB // 4}\n")
    memory = CpuPlatform().memory()
    assert (memory.free, memory.total) == (GIB * 3 // 4, GIB)


def test_the_cpu_never_lags() -> None:
    platform = CpuPlatform()
    event = platform.record_event()
    event.synchronize()
    event.record()
    event.synchronize()
    assert platform.upload_bytes(5).numel() == 5
    assert platform.device_name and platform.default_graph_max_bs() == 16


@pytest.mark.parametrize(("gib", "size"), [(16, 8), (24, 48), (48, 32), (80, 256), (139, 512), (180, 512)])
def test_the_largest_graph_of_a_gpu_follows_its_memory(gib: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = CudaPlatform()
    monkeypatch.setattr(platform, "memory", lambda: DeviceMemory(free=0, total=gib * GIB))
    assert platform.default_graph_max_bs() == size
