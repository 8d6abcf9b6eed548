"""HTTPS: the server's own certificate, and those of clients where it asks for them."""

import socket
import ssl

import httpx
import pytest

from fixtures.certificate import make_certificate
from mysglang.srt.args.serving import ServingArgs
from mysglang.srt.entrypoints.http_front import HttpFront


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Paths of a certificate for 127.0.0.1, signed by itself, and of its key."""
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.mark.parametrize("ask_clients", [False, True])
async def test_https(certificate: tuple[str, str], ask_clients: bool) -> None:
    cert, key = certificate
    listener = socket.create_server(("127.0.0.1", 0))
    args = ServingArgs(ssl_certfile=cert, ssl_keyfile=key, ssl_ca_certs=cert if ask_clients else None)
    front = HttpFront(listener, args, None)
    trusting = ssl.create_default_context(cafile=cert)
    known = ssl.create_default_context(cafile=cert)
    known.load_cert_chain(cert, key)
    try:
        async with httpx.AsyncClient(verify=known, trust_env=False) as client:
            # The gate is closed: what matters is that it could say so.
            assert (await client.get(f"https://127.0.0.1:{front.port}/health")).status_code == 503
        async with httpx.AsyncClient(verify=trusting, trust_env=False) as client:
            if ask_clients:
                with pytest.raises(httpx.HTTPError):
                    await client.get(f"https://127.0.0.1:{front.port}/health")
            else:
                assert (await client.get(f"https://127.0.0.1:{front.port}/health")).status_code == 503
        async with httpx.AsyncClient(trust_env=False) as client:
            with pytest.raises(httpx.HTTPError):
                await client.get(f"http://127.0.0.1:{front.port}/health")
    finally:
        await front.stop()
