"""Programs on the embedded model, over HTTP and in this process. All of a server is threads of this process;
`test/server/test_lang.py` has the processes, structured answers and the documented examples.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import mysglang as sgl
from fixtures.threaded_children import SMALL, one_process, threaded_server
from mysglang.lang.backends import runtime
from mysglang.lang.backends.native import NativeBackend
from mysglang.srt.entrypoints.engine import Engine

LONG = "Paris is the capital of France, and Rome is the capital of Italy. " * 4
KEY = "key of its administrator"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with threaded_server(admin_api_key=KEY, enable_cache_report=True) as found:
        yield found


@pytest.fixture(scope="module", params=["over HTTP", "in process"])
def backend(request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    if request.param == "over HTTP":
        endpoint = sgl.RuntimeEndpoint(request.getfixturevalue("url"), api_key=KEY)
        yield endpoint
        endpoint.close()
    else:
        with one_process(), sgl.Runtime(**SMALL, enable_cache_report=True) as runtime:
            yield runtime


@pytest.fixture(autouse=True)
def by_default(backend: NativeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgl.settings, "default_backend", backend)


@sgl.function
def chat(s: sgl.ProgramState, question: str) -> None:
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=24, temperature=0))


def test_a_conversation_in_the_model_s_own_format(backend: NativeBackend) -> None:
    assert backend.get_chat_template().name == "the model's own"
    state = chat.run("What is the capital of France?")
    assert state["answer"] == "The capital of France is Paris."
    assert state.text().startswith(
        backend.render([{"role": "user", "content": "What is the capital of France?"}], True)
    )
    streamed = chat.run("What is the capital of France?", stream=True)
    assert list(streamed.text_iter("answer")) != [state["answer"]] and streamed.text() == state.text()


@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
    ids=lambda method: type(method).__name__,
)
def test_select_reads_the_choices_behind_the_cached_prompt(method: Any) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += LONG + "The capital of France is"
        s += sgl.select("city", [" London", " Paris", " Oslo"], choices_method=method)

    state = program.run()
    meta = state.get_meta_info("city")
    assert state["city"] == " Paris"
    read = ["".join(row[2] for row in rows) for rows in meta["input_token_logprobs"]]
    assert read == [" London", " Paris", " Oslo"]
    assert min(meta["cached_tokens"]) > 40


def test_the_next_token_without_text() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "The capital of France is"
        s += sgl.gen("next", max_tokens=0, return_logprob=True, top_logprobs_num=3, return_text_in_logprobs=True)

    state = program.run()
    assert state["next"] == ""
    assert state.get_meta_info("next")["output_top_logprobs"][0][0][2] == " Paris"


def test_several_answers_and_forks_share_their_prefix() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += LONG
        s += sgl.gen("said", n=2, max_tokens=4, temperature=0)
        forks = s.fork(2)
        forks += sgl.gen("more", max_tokens=4, temperature=0)
        forks.join()
        s["cached"] = [fork.get_meta_info("more")["cached_tokens"] for fork in forks]

    state = program.run()
    first, second = state["said"]
    assert first == second and state.text() == LONG + first
    assert min(state["cached"]) > 40


def test_what_a_program_may_not_ask(backend: NativeBackend) -> None:
    @sgl.function
    def picture(s: sgl.ProgramState) -> None:
        s += sgl.image(b"no picture") + "What is this?" + sgl.gen("x")

    @sgl.function
    def streamed(s: sgl.ProgramState) -> None:
        s += "Hello" + sgl.gen("x", n=2, max_tokens=2)

    @sgl.function
    def refused(s: sgl.ProgramState) -> None:
        s += "Hello" + sgl.gen("x", temperature=-1)

    @sgl.function
    def warm(s: sgl.ProgramState) -> None:
        s += "Hello" + sgl.select("x", ["a", "b"], temperature=0.5)

    assert "takes text only" in str(picture.run().error())
    with pytest.raises(ValueError, match="n > 1 cannot be streamed"):
        list(streamed.run(stream=True).text_iter())
    assert "temperature must be" in str(refused.run().error())
    assert "its temperature must be 0; got 0.5" in str(warm.run().error())


def test_server_info_and_an_empty_cache(backend: NativeBackend) -> None:
    info = sgl.get_server_info()
    assert info is not None and info["dtype"] == "float32"
    backend.cache_prefix(LONG)
    body = {"text": LONG, "sampling_params": {"max_new_tokens": 1}}
    assert backend.ask(body)["meta_info"]["cached_tokens"] > 40
    sgl.flush_cache()
    assert backend.ask(body)["meta_info"].get("cached_tokens", 0) == 0


@pytest.mark.parametrize("backend", ["in process"], indirect=True, scope="module")
class TestRuntime:
    def test_without_a_program(self, backend: sgl.Runtime) -> None:
        params = {"temperature": 0, "max_new_tokens": 6}
        text = backend.generate_text("The capital of France is", params)

        async def read() -> list[str]:
            return [piece async for piece in backend.async_generate("The capital of France is", params)]

        assert text.startswith(" Paris") and "".join(asyncio.run(read())) == text
        assert backend.get_tokenizer().decode(backend.get_tokenizer().encode("x")).endswith("x")

    def test_it_has_no_url(self, backend: sgl.Runtime) -> None:
        with pytest.raises(AttributeError, match="launch_server"):
            _ = backend.url

    def test_an_unknown_template_ends_its_engine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        started: list[Engine] = []

        def start(**options: Any) -> Engine:
            started.append(Engine(**options))
            return started[-1]

        monkeypatch.setattr(runtime, "Engine", start)
        with pytest.raises(ValueError, match="unheard of"):
            sgl.Runtime(**SMALL, chat_template_name="unheard of")
        assert [engine._thread.is_alive() for engine in started] == [False]


@pytest.mark.parametrize("backend", ["over HTTP"], indirect=True, scope="module")
class TestEndpoint:
    def test_a_wrong_key_is_refused_in_the_server_s_words(self, url: str) -> None:
        stranger = sgl.RuntimeEndpoint(url, api_key="another")
        with pytest.raises(RuntimeError, match="the server answered 401: Unauthorized"):
            stranger.flush_cache()
        stranger.close()

    def test_nobody_answers(self) -> None:
        with pytest.raises(ConnectionError, match="does not answer"):
            sgl.RuntimeEndpoint("http://127.0.0.1:9/")

    def test_a_proxy_s_page_is_quoted(self, backend: sgl.RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
        transport = httpx.MockTransport(lambda _request: httpx.Response(502, text="<h1>Bad gateway</h1>"))
        with httpx.Client(transport=transport, base_url="http://proxy") as client:
            monkeypatch.setattr(backend, "_client", client)
            with pytest.raises(RuntimeError, match="502: <h1>Bad gateway</h1>"):
                backend.ask({})
            with pytest.raises(RuntimeError, match="502"):
                next(iter(backend.ask_stream({})))

    def test_an_answer_that_ends_in_an_error(
        self, backend: sgl.RuntimeEndpoint, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        frames = b': comment\n\ndata: {"text": "On", "meta_info": {}}\n\ndata: {"error": {"message": "it died"}}\n\n'
        transport = httpx.MockTransport(lambda _request: httpx.Response(200, content=frames))
        with httpx.Client(transport=transport, base_url="http://server") as client:
            monkeypatch.setattr(backend, "_client", client)
            stream = iter(backend.ask_stream({}))
            assert next(stream)["text"] == "On"
            with pytest.raises(RuntimeError, match="the server ended the answer: it died"):
                next(stream)

    def test_recording(self, backend: sgl.RuntimeEndpoint, tmp_path: Path) -> None:
        backend.start_profile(output_dir=str(tmp_path), profile_id="p", activities=["STEPS"])
        backend.ask({"text": "x", "sampling_params": {"max_new_tokens": 2}})
        backend.stop_profile()
        assert (tmp_path / "p.steps.trace.json.gz").exists()
