"""From prompts to what the scheduler accepts: lengths, ids, seeds, and tokenizing off the event loop."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fixtures import small_tokenizer
from fixtures.grammar_walk import TOKENIZER as TINY_TOKENIZER
from fixtures.patience import settled
from fixtures.text_pools import long_texts_held, text_pool
from mysglang.srt.errors import ContextTooLong, InvalidRequest
from mysglang.srt.managers.caller import CALLER, Caller
from mysglang.srt.managers.input_tokenizer import FrontLimits, InputTokenizer
from mysglang.srt.managers.text_pool import LONG_TEXT, TextPool
from mysglang.srt.managers.tokenize_job import PIECE_IDS, PIECE_TEXT
from mysglang.srt.managers.unfold import unfold
from mysglang.srt.messages.generate import GenerateReqInput
from mysglang.srt.messages.launch import SchedulerFacts
from mysglang.srt.messages.packing import unpack_ids
from mysglang.srt.messages.requests import LogprobRequest, TokenizedGenerateReqInput
from mysglang.srt.sampling.drawing import TOP_K_ALL
from mysglang.srt.sampling.sampling_params import SamplingParams
from mysglang.srt.utils.tokenizer import Tokenizer

LIMITS = FrontLimits(context_len=40, max_req_len=30, vocab_size=600, max_running_requests=8)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.load(small_tokenizer.write(tmp_path_factory.mktemp("tokenizer"), "metaspace"))


@pytest.fixture
async def pool() -> AsyncIterator[TextPool]:
    with text_pool() as found:
        yield found


class Front:
    """An InputTokenizer with the unfolding before it."""

    def __init__(
        self, tokenizer: Tokenizer | None, pool: TextPool, limits: FrontLimits = LIMITS, *, strict: bool = False
    ) -> None:
        self.limits = limits
        self.inner = InputTokenizer(tokenizer, limits, pool, seed=1, strict_max_tokens=strict)

    async def __call__(self, **fields: Any) -> list[TokenizedGenerateReqInput]:
        obj = GenerateReqInput(**{"clip_max_new_tokens": True, **fields})
        unfolded = unfold(obj, self.limits.vocab_size, 10_000)
        return await self.inner.tokenize(obj, unfolded, unfolded.rids)

    async def refusal(self, **fields: Any) -> InvalidRequest:
        with pytest.raises(InvalidRequest) as caught:
            await self(**fields)
        return caught.value


@pytest.fixture
async def front(tokenizer: Tokenizer, pool: TextPool) -> Front:
    return Front(tokenizer, pool)


def test_limits_from_facts() -> None:
    facts = SchedulerFacts(
        max_total_num_tokens=100,
        max_req_input_len=89,
        context_len=128,
        max_running_requests=4,
        page_size=1,
        vocab_size=300,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
    )
    expected = FrontLimits(context_len=128, max_req_len=90, vocab_size=300, max_running_requests=4)
    assert FrontLimits.from_facts(facts) == expected


async def test_a_request_as_the_scheduler_wants_it(front: Front, tokenizer: Tokenizer) -> None:
    [request] = await front(
        text="The fox",
        rid="r",
        stream=True,
        sampling_params=SamplingParams(max_new_tokens=5, top_k=-1, sampling_seed=7),
        return_logprob=True,
        logprob_start_len=1,
        top_logprobs_num=2,
        token_ids_logprob=[3],
        extra_key="k",
    )
    assert unpack_ids(request.input_ids).tolist() == tokenizer.encode("The fox")
    assert request.sampling_params == SamplingParams(max_new_tokens=5, top_k=TOP_K_ALL, sampling_seed=7)
    assert request.logprobs == LogprobRequest(prompt_start=1, top_num=2, token_ids=(3).to_bytes(4, "little"))
    assert (request.rid, request.stream, request.extra_key) == ("r", True, "k")


async def test_a_rendered_chat_has_its_frame_already(front: Front, tokenizer: Tokenizer) -> None:
    [request] = await front(text="<s>The fox", add_special_tokens=False)
    assert unpack_ids(request.input_ids).tolist().count(tokenizer.bos_token_id or 0) == 1
    [request] = await front(text="<s>The fox")
    assert unpack_ids(request.input_ids).tolist().count(tokenizer.bos_token_id or 0) == 2


@pytest.mark.parametrize("kind", ["metaspace", "byte_level"])
async def test_bad_words_are_forbidden_at_the_beginning_and_behind_a_space(
    tmp_path: Path, pool: TextPool, kind: str
) -> None:
    """The words as the tokenizer writes them, each sequence once; the words themselves need not travel."""
    tokenizer = Tokenizer.load(small_tokenizer.write(tmp_path, kind))
    params = SamplingParams(bad_words=["fox", " fox", "lazy dog."])
    [request] = await Front(tokenizer, pool)(text="a", sampling_params=params)
    words = ("fox", " fox", "lazy dog.", " lazy dog.")
    written = [tuple(tokenizer.encode(word, add_special_tokens=False)) for word in words]
    assert [tuple(unpack_ids(word)) for word in request.bad_words] == list(dict.fromkeys(written))
    assert request.sampling_params.bad_words == []


async def test_many_bad_words_are_work_for_the_pool_and_done_once(
    tokenizer: Tokenizer, pool: TextPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand words beside a short prompt, or beside a hundred, must not hold up the event loop."""
    here, encoded = threading.get_ident(), []

    def encode(self: Tokenizer, texts: Sequence[str], **options: Any) -> list[list[int]]:
        encoded.append((len(texts), threading.get_ident() == here))
        return encode_batch(self, texts, **options)

    encode_batch = Tokenizer.encode_batch
    monkeypatch.setattr(Tokenizer, "encode_batch", encode)
    words = [f"word {number}" for number in range(1000)]
    requests = await Front(tokenizer, pool)(text=["a"] * 100, sampling_params=SamplingParams(bad_words=words))
    assert sorted(encoded) == [(100, False), (2000, False)]
    assert len({len(request.bad_words) for request in requests}) == 1 and requests[0].bad_words


