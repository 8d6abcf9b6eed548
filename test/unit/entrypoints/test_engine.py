"""Engine without processes: its verbs give the answers of plain requests, its refusals name the field, and its end is
told to all callers. Scheduler and detokenizer are threads here; `test/server/test_engine.py` has the processes.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fixtures.patience import PATIENCE_S, wait_until
from fixtures.threaded_children import SMALL, ThreadedChildren, one_process
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.entrypoints.engine import Engine
from mysglang.srt.errors import Aborted, ConfigError, InvalidRequest, ServerEnded, ShuttingDown, WorkerDied
from mysglang.srt.managers.scheduler_builder import Makers
from mysglang.srt.messages.generate import parse_generate

PROMPT = "The capital of France is"
IDS = [100, 200, 300]
GREEDY = {"temperature": 0.0, "max_new_tokens": 6, "ignore_eos": True}
ENDLESS = {**GREEDY, "max_new_tokens": 200}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with one_process(), Engine(**SMALL) as started:
        yield started


def children(engine: Engine) -> ThreadedChildren:
    found = engine._runtime._subprocesses
    assert isinstance(found, ThreadedChildren)
    return found


def idle(engine: Engine) -> dict[str, Any]:
    """The scheduler's state once it has nothing to do."""
    for _ in range(1000):
        (state,) = engine.get_server_info()["internal_states"]
        if state["num_running_reqs"] == state["num_waiting_reqs"] == 0:
            return dict(state)
    raise AssertionError(state)


def test_a_stream_and_an_event_loop_give_the_same_answer(engine: Engine) -> None:
    whole = engine.generate(PROMPT, GREEDY)
    assert whole["meta_info"]["finish_reason"] == {"type": "length", "length": 6}
    assert engine.tokenizer is not None
    assert engine.tokenizer.decode(whole["output_ids"]) == whole["text"]
    grown = list(engine.generate(PROMPT, GREEDY, stream=True))
    assert all(later["text"].startswith(earlier["text"]) for earlier, later in itertools.pairwise(grown))

    async def ask() -> tuple[Any, list[Any]]:
        stream = await engine.async_generate(PROMPT, GREEDY, stream=True)
        return await engine.async_generate(PROMPT, GREEDY), [response async for response in stream]

    answer, streamed = asyncio.run(ask())
    for other in (grown[-1], answer, streamed[-1]):
        assert (other["text"], other["output_ids"]) == (whole["text"], whole["output_ids"])


def test_a_batch_answers_in_order(engine: Engine) -> None:
    prompts = [[*IDS, last] for last in range(400, 404)]
    solo = [engine.generate(input_ids=prompt, sampling_params=GREEDY)["output_ids"] for prompt in prompts]
    assert len({*map(tuple, solo)}) > 1
    batch = engine.generate(input_ids=prompts, sampling_params=GREEDY)
    assert [answer["output_ids"] for answer in batch] == solo


def test_leaving_a_stream_ends_its_request(engine: Engine) -> None:
    before = idle(engine)["forward_steps"]
    stream = engine.generate(input_ids=IDS, sampling_params=ENDLESS, stream=True)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert idle(engine)["forward_steps"] - before < ENDLESS["max_new_tokens"]


