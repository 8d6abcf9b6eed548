"""Programs on a scripted backend: what is asked, what is returned, and what is refused."""

import asyncio
import threading

import pytest

import mysglang as sgl
from fixtures.lang_backend import ScriptedBackend
from fixtures.patience import PATIENCE_S
from mysglang.lang.prompt import Prompt
from mysglang.lang.sampling import SamplingParams

LONG = "This text stands at the beginning of every run of the program, and is long enough. "


def echo(prompt: Prompt, params: SamplingParams) -> str:
    """The last word of the prompt, in capitals."""
    return prompt.text.split()[-1].upper()


class TestArguments:
    @sgl.function
    def program(s: sgl.ProgramState, first: str, second: str = "two", temperature: float = 3) -> str:
        s += first + " " + second + " "
        s += sgl.gen("said", top_p=0.5)
        return "returned"

    def test_places_names_and_defaults(self) -> None:
        backend = ScriptedBackend(echo)
        assert self.program.run("one", backend=backend)["said"] == "TWO"
        assert self.program.run("one", second="2", backend=backend)["said"] == "2"
        state = self.program.bind(second="bound").run("one", backend=backend)
        assert state["said"] == "BOUND" and state.ret_value == "returned"
        assert repr(state) == "ProgramState(one bound BOUND)"

    def test_sampling_parameters_are_defaults_of_every_gen(self) -> None:
        backend = ScriptedBackend(echo, template="default")
        self.program.run("one", max_new_tokens=5, top_p=0.9, top_k=7, backend=backend).sync()
        # `temperature` is an argument of the program, so `run` does not take it for itself.
        expected = SamplingParams(max_new_tokens=5, top_p=0.5, top_k=7, temperature=1.0)
        assert backend.params == [expected]

    @pytest.mark.parametrize(
        ("args", "named", "message"),
        [
            ((), {}, "needs a value for first"),
            (("1", "2", 3, "4"), {}, "takes 3 arguments; got 4"),
            (("1",), {"third": 3}, "no argument 'third', and it is no sampling parameter"),
        ],
    )
    def test_what_does_not_fit_is_named(self, args: tuple[object, ...], named: dict[str, object], message: str) -> None:
        with pytest.raises(TypeError, match=message):
            self.program.run(*args, backend=ScriptedBackend(echo), **named)

    def test_a_program_begins_with_s(self) -> None:
        with pytest.raises(TypeError, match='must be "s"'):
            sgl.function(lambda state: None)

    def test_no_backend(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sgl.settings, "default_backend", None)
        assert sgl.flush_cache() is False
        with pytest.raises(ValueError, match="set_default_backend"):
            self.program.run("one")


class TestBatch:
    @sgl.function
    def program(s: sgl.ProgramState, word: str) -> None:
        s += LONG
        s += word + " " + sgl.gen("said")

    def test_results_have_the_order_of_the_arguments(self) -> None:
        words = [f"word{i}" for i in range(300)]
        backend = ScriptedBackend(echo)
        states = self.program.run_batch([{"word": word} for word in words], backend=backend, num_threads=7)
        assert [state["said"] for state in states] == [word.upper() for word in words]

    def test_the_common_prefix_is_cached_once(self) -> None:
        backend = ScriptedBackend(echo)
        self.program.run_batch([["a"], ["b"]], backend=backend)
        assert backend.prefixes == [LONG]
        self.program.run_batch([["a"]], backend=backend)
        assert backend.prefixes == [LONG]

    def test_a_generator_does_not_run_everything_ahead(self) -> None:
        backend = ScriptedBackend(echo)
        coming = self.program.run_batch(
            [{"word": str(i)} for i in range(100)], backend=backend, num_threads=2, generator_style=True
        )
        assert next(iter(coming))["said"] == "0"
        coming.close()  # type: ignore[attr-defined]  # a generator
        assert len(backend.prompts) <= 5

    @pytest.mark.parametrize("runs", [[["a"], ["a", "b"]], [{"word": "a"}, {"wort": "b"}], [["a"], []]])
    def test_a_set_that_does_not_fit_is_refused_before_anything_runs(self, runs: list[list[str]]) -> None:
        backend = ScriptedBackend(echo)
        with pytest.raises(TypeError):
            self.program.run_batch(runs, backend=backend)
        assert not backend.prompts

    def test_an_empty_batch(self) -> None:
        assert self.program.run_batch([], backend=ScriptedBackend(echo)) == []