async def test_bad_words_of_tokens_that_the_model_lacks_need_not_be_forbidden(
    tokenizer: Tokenizer, pool: TextPool
) -> None:
    small = Front(tokenizer, pool, replace(LIMITS, vocab_size=300))
    [request] = await small(input_ids=[5], sampling_params=SamplingParams(bad_words=["quick"]))
    assert all(max(unpack_ids(word)) < 300 for word in request.bad_words)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("bad_words", words) for words in ([""], [" "], ["a" * 257], ["a"] * 1025, ["a" * 256] * 129)),
        *(("allowed_token_ids", ids) for ids in ([], [600], [-1])),
    ],
)
async def test_rules_that_are_none(front: Front, field: str, value: Any) -> None:
    error = await front.refusal(text="a", sampling_params=SamplingParams(**{field: value}))
    assert error.param == field


async def test_bad_words_need_a_tokenizer(pool: TextPool) -> None:
    error = await Front(None, pool).refusal(input_ids=[5], sampling_params=SamplingParams(bad_words=["a"]))
    assert error.param == "bad_words"


@pytest.mark.parametrize(("skip", "expected"), [(True, [9, 1]), (False, [9])])
async def test_a_stop_string_that_is_a_special_token(front: Front, skip: bool, expected: list[int]) -> None:
    """If special tokens are not part of the text, a stop string could not be found there."""
    stops = ["</s>", "the", "no token"]
    params = SamplingParams(stop=stops, stop_token_ids=[9], skip_special_tokens=skip)
    [request] = await front(text="a", sampling_params=params)
    assert request.sampling_params.stop == stops
    assert request.sampling_params.stop_token_ids == expected


class TestSeeds:
    async def test_each_prompt_draws_its_own(self, front: Front) -> None:
        requests = await front(text=["a", "b"]) + await front(text="a")
        assert len({request.sampling_params.sampling_seed for request in requests}) == 3

    async def test_drawing_repeats_with_the_servers_seed(self, tokenizer: Tokenizer, pool: TextPool) -> None:
        first, second = Front(tokenizer, pool), Front(tokenizer, pool)
        assert await first(text=["a", "b"], rid="r") == await second(text=["a", "b"], rid="r")

    @pytest.mark.parametrize(("seed", "expected"), [(7, [7, 8, 9]), (2**63 - 2, [2**63 - 2, 2**63 - 1, -(2**63)])])
    async def test_copies_count_up(self, front: Front, seed: int, expected: list[int]) -> None:
        requests = await front(text="a", sampling_params=SamplingParams(n=3, sampling_seed=seed))
        assert [request.sampling_params.sampling_seed for request in requests] == expected
        assert {request.sampling_params.n for request in requests} == {1}


