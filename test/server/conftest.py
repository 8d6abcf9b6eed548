"""One server for all tests that only talk to it. A test that harms a server starts its own."""

from collections.abc import Iterator

import pytest

from fixtures.patience import PATIENCE_S
from fixtures.server_process import ServerProcess
from fixtures.warm_start import WarmServer

# In float32 a request's numbers differ in company only by some 1e-6, too little to change what is drawn.
OPTIONS = ("--log-level", "warning", "--dtype", "float32", "--enable-cache-report")
# Other tests may take the processor from a grammar that is compiled.
OPTIONS += ("--grammar-compile-timeout", f"{PATIENCE_S}")


@pytest.fixture(scope="session")
def tiny_server() -> Iterator[ServerProcess]:
    """The embedded model, ready."""
    with WarmServer(*OPTIONS) as server:
        assert server.url
        yield server