class TestRoles:
    @pytest.mark.parametrize("style", ["expressions", "contexts", "marks"])
    def test_three_ways_to_write_a_conversation(self, style: str) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            if style == "expressions":
                s += sgl.system("Be kind.") + sgl.user("Hello there")
                s += sgl.assistant(sgl.gen("said"))
            elif style == "contexts":
                s.system("Be kind.")
                with s.user():
                    s += "Hello there"
                with s.assistant():
                    s += sgl.gen("said")
            else:
                s += sgl.system_begin() + "Be kind." + sgl.system_end() + sgl.user_begin() + "Hello there"
                s += sgl.user_end() + sgl.assistant_begin() + sgl.gen("said") + sgl.assistant_end()

        state = program.run(backend=ScriptedBackend(["Hi."]))
        assert state.messages() == [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello there"},
            {"role": "assistant", "content": "Hi."},
        ]
        assert state.text() == (
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHello there<|im_end|>\n"
            "<|im_start|>assistant\nHi.<|im_end|>\n"
        )

    def test_the_format_s_stop_strings_end_an_answer(self) -> None:
        backend = ScriptedBackend(["a", "b"])

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += sgl.gen("x", stop="one") + sgl.gen("y", stop=["one", "two"])

        program.run(backend=backend).sync()
        assert [params.stop for params in backend.params] == [["one", "<|im_end|>"], ["one", "two", "<|im_end|>"]]

    def test_a_default_system_message(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += sgl.user("Hello")

        state = program.run(backend=ScriptedBackend([], template="qwen"))
        assert [message["role"] for message in state.messages()] == ["system", "user"]

    def test_messages_do_not_nest(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += sgl.user_begin() + sgl.assistant_begin()

        assert "cannot begin inside" in str(program.run(backend=ScriptedBackend([])).error())


class TestForks:
    def test_forks_go_on_from_the_same_text_at_the_same_time(self) -> None:
        meeting = threading.Barrier(3, timeout=PATIENCE_S)

        def answer(prompt: Prompt, params: SamplingParams) -> str:
            meeting.wait()
            return echo(prompt, params)

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "Begin. "
            forks = s.fork(3)
            forks += lambda i: f"fork{i} "
            forks += sgl.gen("said")
            forks[1] += " more"
            forks.join()

        backend = ScriptedBackend(answer)
        state = program.run(backend=backend)
        assert state["said"] == ["FORK0", "FORK1", "FORK2"]
        assert state.text() == "Begin. "
        assert backend.commits == ["Begin. "]

    def test_joined_text(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "Begin. "
            forks = s.fork(2)
            forks += ["one ", "two "]
            forks += sgl.gen("said")
            forks.join("concate_and_append")

        assert program.run(backend=ScriptedBackend(echo)).text() == "Begin. one ONEtwo TWO"

    def test_a_copy(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "Begin "
            with s.copy() as copied:
                copied += sgl.gen("said")

        state = program.run(backend=ScriptedBackend(echo))
        assert state["said"] == ["BEGIN"] and state.text() == "Begin "

    def test_a_variable_of_another_state_is_text(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            (fork,) = s.fork(1)
            fork += "inner " + sgl.gen("said")
            s += "It said " + fork["said"]

        assert program.run(backend=ScriptedBackend(echo)).text() == "It said INNER"

    @pytest.mark.parametrize("size", [0, -1])
    def test_no_forks_at_all(self, size: int) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s.fork(size)

        with pytest.raises(ValueError, match="at least 1"):
            program.run(backend=ScriptedBackend([]))


class TestVariables:
    def test_scopes_and_sets(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            with s.var_scope("all"):
                s += "one " + sgl.gen("said") + " two"
            s["mine"] = 5

        state = program.run(backend=ScriptedBackend(echo))
        assert state["all"] == "one ONE two" and state["mine"] == 5 and "said" in state
        assert state.get_meta_info("said") == {"of": "one "}
        assert state.get_meta_info("mine") is None
        with pytest.raises(KeyError):
            state["nothing"]

    def test_whether_there_is_a_variable_is_known_when_its_expression_has_run(self) -> None:
        go = threading.Event()

        def wait(prompt: Prompt, params: SamplingParams) -> str:
            assert go.wait(PATIENCE_S)
            return "said"

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "one " + sgl.gen("said")

        state = program.run(backend=ScriptedBackend(wait))
        found: list[bool] = []
        asking = threading.Thread(target=lambda: found.append("said" in state))
        asking.start()
        assert "nothing" not in state and not found
        go.set()
        asking.join(PATIENCE_S)
        assert found == [True]

    def test_a_variable_is_waited_for_no_longer_than_asked(self) -> None:
        go = threading.Event()
        backend = ScriptedBackend(lambda prompt, params: str(go.wait(PATIENCE_S)))
        state = sgl.function(lambda s: s.__iadd__(sgl.gen("said"))).run(backend=backend)
        with pytest.raises(TimeoutError, match="'said'"):
            state.get_meta_info("said", timeout=0.01)
        go.set()
        assert state["said"] == "True"

    def test_thoughts_are_separated(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += sgl.user("Why?")
            s += sgl.assistant(sgl.separate_reasoning(sgl.gen("said"), model_type="qwen3"))

        state = program.run(backend=ScriptedBackend(["<think>Hm.</think>So."]))
        assert (state["said"], state["said_reasoning_content"]) == ("So.", "Hm.")
        assert state.messages()[-1]["content"] == "So."

    def test_an_error_ends_the_program_and_says_so(self) -> None:
        def answer(prompt: Prompt, params: SamplingParams) -> str:
            raise RuntimeError("no more tokens")

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "Begin " + sgl.gen("said")
            s += "never" + sgl.gen("later")

        state = program.run(backend=ScriptedBackend(answer))
        with pytest.raises(sgl.ProgramError, match="'later' has no value: no more tokens"):
            state["later"]
        assert state.text() == "Begin " and isinstance(state.error(), RuntimeError)

    def test_only_text_and_expressions_are_added(self) -> None:
        with pytest.raises(TypeError, match="got NoneType"):
            sgl.function(lambda s: s.__iadd__(None)).run(backend=ScriptedBackend([]))


class TestStreams:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "one " + sgl.gen("first") + " two " + sgl.gen("second")

    def test_text_and_variables_come_in_pieces(self) -> None:
        state = self.program.run(backend=ScriptedBackend(echo), stream=True)
        assert "".join(state.text_iter()) == "one ONE two TWO"
        assert "".join(state.text_iter("second")) == "TWO"

    def test_a_stream_waits_for_no_more_than_a_piece(self) -> None:
        seen: list[str] = []

        class Slow(ScriptedBackend):
            def generate_stream(self, prompt: Prompt, params: SamplingParams):  # type: ignore[no-untyped-def]
                for piece in ("a", "b", "c"):
                    yield piece, {}
                    # The next piece comes only when the reader has had this one.
                    while not any(text.endswith(piece) for text in seen):
                        read.wait(PATIENCE_S)
                        read.clear()

        read = threading.Event()
        state = sgl.function(lambda s: s.__iadd__(sgl.gen("said"))).run(backend=Slow([]), stream=True)
        for piece in state.text_iter("said"):
            seen.append(piece)
            read.set()
        assert seen == ["a", "b", "c"]

    def test_in_an_event_loop(self) -> None:
        async def read() -> list[tuple[str, object]]:
            state = self.program.run(backend=ScriptedBackend(echo), stream=True)
            return [pair async for pair in state.text_async_iter("second", return_meta_data=True)]

        pairs = asyncio.run(read())
        assert "".join(piece for piece, _ in pairs) == "TWO"
        assert {str(meta) for _, meta in pairs} == {"{'of': 'one ONE two '}"}

    def test_whole_without_a_stream(self) -> None:
        assert list(self.program.run(backend=ScriptedBackend(echo)).text_iter("second")) == ["TWO"]

    def test_a_program_that_raises_ends_its_stream(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += "Begin"
            raise LookupError("lost")

        state = program.run(backend=ScriptedBackend([]), stream=True)
        with pytest.raises(LookupError, match="lost"):
            list(state.text_iter())

    def test_no_stream_is_complete_before_its_error_is_known(self) -> None:
        """A reader who looks at that moment would take what there is for the whole text."""
        news: list[tuple[bool, Exception | None]] = []

        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            inside = s.interpreter
            inside.listen(lambda: news.append((inside.progress(None)[1], inside._error)))
            raise LookupError("lost")

        with pytest.raises(LookupError, match="lost"):
            list(program.run(backend=ScriptedBackend([]), stream=True).text_iter())
        assert [error is not None for complete, error in news if complete] == [True]


class TestSpeculation:
    FORM = ("Name:", "\nJob:")

    def chat(self, backend: ScriptedBackend, **options: bool) -> sgl.ProgramState:
        @sgl.function(num_api_spec_tokens=64)
        def program(s: sgl.ProgramState) -> None:
            s += sgl.user("Make somebody up.")
            s += sgl.assistant(
                self.FORM[0] + sgl.gen("name", stop="\n") + self.FORM[1] + sgl.gen("job", stop="\n", temperature=1.0)
            )

        return program.run(backend=backend, **options)

    def test_one_request_for_a_whole_message(self) -> None:
        backend = ScriptedBackend(["Name: Ada\nJob: mathematician\nBye"], chat=True)
        state = self.chat(backend)
        assert (state["name"], state["job"]) == (" Ada", " mathematician")
        assert state.messages()[-1]["content"] == "Name: Ada\nJob: mathematician"
        assert len(backend.prompts) == 1 and backend.params[0].max_new_tokens == 64

    def test_an_answer_of_another_form_is_asked_for_again(self) -> None:
        backend = ScriptedBackend(["I am Ada.", "Name: Ada\nJob: none"], chat=True)
        assert self.chat(backend)["job"] == " none"

    def test_no_answer_of_that_form(self) -> None:
        backend = ScriptedBackend(["I am Ada."] * 3, chat=True)
        with pytest.warns(UserWarning, match="3 answers did not have the form"):
            state = self.chat(backend)
            assert state["name"] == ""

    def test_streams_are_refused(self) -> None:
        with pytest.raises(ValueError, match="stream=True"):
            list(self.chat(ScriptedBackend([], chat=True), stream=True).text_iter())

    def test_text_that_goes_on_as_the_program_does_is_used(self) -> None:
        backend = ScriptedBackend([" Ada\nJob: mathematician\nBye"])

        @sgl.function(num_api_spec_tokens=64)
        def program(s: sgl.ProgramState) -> None:
            s += "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

        state = program.run(backend=backend)
        assert (state["name"], state["job"]) == (" Ada", " mathematician")
        assert len(backend.prompts) == 1

    def test_text_that_goes_on_otherwise_is_dropped(self) -> None:
        backend = ScriptedBackend([" Ada\nAge: 36", " mathematician"])

        @sgl.function(num_api_spec_tokens=64)
        def program(s: sgl.ProgramState) -> None:
            s += "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

        assert program.run(backend=backend)["job"] == " mathematician"
        assert backend.prompts[1].text == "Name: Ada\nJob:"

    def test_without_it_text_before_a_generation_is_refused_by_chat_models(self) -> None:
        @sgl.function
        def program(s: sgl.ProgramState) -> None:
            s += sgl.user("Hello")
            s += sgl.assistant("Well, " + sgl.gen("said"))

        assert "must come first" in str(program.run(backend=ScriptedBackend([], chat=True)).error())


class TestTracing:
    @sgl.function
    def program(s: sgl.ProgramState, question: str) -> None:
        s += sgl.system(LONG)
        s += sgl.user("Question: " + question)
        s += sgl.assistant(sgl.gen("said"))

    def test_the_prefix_ends_at_the_first_argument(self) -> None:
        backend = ScriptedBackend(echo)
        self.program.cache(backend)
        assert backend.prefixes == [f"<|im_start|>system\n{LONG}<|im_end|>\n<|im_start|>user\nQuestion: "]

    def test_bound_arguments_are_part_of_it(self) -> None:
        backend = ScriptedBackend(echo)
        self.program.bind(question="Why?").cache(backend)
        assert backend.prefixes[0].endswith("Question: Why?<|im_end|>\n<|im_start|>assistant\n")

    @pytest.mark.parametrize("use", ["format", "truth", "length", "attribute"])
    def test_a_program_that_uses_a_value_ends_its_prefix_there(self, use: str) -> None:
        @sgl.function
        def program(s: sgl.ProgramState, word: str) -> None:
            s += LONG
            if use == "format":
                s += f"{word}"
            elif use == "truth":
                s += "yes" if word else "no"
            elif use == "length":
                s += "x" * len(word)
            else:
                s += word.upper()

        backend = ScriptedBackend(echo)
        program.run_batch([["a"], ["b"]], backend=backend)
        assert backend.prefixes == [LONG]

    def test_a_whole_trace(self) -> None:
        @sgl.function
        def inner(s: sgl.ProgramState) -> None:
            s += "inside" + sgl.gen("x")

        @sgl.function
        def outer(s: sgl.ProgramState, word: str) -> None:
            inner()
            s += word + sgl.gen("said") + s["said"]
            s.fork(2)

        traced = outer.trace(word="given", backend=ScriptedBackend(echo))
        assert [type(node).__name__ for node in traced.nodes] == ["Text", "Gen", "Argument"]
        assert len(traced.children) == 3 and traced.children[0].prefix == "inside"


class TestTypes:
    @pytest.mark.parametrize(
        ("dtype", "regex", "stops"),
        [(int, r"[-+]?[0-9]+[ \n]*", [" ", "\n"]), ("bool", "(True|False)", None), (str, '\\"[\\w\\d\\s]*\\"', None)],
    )
    def test_a_type_is_a_regular_expression(self, dtype: type | str, regex: str, stops: list[str] | None) -> None:
        typed = SamplingParams(dtype=dtype).typed()
        assert (typed.regex, typed.stop, typed.dtype) == (regex, stops, None)

    def test_what_no_type_is_allowed_beside(self) -> None:
        with pytest.raises(ValueError, match="dtype must be int, float, bool or str; got 'list'"):
            sgl.gen("x", dtype=list)
        with pytest.raises(ValueError, match="dtype and regex"):
            SamplingParams(dtype=int, regex="a").typed()

    def test_choices_are_checked_when_they_are_given(self) -> None:
        with pytest.raises(ValueError, match="non-empty list"):
            sgl.select("x", [])