class TestLengths:
    @pytest.mark.parametrize(
        ("prompt", "max_new", "clip", "expected"),
        [
            (10, 20, False, 20),
            (10, 21, False, 20),
            (10, (1 << 63) - 1, False, 20),
            (10, None, False, 20),
            (29, None, False, 1),
            (10, 128, True, 20),
            (10, 5, True, 5),
            (10, 0, False, 0),
        ],
    )
    async def test_what_fits(self, front: Front, prompt: int, max_new: int | None, clip: bool, expected: int) -> None:
        params = SamplingParams(max_new_tokens=max_new)
        [request] = await front(input_ids=[5] * prompt, sampling_params=params, clip_max_new_tokens=clip)
        assert request.sampling_params.max_new_tokens == expected

    @pytest.mark.parametrize(
        ("prompt", "max_new", "param", "words"),
        [
            (41, 1, "input_ids", "The input (41 tokens) is longer than the model's context length (40 tokens)."),
            (40, 1, "input_ids", "The input (40 tokens) leaves no room for an answer in the model's context length"),
            (31, None, "input_ids", "The input (31 tokens) is longer than the KV cache can hold (30 tokens)."),
            (10, 31, "max_new_tokens", "together exceed the model's context length (40 tokens)."),
            (10, 21, "max_new_tokens", "together exceed what the KV cache can hold (30 tokens)."),
        ],
    )
    async def test_what_a_strict_server_refuses(
        self, tokenizer: Tokenizer, pool: TextPool, prompt: int, max_new: int | None, param: str, words: str
    ) -> None:
        params = SamplingParams(max_new_tokens=max_new)
        front = Front(tokenizer, pool, strict=True)
        error = await front.refusal(input_ids=[5] * prompt, sampling_params=params, clip_max_new_tokens=False)
        assert isinstance(error, ContextTooLong)
        assert (error.param, words in error.message) == (param, True)

    async def test_min_new_tokens_that_clipping_leaves_no_room_for(self, front: Front) -> None:
        params = SamplingParams(min_new_tokens=25)
        error = await front.refusal(input_ids=[5] * 10, sampling_params=params, clip_max_new_tokens=True)
        assert error.param == "min_new_tokens"

    async def test_a_text_that_cannot_fit_is_not_even_tokenized(self, front: Front) -> None:
        start = time.process_time()
        error = await front.refusal(text="fox " * 5_000_000)
        assert "at least" in error.message
        assert "(40 tokens)" in error.message
        assert time.process_time() - start < 1

    @pytest.mark.parametrize(("start", "expected"), [(0, 0), (2, 2), (3, -1), (-1, -1)])
    async def test_logprob_start(self, front: Front, start: int, expected: int) -> None:
        [request] = await front(input_ids=[5, 6, 7], return_logprob=True, logprob_start_len=start)
        assert request.logprobs is not None
        assert request.logprobs.prompt_start == expected

    async def test_logprob_start_behind_the_prompt(self, front: Front) -> None:
        error = await front.refusal(input_ids=[5, 6, 7], return_logprob=True, logprob_start_len=4)
        assert error.param == "logprob_start_len"


