"""Settings of every test: one torch thread, the same drawn examples in every run, and our own warnings are errors.

Timeouts, markers and asyncio mode are in pyproject.toml; shared fakes and builders in `fixtures/`.
"""

import gc
import logging
import os
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import settings

# The only place that sets hypothesis' profiles: a profile is global, and a second conftest that loads one would change
# the tests of all other folders too. No example has a deadline: on a busy machine any of them may take 200 ms.
# What tests draw is the same every time; with `--hypothesis-profile=fuzz` it is new, and much more (`make fuzz`).
settings.register_profile("always", derandomize=True, database=None, deadline=None)
settings.register_profile("fuzz", database=None, deadline=None, max_examples=12_500)
settings.load_profile("always")

# Before anything imports torch or tokenizers: the suite runs a worker per core, and child processes inherit this.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# Threads of a test that asks for two would spin away the core that the one they wait for needs: twenty times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
# What gRPC does in a forked process breaks those that a test starts while a collector of its own listens.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Each client reads the certificates that it would verify servers by, 20 ms for those of the whole web. Tests ask only
# servers of their own, so one certificate is enough, whose key no longer exists.
os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).parent / "fixtures" / "data" / "one_certificate.pem"))

# Every worker and each of some hundred servers load the same modules: compiled once, not again by each of them.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Until all tests are collected: what they import stays, and the garbage collector would go through it again and again.
gc.disable()

TESTS = Path(__file__).parent
LONG = (TESTS / "server", TESTS / "chaos", TESTS.parent / "sgl-kernel")
"""Folders of files that take minutes, not seconds."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first: a worker that takes one last would leave the other workers with nothing to do."""
    items.sort(key=lambda item: not any(item.path.is_relative_to(folder) for folder in LONG))


def pytest_collection_finish() -> None:
    """From here on the garbage collector looks at what tests make, and no longer at the modules."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs inside pytest's own record of warnings, which forgets this filter after each test."""
    warnings.filterwarnings("error", module=r"mysglang(\.|$)")
    # The module of such a warning is the one in which the collector happens to run, in whichever test that is.
    warnings.filterwarnings("ignore", category=ResourceWarning)
    # What a test draws without a seed of its own is the same in any order, and on any worker. Not `torch.manual_seed`,
    # which would note each call for a CUDA device that may come.
    if (torch := sys.modules.get("torch")) is not None:
        torch.default_generator.manual_seed(0)
    # An engine in the same process sets its own level for all, which would hide from the next tests what they wait for.
    logging.getLogger().setLevel(logging.WARNING)
