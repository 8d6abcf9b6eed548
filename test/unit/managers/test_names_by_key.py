"""Names of requests belong to an API key: another key can neither find them out nor end what has them."""

import asyncio
from typing import Any

import pytest

from fixtures.callers import asked_by
from fixtures.fake_engine import Row
from fixtures.manager_bench import Bench
from fixtures.patience import settled
from mysglang.srt.errors import InvalidRequest
from mysglang.srt.managers.caller import Caller
from mysglang.srt.managers.fronts import Board, Fronts, SharedNames, board_bytes, names_bytes
from mysglang.srt.messages.control import PeerAbortReq
from mysglang.srt.messages.outputs import Length
from mysglang.srt.messages.requests import TokenizedGenerateReqInput
from mysglang.srt.sampling.sampling_params import SamplingParams

A, B, ADMIN = Caller(api_key="a" * 32, remote=True), Caller(api_key="b" * 32, remote=True), Caller(admin=True)
LOCAL = Caller()


async def started(
    bench: Bench, caller: Caller, **fields: Any
) -> tuple[asyncio.Task[Any], list[TokenizedGenerateReqInput]]:
    with asked_by(caller):
        return await bench.started(**fields)


async def end(bench: Bench, *begun: tuple[asyncio.Task[Any], list[TokenizedGenerateReqInput]]) -> None:
    bench.engine.say(*(Row(request.rid, "", [1], Length(1)) for _, requests in begun for request in requests))
    await asyncio.gather(*(task for task, _ in begun))
    assert bench.quiet()


@pytest.mark.promise(44)
async def test_two_keys_may_use_the_same_name(bench: Bench) -> None:
    first = await started(bench, A, rid="r")
    second = await started(bench, B, rid="r")
    with asked_by(B), pytest.raises(InvalidRequest, match="'r'"):
        await bench.collect(rid="r")
    await end(bench, first, second)


@pytest.mark.promise(44)
async def test_an_abort_of_another_keys_name_looks_like_one_of_nobodys(bench: Bench) -> None:
    mine = await started(bench, A, rid="r")
    with asked_by(B):
        assert bench.manager.abort_request("r") == bench.manager.abort_request("nobody") == 0
    assert not bench.engine.aborted
    await end(bench, mine)


@pytest.mark.promise(44)
async def test_a_key_aborts_all_that_is_its_own(bench: Bench) -> None:
    mine = await started(bench, A, rid="r")
    others = await started(bench, B, rid="r", count=2, sampling_params=SamplingParams(n=2))
    with asked_by(B):
        assert bench.manager.abort_request(abort_all=True) == 2
    assert bench.engine.aborted == [request.rid for request in others[1]]
    await end(bench, mine, others)


@pytest.mark.parametrize("caller", [ADMIN, LOCAL])
async def test_the_admin_aborts_requests_of_any_key(bench: Bench, caller: Caller) -> None:
    begun = [await started(bench, key, rid="r") for key in (A, B)]
    begun.append(await started(bench, B, rid="s"))
    with asked_by(caller):
        assert bench.manager.abort_request("r") == 2
        assert bench.manager.abort_request("s") == 1
        assert bench.manager.abort_request(abort_all=True) == 3
    await end(bench, *begun)


@pytest.mark.promise(44)
async def test_other_fronts_hold_to_it(make: Any) -> None:
    names, board = bytearray(names_bytes(2)), bytearray(board_bytes(2))
    told: list[Any] = []

    class Peer:
        def send(self, message: Any) -> None:
            told.append(message)

    benches = [
        make(fronts=Fronts(index, 2, [Peer()], Board(board, index), SharedNames(names, index))) for index in (0, 1)
    ]
    mine = await started(benches[0], A, rid="r")
    with asked_by(A), pytest.raises(InvalidRequest, match="'r'"):
        await benches[1].collect(rid="r")
    others = await started(benches[1], B, rid="r")
    with asked_by(B):
        assert benches[1].manager.abort_request("r") == 1
    assert told == [PeerAbortReq(rid="r", scope=B.api_key)]
    benches[0].manager._handle(told[0])
    await settled()
    assert not benches[0].engine.aborted
    await end(benches[0], mine)
    await end(benches[1], others)
