"""The frontend language on a real model: over HTTP, and in this process."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import mysglang as sgl
from fixtures.server_process import REPOSITORY, ServerProcess
from fixtures.warm_start import warm_engines
from mysglang.bench.refused import Failed
from mysglang.cli.main import run
from mysglang.lang.backends.native import NativeBackend

LONG = "Paris is the capital of France, and Rome is the capital of Italy. " * 4


@pytest.fixture(scope="module", params=["over HTTP", "in process"])
def backend(request: pytest.FixtureRequest, tiny_server: ServerProcess) -> Iterator[NativeBackend]:
    if request.param == "over HTTP":
        endpoint = sgl.RuntimeEndpoint(tiny_server.url)
        yield endpoint
        endpoint.close()
    else:
        with warm_engines(), sgl.Runtime(dtype="float32", enable_cache_report=True) as runtime:
            yield runtime


@pytest.fixture(autouse=True)
def clean_cache(backend: NativeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sgl.settings, "default_backend", backend)
    sgl.flush_cache()


@sgl.function
def chat(s: sgl.ProgramState, question: str) -> None:
    s += sgl.user(question)
    s += sgl.assistant(sgl.gen("answer", max_tokens=24, temperature=0))


def test_a_conversation_is_the_one_that_the_chat_route_has(tiny_server: ServerProcess, backend: NativeBackend) -> None:
    assert backend.get_chat_template().name == "the model's own"
    state = chat.run("What is the capital of France?")
    assert state["answer"] == "The capital of France is Paris."
    meta = state.get_meta_info("answer")
    # The derived format has as many tokens as the model's template: nothing is missing and nothing is there twice.
    endpoint = sgl.RuntimeEndpoint(tiny_server.url)
    rendered = endpoint.render([{"role": "user", "content": "What is the capital of France?"}], True)
    assert state.text().startswith(rendered) and meta["prompt_tokens"] == len(endpoint._tokens({"prompt": rendered}))
    endpoint.close()


def test_every_argument_of_gen(backend: NativeBackend) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "The capital of France is"
        s += sgl.gen(
            "said",
            max_tokens=8,
            min_tokens=2,
            n=2,
            stop=["zzz"],
            stop_token_ids=[0],
            stop_regex="[0-9]{9}",
            temperature=0.5,
            top_p=0.9,
            top_k=20,
            min_p=0.01,
            frequency_penalty=0.1,
            presence_penalty=0.1,
            ignore_eos=True,
            return_logprob=True,
            logprob_start_len=0,
            top_logprobs_num=2,
            return_text_in_logprobs=True,
        )

    state = program.run()
    metas = state.get_meta_info("said")
    assert len(state["said"]) == len(metas) == 2
    for meta in metas:
        assert meta["completion_tokens"] == 8 and meta["prompt_tokens"] == len(meta["input_token_logprobs"])
        assert len(meta["output_token_logprobs"]) == 8 and meta["output_token_logprobs"][0][2].startswith(" ")
        assert {len(rows) for rows in meta["output_top_logprobs"]} == {2}
    assert state.text() == "The capital of France is" + state["said"][0]


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        (lambda: sgl.gen_int("x", max_tokens=6), r"[-+]?[0-9]+\s*"),
        (lambda: sgl.gen_string("x", max_tokens=40), r'"[\w\s]*"?'),
        (lambda: sgl.gen("x", dtype=bool), "True|False"),
        (lambda: sgl.gen("x", max_tokens=6, dtype=float), r"[-+]?[0-9]*\.?[0-9]*\s*"),
        (lambda: sgl.gen("x", regex="(red|green) [0-9]{2}"), "(red|green) [0-9]{2}"),
        (lambda: sgl.gen("x", json_schema=json.dumps({"enum": ["a", "b"]})), '"[ab]"'),
    ],
)
def test_forms_of_answers(expression: object, form: str) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "It is "
        s += expression()  # type: ignore[operator]  # one of the functions above

    state = program.run(temperature=1.0)
    assert re.fullmatch(form, state["x"]), state["x"]


@pytest.mark.parametrize(
    "method",
    [sgl.token_length_normalized, sgl.greedy_token_selection, sgl.unconditional_likelihood_normalized],
    ids=lambda method: type(method).__name__,
)
def test_select_finds_its_prompt_in_the_cache(method: object) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += LONG + "The capital of France is"
        s += sgl.select("city", [" London", " Paris", " Oslo"], choices_method=method)  # type: ignore[arg-type]

    state = program.run()
    assert state["city"] == " Paris"
    meta = state.get_meta_info("city")
    choices = ["".join(row[2] for row in rows) for rows in meta["input_token_logprobs"]]
    assert choices == [" London", " Paris", " Oslo"]
    # All but the last tokens of the prompt, whose log-probabilities are asked for, come from the cache.
    assert min(meta["cached_tokens"]) > 40


def test_gen_with_choices_is_select() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "The capital of Italy is" + sgl.gen("city", choices=[" Rome", " Madrid"]) + "."

    state = program.run()
    assert state.text() == f"The capital of Italy is{state['city']}."


def test_forks_find_their_prefix_in_the_cache() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += LONG
        forks = s.fork(3)
        forks += lambda i: f"Fork {i} says:"
        forks += sgl.gen("said", max_tokens=4, temperature=0)
        forks.join()
        s["cached"] = [fork.get_meta_info("said")["cached_tokens"] for fork in forks]
        s += "Together: " + s["said"][0]

    state = program.run()
    assert len(state["said"]) == 3 and state.text() == LONG + "Together: " + state["said"][0]
    assert min(state["cached"]) > 40


def test_a_batch_finds_its_common_prefix_in_the_cache() -> None:
    @sgl.function
    def program(s: sgl.ProgramState, city: str) -> None:
        s += LONG + city
        s += sgl.gen("said", max_tokens=4, temperature=0)

    cities = ["Paris", "Rome", "Oslo", "Bern"]
    states = program.run_batch([{"city": city} for city in cities])
    assert min(state.get_meta_info("said")["cached_tokens"] for state in states) > 40
    alone = [program.run(city)["said"] for city in cities]
    assert [state["said"] for state in states] == alone


def test_streams_say_what_whole_answers_say() -> None:
    whole = chat.run("Tell me a story.")
    assert "".join(chat.run("Tell me a story.", stream=True).text_iter()) == whole.text()
    assert "".join(chat.run("Tell me a story.", stream=True).text_iter("answer")) == whole["answer"]

    async def read() -> str:
        state = chat.run("Tell me a story.", stream=True)
        return "".join([piece async for piece in state.text_async_iter("answer")])

    assert asyncio.run(read()) == whole["answer"]


def test_the_next_token_without_text() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "The capital of France is"
        s += sgl.gen("next", max_tokens=0, return_logprob=True, top_logprobs_num=3, return_text_in_logprobs=True)

    state = program.run()
    assert state["next"] == ""
    assert state.get_meta_info("next")["output_top_logprobs"][0][0][2] == " Paris"


def test_what_the_server_refuses_is_told_in_its_words() -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "Hello" + sgl.gen("x", temperature=-1)

    assert "temperature must be" in str(program.run().error())

    @sgl.function
    def pictures(s: sgl.ProgramState) -> None:
        s += sgl.image(b"no picture") + "What is this?" + sgl.gen("x")

    assert "takes text only" in str(pictures.run().error())


def test_server_info() -> None:
    info = sgl.get_server_info()
    assert info is not None and info["dtype"] == "float32"


class TestClientsOfOthers:
    """OpenAI's and Anthropic's clients, on this server, which speaks their APIs."""

    @pytest.fixture
    def openai(self, tiny_server: ServerProcess) -> sgl.OpenAI:
        return sgl.OpenAI("default", api_key="none", base_url=f"{tiny_server.url}/v1")

    def test_openai_chat(self, openai: sgl.OpenAI) -> None:
        state = chat.run("What is the capital of France?", backend=openai)
        assert state["answer"] == "The capital of France is Paris."
        assert openai.token_usage.completion_tokens == 8
        streamed = chat.run("What is the capital of France?", backend=openai, stream=True)
        assert "".join(streamed.text_iter("answer")) == state["answer"]

    def test_openai_text(self, tiny_server: ServerProcess, openai: sgl.OpenAI) -> None:
        text = sgl.OpenAI("default", is_chat_model=False, api_key="none", base_url=f"{tiny_server.url}/v1")

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "The capital of France is"
            s += sgl.gen("city", max_tokens=2, temperature=0, stop=".")

        assert program.run(backend=text)["city"] == " Paris"
        assert "cannot be used with OpenAI's API" in str(program.run(top_k=5, backend=text).error())

    def test_anthropic(self, tiny_server: ServerProcess) -> None:
        backend = sgl.Anthropic("default", api_key="none", base_url=tiny_server.url)
        assert chat.run("What is the capital of France?", backend=backend)["answer"] == (
            "The capital of France is Paris."
        )
        streamed = chat.run("What is the capital of France?", backend=backend, stream=True)
        assert "".join(streamed.text_iter("answer")) == "The capital of France is Paris."


@pytest.mark.parametrize("page", ["docs/lang.md", "examples/frontend_language.py"])
def test_what_is_documented_runs(page: str, tiny_server: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    text = (REPOSITORY / page).read_text()
    code = text if page.endswith(".py") else "".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    # A program's source is not read, so it may come from a text; the functions of a page go on from each other.
    exec(compile(code.replace("http://127.0.0.1:30000", tiny_server.url), page, "exec"), {"__name__": "__main__"})
    assert "Paris" in capsys.readouterr().out


def test_an_evaluation_by_a_program(
    tiny_server: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It asks the same questions as over OpenAI's API, and finds their common beginning in the cache."""
    lines = [{"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"} for n in range(1, 9)]
    (tmp_path / "gsm8k.jsonl").write_text("\n".join(map(json.dumps, lines)))
    command = ["eval", "gsm8k", "--data-path", str(tmp_path / "gsm8k.jsonl"), "--base-url", tiny_server.url]
    figures = []
    for api in ("completion", "lang"):
        answers = tmp_path / f"{api}.jsonl"
        assert run([*command, "--api", api, "--max-tokens", "8", "--save-answers", str(answers)]) == 0
        found = json.loads(capsys.readouterr().out.splitlines()[-1])
        figures.append(({**found, "latency_s": 0, "output_tokens_per_s": 0}, answers.read_text()))
    assert figures[0] == figures[1] and figures[0][0]["examples"] == 3
    # A missing server is reported in one line, as with the other ways.
    with pytest.raises(Failed, match="does not answer"):
        run([*command[:-1], "http://127.0.0.1:1", "--api", "lang"])