class TestBeams:
    """Beam search through the whole engine; `managers/test_beam_search.py` has the rules of its state."""

    def test_scores_are_those_of_the_answers_alone(self, engine: Engine) -> None:
        params = {"max_new_tokens": 5, "beam_width": 3, "n": 3, "length_penalty": 0.5}
        batch = engine.generate(input_ids=[IDS, [7, 8, 9, 10]], sampling_params=params)
        assert len(batch) == 6
        for prompt, answers in ((IDS, batch[:3]), ([7, 8, 9, 10], batch[3:])):
            scores = [answer["meta_info"]["sequence_score"] for answer in answers]
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(answer["output_ids"]) for answer in answers}) == 3
            for answer, score in zip(answers, scores, strict=True):
                total = self.logprob(engine, prompt, answer["output_ids"])
                assert score == pytest.approx(total / math.sqrt(len(answer["output_ids"])), rel=1e-3)

    def logprob(self, engine: Engine, prompt: list[int], answer: list[int]) -> float:
        """Log-probability of `answer` after `prompt`, by one pass over both."""
        alone = engine.generate(
            input_ids=[*prompt, *answer], sampling_params=GREEDY, return_logprob=True, logprob_start_len=0
        )
        return sum(value for value, *_ in alone["meta_info"]["input_token_logprobs"][-len(answer) :])

    def test_an_answer_of_no_tokens(self, engine: Engine) -> None:
        answer = engine.generate(PROMPT, {"beam_width": 2, "max_new_tokens": 0})
        assert (answer["text"], answer["output_ids"]) == ("", [])

    def test_a_stop_token_ends_a_beam_and_is_not_shown(self, engine: Engine) -> None:
        first = engine.generate(input_ids=IDS, sampling_params=GREEDY)["output_ids"][0]
        # With a negative penalty long answers score worse: the best one ends at once.
        search = {"beam_width": 2, "max_new_tokens": 3, "length_penalty": -3.0, "stop_token_ids": [first]}
        for trims in (True, False):
            params = {**search, "ignore_eos": True, "no_stop_trim": not trims}
            answer = engine.generate(input_ids=IDS, sampling_params=params)
            assert answer["meta_info"]["finish_reason"] == {"type": "stop", "matched": first}
            assert answer["output_ids"] == [first] and bool(answer["text"]) is not trims

    @pytest.mark.parametrize(
        ("params", "fields", "param"),
        [
            ({"n": 3}, {}, "n"),
            ({"beam_width": 200}, {}, "beam_width"),
            ({"stop_token_ids": list(range(600)), "ignore_eos": True}, {}, "beam_width"),
            ({"stop": ["x"]}, {}, "stop"),
            ({}, {"return_logprob": True}, "return_logprob"),
            ({}, {"max_thinking_tokens": 4}, "max_thinking_tokens"),
        ],
    )
    def test_refusals_name_the_field(
        self, engine: Engine, params: dict[str, Any], fields: dict[str, Any], param: str
    ) -> None:
        with pytest.raises(InvalidRequest, match=param) as caught:
            engine.generate(PROMPT, {"max_new_tokens": 4, "beam_width": 2, **params}, **fields)
        assert caught.value.param == param

    def test_all_prompts_of_a_batch_search(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequest, match="all prompts of a batch"):
            engine.generate(["a", "b"], [{"beam_width": 2}, {"max_new_tokens": 2}])
        one, two = engine.generate(["a", "b"], [{"beam_width": 2, "max_new_tokens": new} for new in (1, 2)])
        assert (len(one["output_ids"]), len(two["output_ids"])) == (1, 2)


def test_scores_are_the_probabilities_of_the_next_token(engine: Engine) -> None:
    labels = [5, 6]
    query, items = IDS, [[11], [12, 13]]
    found = engine.score(query, items, labels)
    for item, row in zip(items, found, strict=True):
        answer = engine.generate(
            input_ids=[*query, *item], sampling_params=GREEDY, return_logprob=True, token_ids_logprob=labels
        )
        first = answer["meta_info"]["output_token_ids_logprobs"][0]
        assert row == pytest.approx([math.exp(value) for value, *_ in first], rel=1e-3)
    for row, shares in zip(found, engine.score(query, items, labels, apply_softmax=True), strict=True):
        assert shares == pytest.approx([each / sum(row) for each in row], rel=1e-3)


def test_what_a_model_that_generates_refuses(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="--is-embedding"):
        engine.encode("x")
    with pytest.raises(InvalidRequest, match="--is-embedding"):
        asyncio.run(engine.async_encode("x"))
    with pytest.raises(InvalidRequest, match="cannot rank documents"):
        engine.rerank("x", ["y"])


