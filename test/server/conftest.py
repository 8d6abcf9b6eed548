"""One server for all tests that only talk to it; who harms a server starts his own."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from fixtures.server_process import ServerProcess

# What tests draw is the same every time; with `--hypothesis-profile=fuzz` it is new, and much more (`make fuzz`).
settings.register_profile("always", derandomize=True, database=None, deadline=None, max_examples=8)
settings.register_profile("fuzz", database=None, deadline=None, max_examples=1000)
settings.load_profile("always")

# In float32 a request's numbers differ in company only by some 1e-6, too little to change what is drawn.
OPTIONS = ("--log-level", "warning", "--dtype", "float32", "--enable-cache-report")


@pytest.fixture(scope="session")
def tiny_server() -> Iterator[ServerProcess]:
    """The embedded model, ready."""
    with ServerProcess(*OPTIONS) as server:
        assert server.url
        yield server