class TestContents:
    @pytest.mark.parametrize("ids", [[-1], [600], [5, 10**30], [5, -(2**63)]])
    async def test_ids_outside_the_vocabulary(self, front: Front, ids: list[int]) -> None:
        error = await front.refusal(input_ids=ids)
        assert error.param == "input_ids"
        assert "0 to 599" in error.message

    @pytest.mark.parametrize("ids", [[True], [5, False, 6], [1.0], ["1"], [None], [5, 10**30, None]])
    async def test_ids_that_are_none(self, front: Front, ids: list[Any]) -> None:
        assert (await front.refusal(input_ids=ids)).message == "input_ids must be integers."

    async def test_empty_prompts(self, front: Front, pool: TextPool, tmp_path: Path) -> None:
        assert "empty" in (await front.refusal(input_ids=[[5], []])).message
        # This one has BOS all the same; a tokenizer that adds none has nothing to start from.
        assert len(unpack_ids((await front(text=""))[0].input_ids)) == 1
        bare = Front(Tokenizer.load(small_tokenizer.write(tmp_path, "byte_level")), pool)
        assert (await bare.refusal(text="")).param == "text"

    async def test_a_tokenizer_larger_than_the_model(self, tokenizer: Tokenizer, pool: TextPool) -> None:
        small = FrontLimits(context_len=40, max_req_len=30, vocab_size=300, max_running_requests=8)
        error = await Front(tokenizer, pool, small).refusal(text="The fox")
        assert "out-of-vocabulary (0 to 299)" in error.message

    async def test_half_a_surrogate_pair(self, front: Front) -> None:
        assert "surrogate" in (await front.refusal(text="ab\ud800")).message

    async def test_one_bad_prompt_of_a_batch(self, front: Front) -> None:
        assert "(50 tokens)" in (await front.refusal(input_ids=[[5], [6] * 50])).message

    async def test_without_a_tokenizer(self, pool: TextPool) -> None:
        bare = Front(None, pool)
        assert (await bare.refusal(text="a")).param == "text"
        assert (await bare.refusal(input_ids=[1], sampling_params=SamplingParams(stop=["x"]))).param == "stop"
        assert len(await bare(input_ids=[1])) == 1
        with pytest.raises(InvalidRequest, match="--skip-tokenizer-init"):
            await bare.inner.encode("a")
        with pytest.raises(InvalidRequest, match="--skip-tokenizer-init"):
            await bare.inner.decode([1])


async def test_encode_and_decode(front: Front) -> None:
    ids = await front.inner.encode("The fox")
    assert await front.inner.decode(ids) == "The fox"
    assert await front.inner.decode(ids, skip_special_tokens=False) == "<s> The fox"
    assert await front.inner.encode("The fox", add_special_tokens=False) == ids[1:]
    with pytest.raises(InvalidRequest, match="out-of-vocabulary"):
        await front.inner.decode([10**9])


class TestOffTheLoop:
    LARGE = FrontLimits(context_len=10**8, max_req_len=10**8, vocab_size=600, max_running_requests=8)

    async def test_long_prompts_do_not_delay_others(self, tokenizer: Tokenizer, pool: TextPool) -> None:
        front = Front(tokenizer, pool, self.LARGE)
        with long_texts_held():
            long = [asyncio.create_task(front(text="The fox. " * LONG_TEXT)) for _ in range(4)]
            await asyncio.sleep(0)
            [short] = await front(text="The fox")
            assert len(unpack_ids(short.input_ids)) > 0
            assert not any(task.done() for task in long)
            for task in long:
                task.cancel()
        await asyncio.gather(*long, return_exceptions=True)

    async def test_the_loop_turns_meanwhile(self, tokenizer: Tokenizer, pool: TextPool) -> None:
        with long_texts_held():
            task = asyncio.create_task(Front(tokenizer, pool, self.LARGE)(text="The fox. " * LONG_TEXT))
            await settled()
            assert not task.done()
        assert len(await task) == 1


async def test_a_grammar_needs_a_tokenizer(pool: TextPool) -> None:
    refused = await Front(None, pool).refusal(input_ids=[1, 2], sampling_params=SamplingParams(regex="a"))
    assert refused.param == "regex" and "--skip-tokenizer-init" in str(refused)


