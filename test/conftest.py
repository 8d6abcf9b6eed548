"""What holds for every test: one torch thread, and warnings from our own code are errors.

Timeouts, markers and asyncio mode stand in pyproject.toml; shared fakes and builders in `fixtures/`.
"""

import logging
import os
import warnings

import pytest

# Before anything imports torch or tokenizers: the suite runs a worker per core, and child processes inherit this.
for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")
# Threads of a test that asks for two would spin away the core that the one they wait for needs: twenty times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs inside pytest's own record of warnings, which forgets this filter after each test."""
    warnings.filterwarnings("error", module=r"mysglang(\.|$)")
    # An engine in the same process sets its own level for all, which would hide from the next tests what they wait for.
    logging.getLogger().setLevel(logging.WARNING)
