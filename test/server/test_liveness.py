"""The answers of health routes, and their cost, while the scheduler is frozen, very busy, or bombarded with probes."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from fixtures.oracle import assert_quiet, debug_state
from fixtures.patience import PATIENCE_S, answered
from fixtures.server_process import ServerProcess
from fixtures.toy_server import PROGRAM, Faults, reference
from mysglang.srt.utils.exit_codes import ExitCode

KEY = "the-admin-key"
SCHEDULER = "mysglang::scheduler_TP0"


@contextmanager
def toy(*options: str, faults: Faults) -> Iterator[ServerProcess]:
    with ServerProcess(
        "--log-level", "warning", "--admin-api-key", KEY, *options, program=PROGRAM, **faults.env
    ) as server:
        assert server.url
        yield server


@pytest.mark.promise(7)
async def test_a_frozen_scheduler_is_told_of_and_given_up() -> None:
    """Healthy until the watchdog's time is over, and never again."""
    limit = 3.0
    with toy("--watchdog-timeout", f"{limit:g}", faults=Faults()) as server:
        url = server.url
        seen: list[int] = []
        server.child(SCHEDULER).send_signal(signal.SIGSTOP)
        async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:

            async def look() -> None:
                try:
                    status = (await client.get("/health")).status_code
                except httpx.TransportError:
                    status = 0
                seen.append(status)

            await answered(look, lambda _: server.popen.poll() is not None)
        assert server.wait() == ExitCode.WATCHDOG
        assert "the stacks of all processes" in server.stderr
        assert f"{SCHEDULER} was stopped by a signal: the scheduler gave no sign of life" in server.stderr
    ill = next(index for index, status in enumerate(seen) if status != 200)
    assert seen[ill] == 503
    assert 200 not in seen[ill:]


@pytest.mark.slow
@pytest.mark.promise(8)
async def test_a_very_long_prefill_is_no_death() -> None:
    """Six chunks of a second each, without output in that time; the watchdog would wait for three."""
    faults = Faults(prompt_ms=1000)
    prompt = [100 + place for place in range(6 * 16)]
    # The warm-up is a prompt too.
    with toy("--chunked-prefill-size", "16", "--watchdog-timeout", "3", faults=faults) as server:
        async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE_S) as client:
            body = {"input_ids": prompt, "sampling_params": {"max_new_tokens": 3, "ignore_eos": True}}
            asking = asyncio.create_task(client.post("/generate", json=body))
            probes = 0

            async def look() -> None:
                nonlocal probes
                assert (await client.get("/health")).status_code == 200
                probes += 1

            await answered(look, lambda _: asking.done())
            answer = (await asking).json()
    assert answer["output_ids"] == reference(prompt, 3, ignore_eos=True)
    assert answer["meta_info"]["e2e_latency"] > 5
    assert probes > 2 * 6, "each of six chunks would have been waited for by one probe, if probes waited for steps"


@pytest.mark.promise(9)
async def test_ten_thousand_probes_give_a_frozen_scheduler_nothing_to_do() -> None:
    with toy("--watchdog-timeout", "120", faults=Faults()) as server:
        assert_quiet(server.url, admin_key=KEY)
        before = debug_state(server.url, KEY)
        scheduler = server.child(SCHEDULER)
        scheduler.suspend()
        try:
            answers = await asyncio.gather(*(probe(server.url, 1250) for _ in range(8)))
        finally:
            scheduler.resume()
        assert sum(answers) == 10_000
        after = debug_state(server.url, KEY)
        assert after["forward_steps"] == before["forward_steps"]
        assert after["requests"] == before["requests"]
        assert_quiet(server.url, admin_key=KEY)


async def probe(url: str, count: int) -> int:
    """Ask /health so often over one connection; how many answers were 200."""
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    well = 0
    for _ in range(count):
        writer.write(f"GET /health HTTP/1.1\r\nHost: {address.host}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"content-length: 0" in head
        well += head.startswith(b"HTTP/1.1 200")
    writer.close()
    return well
