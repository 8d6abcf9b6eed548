"""The drawing in docs/architecture.md as a test: who may import whom, types and function-level imports included.

Change a row here and the drawing there together. A unit is a folder or a single file directly under `srt/` (or, named
with a leading dot, directly under the package). A unit that has a row but no file yet is no error.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from fixtures.import_graph import ImportGraph, chain, cycles
from fixtures.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]
GRAPH = ImportGraph(REPOSITORY / "python" / "mysglang", "mysglang")
KERNELS = ImportGraph(REPOSITORY / "sgl-kernel" / "python" / "mysgl_kernel", "mysgl_kernel")

# What everybody may stand on, in its own order.
FLOOR = ("errors", "environ", "utils", "platforms", "observability")
PLUG_INS = "speculative lora disaggregation constrained"

# unit, or unit.file for what only that file may: the units, or unit.files, it may import beside the floor and itself.
MAY_IMPORT = {
    # the ground
    "errors": "",
    "environ": "errors",
    "utils": "errors environ",
    "platforms": "errors environ utils",
    "observability": "errors environ utils",
    "configs": "",
    "args": "configs",
    "server_args": "args configs",
    "kernels": "",
    "distributed": "",
    "sampling": "kernels",
    "parser": "",
    "function_call": "parser",
    # what flows
    "messages": "sampling.sampling_params sampling.request_field",
    "forward": "sampling",
    "multimodal": "messages configs",
    "mem_cache": "forward kernels",
    # the CPU wing
    "scheduling": "mem_cache forward messages sampling distributed.collectives",
    # the GPU wing
    "layers": "mem_cache forward sampling kernels distributed",
    "models": "layers forward distributed configs",
    "model_loader": "models layers configs distributed",
    "model_executor": "model_loader models layers mem_cache forward sampling kernels distributed configs",
    # the plug-ins
    "speculative": "model_executor forward kernels sampling",
    "lora": "layers forward kernels model_loader scheduling.prefill_planner messages",
    "disaggregation": "scheduling.role scheduling.request mem_cache",
    "constrained": "scheduling.role scheduling.request scheduling.grammar forward.worker_batch messages.outputs "
    "sampling.grammar_spec",
    # the processes
    "managers": "scheduling mem_cache forward.worker forward.weights forward.host_pages "
    "multimodal "
    "distributed.ranks parser sampling messages server_args args configs",
    "managers.scheduler_builder": PLUG_INS + " distributed",
    "managers.worker_factory": "model_executor.executor model_executor.model_launch model_executor.runner_config "
    "speculative",
    "entrypoints": "managers function_call parser sampling messages server_args args configs",
    "entrypoints.launcher": "disaggregation.bootstrap_server",
    # the package's own top
    ".__init__": "entrypoints server_args .lang",
    ".launch_server": "entrypoints server_args",
    ".check_env": ".bench kernels",
    ".bench": "",
    ".bench.one_batch": "forward mem_cache",
    ".bench_serving": ".bench",
    ".bench_one_batch": ".bench entrypoints server_args configs managers.child managers.worker_factory",
    ".bench_offline_throughput": ".bench entrypoints server_args",
    ".eval": ".bench .lang entrypoints server_args args parser",
    ".bench_startup": ".bench",
    ".bench_compare": ".bench .bench_serving",
    ".cli": ".bench .eval .check_env entrypoints server_args args configs",
    ".cli.models": "models.registry",
    ".__main__": ".cli",
    ".profiler": ".bench .cli",
    ".lang": "",
    ".lang.reasoning": "parser",
    ".lang.backends": "entrypoints",
    ".assets": "",
}

# By whatever way round: the units in front never reach those behind.
NEVER_REACH = {
    "scheduling": "model_executor model_loader models layers managers entrypoints " + PLUG_INS,
    "layers models": "scheduling managers entrypoints model_executor",
    "model_executor": "scheduling managers entrypoints " + PLUG_INS,
    "messages": "scheduling managers entrypoints mem_cache layers models forward",
}

# The main process and the detokenizer start light: importing these imports neither torch nor what imports it. What a
# child process runs is imported inside the function that the child runs.
LIGHT = (
    "entrypoints managers.tokenizer_manager managers.detokenizer_manager sampling.sampling_params messages parser "
    "function_call args server_args scheduling .launch_server .bench_serving .bench_startup .bench_compare .cli"
)
HEAVY = {"torch", "triton", "flashinfer", "transformers", "opentelemetry", KERNELS.package}

# Modules that may name the package of CUDA sources. It names nothing of ours and could be another project's.
MAY_IMPORT_KERNELS = "kernels layers model_executor platforms"


def unit_of(module: str) -> str:
    """`mysglang.srt.layers.linear` -> `layers`; `mysglang.eval.tiny` -> `.eval`; a third party is its own unit."""
    package, *inner = module.split(".")
    if package != GRAPH.package:
        return module
    if inner[:1] == ["srt"]:
        return inner[1] if len(inner) > 1 else "errors"  # srt/__init__.py is empty and is at the bottom
    return "." + (inner[0] if inner else "__init__")


def file_of(module: str) -> str:
    """The same one step finer: `layers.linear`, `.eval.tiny`."""
    inner = module.split(".")[1:]
    return ".".join(inner[1:3]) if inner[:1] == ["srt"] else "." + ".".join(inner[:2])


def covered(module: str, names: Iterable[str]) -> bool:
    return not {unit_of(module), file_of(module)}.isdisjoint(names)


def upward_imports(graph: ImportGraph) -> list[str]:
    """Every import that no row allows, as a line that says so."""
    wrong = []
    for edge in graph.inner:
        unit = unit_of(edge.source)
        if unit == unit_of(edge.target):
            continue
        row, own_row = MAY_IMPORT.get(unit), MAY_IMPORT.get(file_of(edge.source), "")
        if row is None:
            wrong.append(f"{edge}: {unit} has no row in MAY_IMPORT")
        elif not covered(edge.target, [*row.split(), *own_row.split(), *(() if unit in FLOOR else FLOOR)]):
            wrong.append(f"{edge}: {unit} may not import {unit_of(edge.target)}")
    return wrong


def forbidden_reaches(graph: ImportGraph) -> list[str]:
    """Every unit that gets, over any number of imports, to one it must never reach; with the way it got there."""
    wrong = []
    for units, never in NEVER_REACH.items():
        first = graph.reached_from(module for module in graph.paths if unit_of(module) in units.split())
        wrong += [f"{chain(first, module)}" for module in first if unit_of(module) in never.split()]
    return wrong


def file_cycles(graph: ImportGraph) -> list[list[str]]:
    return cycles((edge.source, edge.target) for edge in graph.inner)


def unit_cycles(graph: ImportGraph) -> list[list[str]]:
    return cycles((unit_of(edge.source), unit_of(edge.target)) for edge in graph.inner)


def heavy_imports(graph: ImportGraph) -> list[str]:
    """Every heavy package that a light module imports when it is imported itself; with the way."""
    first = graph.reached_from(light_modules(graph), at_start_only=True)
    return [chain(first, module) for module in first if module.split(".")[0] in HEAVY]


def light_modules(graph: ImportGraph) -> list[str]:
    return [module for module in graph.paths if covered(module, LIGHT.split())]


def drawing(graph: ImportGraph) -> str:
    """The rows of MAY_IMPORT for what exists under `srt/`, as the table in docs/architecture.md."""
    units = {unit_of(module) for module in graph.paths}
    there = units | {file_of(module) for module in graph.paths}
    lines = ["| folder | may import |", "| --- | --- |"]
    for name, targets in MAY_IMPORT.items():
        if name in there and not name.startswith("."):
            present = [target for target in targets.split() if target in there]
            lines.append(f"| `{name}` | {', '.join(present) or 'nothing'} |")
    return "\n".join(lines)


def test_the_document_shows_the_same_drawing() -> None:
    table = drawing(GRAPH)
    document = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert table in document, f"the table in docs/architecture.md must be:\n{table}"


def test_imports_go_down() -> None:
    assert not upward_imports(GRAPH)


def test_wings_never_meet() -> None:
    assert not forbidden_reaches(GRAPH)


def test_the_kernel_package_stands_alone() -> None:
    assert not [str(edge) for edge in KERNELS.imports if edge.target.split(".")[0] == GRAPH.package]
    assert not cycles((edge.source, edge.target) for edge in KERNELS.inner)
    users = [edge for edge in GRAPH.imports if edge.target.split(".")[0] == KERNELS.package]
    assert not [str(edge) for edge in users if unit_of(edge.source) not in MAY_IMPORT_KERNELS.split()]


def test_no_cycle_among_files() -> None:
    assert not file_cycles(GRAPH)


def test_no_cycle_among_folders() -> None:
    assert not unit_cycles(GRAPH)


def test_table_has_no_cycle() -> None:
    rows = [(row.split(".")[0] or row, target) for row, targets in MAY_IMPORT.items() for target in targets.split()]
    assert not cycles((source, target.split(".")[0] or target) for source, target in rows)


def test_light_files_name_nothing_heavy() -> None:
    assert not heavy_imports(GRAPH)


def test_light_files_load_nothing_heavy() -> None:
    """The same asked of the interpreter, which also sees what third parties import."""
    modules = light_modules(GRAPH)
    program = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
print({HEAVY!r} & set(sys.modules))
"""
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY / 'python'}:{REPOSITORY / 'sgl-kernel' / 'python'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "set()"


class TestTheseTests:
    """A planted fault in a small package must be found, or the tests above say nothing."""

    FAULTS = {
        "an upward import": (upward_imports, {"srt/utils/text.py": "from mysglang.srt.managers import scheduler"}),
        "a relative one": (upward_imports, {"srt/utils/text.py": "from ..managers.scheduler import Scheduler"}),
        "one for a type": (
            upward_imports,
            {"srt/forward/x.py": "import typing\nif typing.TYPE_CHECKING:\n    import mysglang.srt.layers.linear"},
        ),
        "one in a function": (upward_imports, {"srt/models/x.py": "def f():\n    from mysglang.srt import managers"}),
        "a unit without a row": (upward_imports, {"srt/helpers/x.py": "import mysglang.srt.utils.text"}),
        "a file's privilege used by another": (
            upward_imports,
            {"srt/managers/scheduler.py": "from mysglang.srt.model_executor.executor import Executor"},
        ),
        "a way round": (
            forbidden_reaches,
            {
                "srt/scheduling/x.py": "import mysglang.srt.mem_cache.y",
                "srt/mem_cache/y.py": "import mysglang.srt.layers.linear",
            },
        ),
        "a cycle of files": (
            file_cycles,
            {"srt/utils/x.py": "import mysglang.srt.utils.y", "srt/utils/y.py": "from . import x"},
        ),
        "a cycle of folders": (
            unit_cycles,
            {
                "srt/mem_cache/x.py": "import mysglang.srt.forward.a",
                "srt/forward/b.py": "import mysglang.srt.mem_cache.x",
            },
        ),
        "torch behind two imports": (
            heavy_imports,
            {
                "srt/messages/x.py": "import mysglang.srt.utils.tensor",
                "srt/utils/tensor.py": "from torch.nn import functional",
            },
        ),
        "torch in a parent folder": (
            heavy_imports,
            {"srt/parser/x.py": "import mysglang.srt.utils.text", "srt/utils/__init__.py": "import torch"},
        ),
    }

    @pytest.mark.parametrize("fault", FAULTS)
    def test_finds(self, fault: str, tmp_path: Path) -> None:
        find, files = self.FAULTS[fault]
        assert find(self.package(tmp_path, files))

    def test_passes_a_sound_package(self, tmp_path: Path) -> None:
        files = {
            "srt/managers/worker_factory.py": "from mysglang.srt.model_executor.executor import Executor",
            "srt/scheduling/x.py": "from mysglang.srt.forward import a",
            "srt/messages/x.py": "def child():\n    import torch",
        }
        graph = self.package(tmp_path, files)
        finders = (upward_imports, forbidden_reaches, file_cycles, unit_cycles, heavy_imports)
        assert [find(graph) for find in finders] == [[]] * len(finders)

    @staticmethod
    def package(root: Path, files: dict[str, str]) -> ImportGraph:
        empty = (
            "srt/utils/text.py srt/forward/a.py srt/layers/linear.py srt/model_executor/executor.py "
            "srt/managers/__init__.py srt/managers/scheduler.py"
        )
        for name, text in (dict.fromkeys(empty.split(), "") | files).items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
        return ImportGraph(root, "mysglang")