@pytest.mark.parametrize(
    ("params", "fields", "message"),
    [
        ({"temprature": 1}, {}, "temprature"),
        ({"top_p": 2}, {}, "top_p"),
        ({}, {"image_dat": []}, "image_dat"),
        ({}, {"input_ids": [1]}, "input_ids"),
    ],
)
def test_a_bad_request_is_refused_by_name(
    engine: Engine, params: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        engine.generate(PROMPT, params, **fields)
    idle(engine)


def test_a_conversation_becomes_a_prompt(engine: Engine) -> None:
    said = [{"role": "user", "content": "Hello there"}]
    begun, whole = (engine.apply_chat_template(said, add_generation_prompt=begin) for begin in (True, False))
    assert "Hello there" in whole and begun.startswith(whole) and begun != whole


def test_the_cache_is_emptied(engine: Engine) -> None:
    engine.generate(PROMPT, GREEDY)
    assert engine.generate(PROMPT, GREEDY)["meta_info"]["cached_tokens"] > 0
    assert idle(engine)["evictable_tokens"] > 0
    assert engine.flush_cache().success
    assert idle(engine)["evictable_tokens"] == 0
    assert engine.generate(PROMPT, GREEDY)["meta_info"]["cached_tokens"] == 0


def test_weights_are_replaced_and_come_back(engine: Engine) -> None:
    name = "model.embed_tokens.weight"
    first, sums = engine.generate(PROMPT, GREEDY), engine.weights.checksums()
    before = torch.tensor(engine.get_weights_by_name(name, 4096))
    assert engine.update_weights_from_tensor([(name, before.flip(0))], weight_version="flipped")[0]
    changed = engine.generate(PROMPT, GREEDY)
    assert changed["meta_info"]["weight_version"] == "flipped" and changed["output_ids"] != first["output_ids"]
    assert engine.get_weights_by_name(name, 1) == [before[-1].tolist()]
    assert not engine.update_weights_from_disk("/nowhere")[0]
    assert engine.update_weights_from_disk(str(EMBEDDED_MODEL), weight_version="default")[0]
    assert engine.weights.checksums() == sums
    assert engine.generate(PROMPT, GREEDY)["output_ids"] == first["output_ids"]
    assert engine.release_memory_occupation(["kv_cache"])[0]
    with pytest.raises(Aborted, match="given its memory back"):
        engine.generate(PROMPT, GREEDY)
    assert engine.resume_memory_occupation(["kv_cache"])[0]
    assert engine.generate(PROMPT, GREEDY)["output_ids"] == first["output_ids"]


def test_a_group_that_was_never_joined(engine: Engine) -> None:
    for done, why in (
        engine.destroy_weights_update_group(),
        engine.update_weights_from_distributed(["a"], ["float32"], [[1]]),
        engine.init_weights_update_group("127.0.0.1", 1, 1, 2, backend="nccl"),
    ):
        assert not done and why


def test_wrong_arguments_about_weights_are_named_and_harmless(engine: Engine) -> None:
    """Also those that the bodies of the routes refuse: an engine has no body in front of it."""
    norm, ones = "model.norm.weight", torch.ones(1)
    calls: list[tuple[str, Callable[[], object]]] = [
        ("equally many", lambda: engine.update_weights_from_distributed([norm, "b"], ["float32"], [[1]])),
        (r"shapes\[0\]\[0\]", lambda: engine.update_weights_from_distributed([norm], ["float32"], [[-1]])),
        ("master_port", lambda: engine.init_weights_update_group("127.0.0.1", 65536, 1, 2, backend="gloo")),
        ("rank_offset", lambda: engine.init_weights_update_group("127.0.0.1", 1, 2, 2, backend="gloo")),
        ("truncate_size", lambda: engine.get_weights_by_name(norm, -1)),
        ("tags", lambda: engine.release_memory_occupation([])),
        ("norm.weight' and list", lambda: engine.update_weights_from_tensor([(norm, [1.0])])),
        ("without values", lambda: engine.update_weights_from_tensor([(norm, torch.ones(1, device="meta"))])),
        ("occurs twice", lambda: engine.update_weights_from_tensor([(norm, ones), (norm, ones + 1)])),
    ]
    for why, call in calls:
        with pytest.raises(InvalidRequest, match=why):
            call()
    assert engine.generate(PROMPT, GREEDY)["output_ids"]


def test_a_saved_model_is_served_again(engine: Engine, tmp_path: Path) -> None:
    first = engine.generate(PROMPT, GREEDY)
    engine.save_sharded_model(str(tmp_path))
    with pytest.raises(InvalidRequest, match="holds weights already"):
        engine.save_sharded_model(str(tmp_path))
    with Engine(**SMALL, model_path=str(tmp_path), load_format="sharded_state") as again:
        assert again.generate(PROMPT, GREEDY)["text"] == first["text"]


def test_the_methods_that_the_page_of_operation_names() -> None:
    page = (Path(__file__).parents[3] / "docs" / "operation.md").read_text()
    paragraphs = [paragraph for paragraph in page.split("\n\n") if paragraph.startswith("`Engine` has")]
    names = [name for paragraph in paragraphs for name in paragraph.split("`")[3::2]]
    assert "flush_cache" in names and [name for name in names if not hasattr(Engine, name)] == []


def test_a_profile(engine: Engine, tmp_path: Path) -> None:
    assert engine.start_profile(output_dir=str(tmp_path), profile_id="p", activities=["STEPS"])[0]
    again, why = engine.start_profile(output_dir=str(tmp_path))
    assert not again and "recorded already" in why
    engine.generate(PROMPT, GREEDY)
    path = tmp_path / "p.steps.trace.json.gz"
    written, where = engine.stop_profile()
    assert written and str(path) in where and path.exists()


class TestEnds:
    def test_several_fronts_are_for_the_server(self) -> None:
        with pytest.raises(ConfigError, match=r"^tokenizer_worker_num: only for the HTTP server"):
            Engine(**SMALL, tokenizer_worker_num=2)

    def test_options_are_called_by_their_keywords(self) -> None:
        with pytest.raises(ConfigError, match=r"^model_pth is not an option; did you mean model_path "):
            Engine(model_pth="x")
        with pytest.raises(ConfigError, match=r"^max_total_tokens must be at least two pages \(32\)\.$"):
            Engine(max_total_tokens=20, page_size=16)

    def test_a_start_that_fails_says_why(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_worker(*_: Any) -> Any:
            raise MemoryError("none is left")

        makers = Makers(worker=no_worker)
        with one_process():
            monkeypatch.setattr(
                "mysglang.srt.entrypoints.engine.Subprocesses", lambda args: ThreadedChildren(args, makers)
            )
            with pytest.raises(WorkerDied, match="scheduler: MemoryError: none is left"):
                Engine(**SMALL)

    def test_a_death_is_told_to_callers_that_wait_and_to_later_ones(self) -> None:
        with one_process():
            engine = Engine(**SMALL)
            try:
                stream = engine.generate(input_ids=IDS, sampling_params=ENDLESS, stream=True)
                next(stream)
                children(engine).die("the scheduler is gone")
                with pytest.raises(WorkerDied, match="the scheduler is gone"):
                    list(stream)
                with pytest.raises(WorkerDied, match="the scheduler is gone"):
                    engine.generate(input_ids=IDS, sampling_params=GREEDY)
            finally:
                engine.shutdown()

    def test_shutting_down_ends_open_streams(self) -> None:
        with one_process():
            engine = Engine(**SMALL, skip_tokenizer_init=True)
            assert engine.tokenizer is None
            with pytest.raises(InvalidRequest, match="without a tokenizer"):
                engine.apply_chat_template([{"role": "user", "content": "x"}])
            waiting = engine._submit(engine._answer(parse_generate({"input_ids": IDS, "sampling_params": ENDLESS})))
            wait_until(lambda: engine.get_server_info()["internal_states"][0]["num_running_reqs"] == 1)
            engine.shutdown()
            with pytest.raises(ShuttingDown, match="shut down"):
                waiting.result(PATIENCE_S)
            engine.shutdown()

    def test_a_call_of_another_thread_ends_when_the_engine_is_shut_down(self) -> None:
        with one_process():
            engine = Engine(**SMALL)
            # In this mode the loop refuses to be used from other threads.
            engine._loop.set_debug(True)
            ends: list[BaseException] = []

            def call() -> None:
                try:
                    engine.generate(input_ids=IDS, sampling_params=ENDLESS)
                except ServerEnded as error:
                    ends.append(error)

            asking = threading.Thread(target=call, daemon=True)
            asking.start()
            wait_until(lambda: engine.get_server_info()["internal_states"][0]["num_running_reqs"] == 1)
            engine.shutdown()
            asking.join(PATIENCE_S)
            assert [type(end) for end in ends] == [ShuttingDown]

    def test_an_engine_that_was_shut_down_says_so(self) -> None:
        with one_process(), warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)  # a coroutine that was never awaited
            engine = Engine(**SMALL)
            left, dropped = (engine.generate(PROMPT, ENDLESS, stream=True) for _ in range(2))
            next(left), next(dropped)
            engine.shutdown()
            dropped.close()
            for call in (
                lambda: next(left),
                lambda: engine.generate(PROMPT, GREEDY),
                lambda: next(engine.generate(PROMPT, GREEDY, stream=True)),
                lambda: asyncio.run(engine.async_generate(PROMPT, GREEDY)),
                lambda: engine.flush_cache(),
                lambda: engine.get_server_info(),
            ):
                with pytest.raises(ShuttingDown, match="the engine was shut down"):
                    call()

    @pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go there")
    def test_an_interrupted_start_ends_its_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ended: list[str] = []

        class SlowChildren(ThreadedChildren):
            async def wait_ready(self) -> Any:
                await super().wait_ready()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                await asyncio.Event().wait()

            async def stop(self) -> None:
                await super().stop()
                ended.append("stopped")

        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with one_process():
                monkeypatch.setattr("mysglang.srt.entrypoints.engine.Subprocesses", SlowChildren)
                with pytest.raises(KeyboardInterrupt):
                    Engine(**SMALL)
        finally:
            signal.signal(signal.SIGINT, handler)
        assert ended == ["stopped"]

    def test_in_a_forked_process_calls_are_refused_and_its_end_is_quiet(self, engine: Engine) -> None:
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(10)  # ends a call that waits for ever
                engine.shutdown()
                engine.generate(PROMPT, GREEDY)
            except ServerEnded as error:
                status = 7 * ("forked" in str(error))
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert engine.generate(PROMPT, GREEDY)["text"]