class TestThinking:
    """The scheduler's information about thinking, which matters to grammars only."""

    START, END = "<think>", "</think>"

    @pytest.fixture
    async def thinker(self, pool: TextPool) -> Front:
        tiny = FrontLimits(context_len=40, max_req_len=30, vocab_size=4096, max_running_requests=8)
        return Front(TINY_TOKENIZER, pool, tiny)

    async def told(self, thinker: Front, grammar: str | None = "a", **fields: Any) -> tuple[list[int], int | None]:
        (request,) = await thinker(text="Hi", sampling_params=SamplingParams(regex=grammar), **fields)
        return unpack_ids(request.grammar_after).tolist(), request.thought_start

    async def test_an_answer_that_begins_in_a_thought(self, thinker: Front) -> None:
        assert await self.told(thinker, think_end=self.END) == ([TINY_TOKENIZER.id_of(self.END)], None)

    async def test_an_answer_that_may_begin_one(self, thinker: Front) -> None:
        start, end = TINY_TOKENIZER.id_of(self.START), TINY_TOKENIZER.id_of(self.END)
        assert await self.told(thinker, think_end=self.END, think_start=self.START) == ([end], start)

    async def test_a_beginning_of_several_tokens_is_none(self, thinker: Front) -> None:
        assert await self.told(thinker, think_end=self.END, think_start="Let me think") == ([], None)

    async def test_without_a_grammar_nothing_is_told(self, thinker: Front) -> None:
        assert await self.told(thinker, None, think_end=self.END) == ([], None)


async def test_priorities_where_they_count(tokenizer: Tokenizer, pool: TextPool) -> None:
    refused = await Front(tokenizer, pool).refusal(input_ids=[5], priority=3)
    assert (refused.param, "--enable-priority-scheduling" in refused.message) == ("priority", True)
    urgent = Front(tokenizer, pool, replace(LIMITS, priorities=True))
    [request] = await urgent(input_ids=[5], priority=-3)
    assert request.priority == -3
    assert (await urgent.refusal(input_ids=[5], priority=1 << 40)).param == "priority"


async def test_the_caller_goes_with_the_request(tokenizer: Tokenizer, pool: TextPool) -> None:
    front = Front(tokenizer, pool)
    token = CALLER.set(Caller(api_key="digest", routing_key="header"))
    try:
        [request] = await front(input_ids=[5])
        assert (request.api_key, request.routing_key) == ("digest", "header")
        [request] = await front(input_ids=[5], routing_key="body")
        assert request.routing_key == "body"
        assert (await front.refusal(input_ids=[5], routing_key="k" * 2000)).param == "routing_key"
    finally:
        CALLER.reset(token)
    [request] = await front(input_ids=[5])
    assert (request.api_key, request.routing_key) == ("", "")


@pytest.mark.promise(40)
async def test_each_key_has_a_cache_of_its_own_where_they_are_kept_apart(tokenizer: Tokenizer, pool: TextPool) -> None:
    async def namespaces(front: InputTokenizer) -> list[str]:
        found = []
        for key in ("a" * 32, "b" * 32):
            token = CALLER.set(Caller(api_key=key))
            for fields in ({}, {"extra_key": "x"}, {"cache_salt": "x"}, {"extra_key": "b" * 32 + "/x"}):
                obj = GenerateReqInput(input_ids=[5], clip_max_new_tokens=True, **fields)
                unfolded = unfold(obj, LIMITS.vocab_size, 100)
                found += [request.extra_key for request in await front.tokenize(obj, unfolded, unfolded.rids)]
            CALLER.reset(token)
        return found

    shared = await namespaces(InputTokenizer(tokenizer, LIMITS, pool))
    assert shared[:4] == shared[4:]
    assert len(set(await namespaces(InputTokenizer(tokenizer, LIMITS, pool, keeps_keys_apart=True)))) == 8


