"""A whole server on CUDA, with captured steps and overlap, under what `test/server` and `test/chaos` do to it on a CPU:
cached beginnings, retraction all the time, clients that take their requests back.

In float32 the usual kernels choose the tokens that they choose alone; with --enable-deterministic-inference, in
bfloat16, every bit of a log-probability is the same.
"""

import asyncio

import httpx
import pytest

from fixtures.gated_server import GatedServer, answers_of
from fixtures.greedy_answers import CHUNK, PAGE, Answer, abort_storm, answer_all, assert_alike, make_prompts
from fixtures.oracle import assert_quiet
from fixtures.shaky_memory import Shakes
from fixtures.toy_server import PROGRAM, Faults

pytestmark = pytest.mark.timeout(600)

ON_DEVICE = ("--log-level", "warning", "--device", "cuda", "--page-size", f"{PAGE}", "--max-total-tokens", "20000")
CHUNKS = ("--chunked-prefill-size", f"{CHUNK}")
NUMERICS: dict[str, tuple[str, ...]] = {
    "usual": (*ON_DEVICE, "--dtype", "float32"),
    "deterministic": (*ON_DEVICE, "--dtype", "bfloat16", "--enable-deterministic-inference"),
}
# If a flag comes twice, the last one counts.
TIERS = (
    "--max-total-tokens",
    "640",
    "--max-running-requests",
    "4",
    "--enable-hierarchical-cache",
    "--hicache-ratio",
    "6",
)
PROMPTS = make_prompts(25, 1000)
STORM = 1000


@pytest.fixture(scope="module", params=NUMERICS)
def numerics(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def alone(numerics: str) -> list[Answer]:
    """One after another, nothing cached, nothing captured."""
    options = (*NUMERICS[numerics], "--disable-radix-cache", "--disable-cuda-graph", "--disable-overlap-schedule")
    answers = answers_of(PROMPTS, *options, at_once=1)
    assert not any(answer.cached for answer in answers)
    return answers


@pytest.mark.promise(25)
@pytest.mark.promise(26)
@pytest.mark.parametrize("chunks", [(), CHUNKS], ids=["whole", "chunks"])
def test_with_the_cache_as_alone(numerics: str, alone: list[Answer], chunks: tuple[str, ...]) -> None:
    answers = answers_of(PROMPTS, *NUMERICS[numerics], *chunks)
    assert_alike(answers, alone, exact=numerics == "deterministic")
    assert sum(answer.cached > 0 for answer in answers) > len(PROMPTS) * 0.9


@pytest.mark.promise(21)
@pytest.mark.promise(22)
@pytest.mark.promise(24)
def test_however_often_requests_are_retracted(numerics: str, alone: list[Answer]) -> None:
    """Freed pages hold NaN."""
    faults = Faults(toy=False, shakes=Shakes(retract_every=3, fail_alloc_every=7))
    with GatedServer(*NUMERICS[numerics], *CHUNKS, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS[:500]))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert_alike(answers, alone, exact=numerics == "deterministic")
    assert state["num_retractions"] > 50


@pytest.mark.promise(24)
@pytest.mark.promise(25)
@pytest.mark.parametrize("io", ["kernel", "direct"])
def test_with_the_host_below_the_cache(numerics: str, alone: list[Answer], io: str) -> None:
    """Memory for a small part of what is asked again and again; what is freed holds NaN."""
    faults = Faults(toy=False, shakes=Shakes(retract_every=40, fail_host_every=9))
    options = (*NUMERICS[numerics], *CHUNKS, *TIERS, "--hicache-io-backend", io)
    with GatedServer(*options, program=PROGRAM, **faults.env) as server:
        answers = asyncio.run(answer_all(server.url, PROMPTS[:300]))
        state = httpx.get(f"{server.url}/server_info").json()["internal_states"][0]
        assert_quiet(server.url)
    assert_alike(answers, alone, exact=numerics == "deterministic")
    assert state["host_written_tokens"] > 500
    assert state["host_loaded_tokens"] > 500


@pytest.mark.promise(14)
def test_however_many_are_taken_back(numerics: str, alone: list[Answer]) -> None:
    asked = list(zip(PROMPTS[:40], alone[:40], strict=True))
    with GatedServer(*NUMERICS[numerics], *CHUNKS) as server:
        answers = asyncio.run(abort_storm(server.url, asked, requests=STORM, seed=14))
        assert_quiet(server.url)
    expected = [asked[number % len(asked)][1] for number in range(len(answers))]
    assert_alike(answers, expected, exact=numerics == "deterministic")