class TestPieces:
    """A large batch is handed over while the rest of it is still to be looked at."""

    async def pieces(self, front: Front, **fields: Any) -> list[list[TokenizedGenerateReqInput]]:
        obj = GenerateReqInput(**{"clip_max_new_tokens": True, **fields})
        unfolded = unfold(obj, front.limits.vocab_size, 10_000)
        job = front.inner.job(obj, unfolded, unfolded.rids)
        return [await front.inner.requests(job, piece) for piece in job.pieces]

    @pytest.mark.parametrize("n", [1, 3])
    @pytest.mark.parametrize("text", [False, True])
    async def test_together_they_are_the_whole(self, tokenizer: Tokenizer, pool: TextPool, text: bool, n: int) -> None:
        wide = replace(LIMITS, context_len=30_000, max_req_len=30_000)
        length = (PIECE_TEXT if text else PIECE_IDS) // 3 + 1
        prompts: Any = ["The fox. " * (length // 9 + i) for i in range(5)] if text else [[i] * length for i in range(5)]
        fields = {"text" if text else "input_ids": prompts, "rid": "r", "sampling_params": SamplingParams(n=n)}
        pieces = await self.pieces(Front(tokenizer, pool, wide), **fields)
        assert [len(piece) for piece in pieces] == [2 * n, 2 * n, n]
        whole = [request for piece in pieces for request in piece]
        assert [request.to_come for request in whole] == list(range(5 * n))[::-1]
        assert whole == await Front(tokenizer, pool, wide)(**fields)
        for i, prompt in enumerate(prompts):
            ids = tokenizer.encode(prompt) if text else prompt
            assert unpack_ids(whole[i * n].input_ids).tolist() == ids

    async def test_what_is_small_is_one_piece(self, front: Front) -> None:
        assert [len(piece) for piece in await self.pieces(front, input_ids=[[5] * 20] * 200)] == [200]
        assert [len(piece) for piece in await self.pieces(front, text=["The fox"] * 200)] == [200]

    async def test_what_is_wrong_with_a_piece_is_found_in_its_turn(self, tokenizer: Tokenizer, pool: TextPool) -> None:
        front = Front(tokenizer, pool, replace(LIMITS, context_len=30_000, max_req_len=30_000))
        obj = GenerateReqInput(input_ids=[[5] * PIECE_IDS, [5, 600]], clip_max_new_tokens=True)
        unfolded = unfold(obj, 600, 10)
        job = front.inner.job(obj, unfolded, unfolded.rids)
        good, bad = job.pieces
        assert len(await front.inner.requests(job, good)) == 1
        with pytest.raises(InvalidRequest, match="token id 600 is out-of-vocabulary") as caught:
            await front.inner.requests(job, bad)
        assert caught.value.param == "input_ids"

    async def test_others_have_their_turn_between_pieces_of_ids(self, tokenizer: Tokenizer, pool: TextPool) -> None:
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        front = Front(tokenizer, pool, replace(LIMITS, context_len=30_000, max_req_len=30_000))
        pieces = await self.pieces(front, input_ids=[[5] * PIECE_IDS] * 20)
        assert len(pieces) == 20 and turns >= 19
        counting.cancel()

    @pytest.mark.parametrize("kind", ["bad words", "vectors"])
    async def test_beside_ids_it_may_be_work_for_the_pool(
        self, tokenizer: Tokenizer, pool: TextPool, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        threads: list[int] = []
        real = InputTokenizer._build

        def build(self: InputTokenizer, *arguments: Any) -> list[TokenizedGenerateReqInput]:
            threads.append(threading.get_ident())
            return real(self, *arguments)

        monkeypatch.setattr(InputTokenizer, "_build", build)
        front = Front(tokenizer, pool, replace(LIMITS, context_len=30_000, max_req_len=30_000, hidden_size=2))
        await front(input_ids=[5] * 2000)
        if kind == "vectors":
            await front(input_embeds=[[0.5, 1.5]] * 2000)
        else:
            await front(input_ids=[5] * 200, sampling_params=SamplingParams(bad_words=["some words"] * 100))
        assert [thread == threading.get_ident() for thread in threads] == [True, False]

    async def test_prompts_that_share_parameters_have_them_settled_once(
        self, front: Front, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Results are shared by length where the length of the answer depends on it; each prompt has a seed of its
        own.
        """
        settled = 0
        real = InputTokenizer._with_stop_tokens

        def counted(self: InputTokenizer, params: SamplingParams) -> SamplingParams:
            nonlocal settled
            settled += 1
            return real(self, params)

        monkeypatch.setattr(InputTokenizer, "_with_stop_tokens", counted)
        requests = await front(
            input_ids=[[5] * (1 + i % 4) for i in range(8)], sampling_params=SamplingParams(stop=["x"])
        )
        assert settled == 4
        assert [request.sampling_params.max_new_tokens for request in requests] == [29, 28, 27, 26] * 2
        assert len({request.sampling_params.sampling_seed for request in requests}) == 8
        mine = [SamplingParams(max_new_tokens=2, top_p=0.1 * (1 + i)) for i in range(3)]
        requests = await front(input_ids=[[5]] * 3, sampling_params=mine)
        assert [request.sampling_params.top_p for request in requests] == [one.top_p for one in mine]
