"""Commands that ask a server, without a terminal: what they send, print and return. The server's processes are threads
of this process, and answers that a test lays out come from a scripted engine.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.patience import PATIENCE_S
from fixtures.scripted_engine import Step
from fixtures.scripted_server import scripted_server
from fixtures.threaded_children import threaded_server
from mysglang.bench.refused import Failed, Refused
from mysglang.cli.main import run
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.environ import API_KEY
from mysglang.srt.messages.outputs import Stop
from mysglang.srt.messages.requests import TokenizedGenerateReqInput

KEY = "key of its administrator"
GREEDY = {"temperature": 0, "max_new_tokens": 6}
PROMPT = "The capital of France is"
CALLS = [Step('<tool_call>\n{"name": "clock", "arguments": {"zone": "UTC"}}\n</tool_call>'), Step("", [2], Stop(2))]
TEMPLATE = """{{ tools }}{% for message in messages %}
{{ message.role }}: {{ message.content }}{{ message.tool_calls }}{% endfor %}
assistant: """
NOON = [Step("It is noon."), Step("", [2], Stop(2))]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with threaded_server(admin_api_key=KEY, max_total_tokens=8192) as found:
        yield found


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return capsys.readouterr().out.splitlines()


class TestChat:
    """`test_chat.py` has the terminal."""

    def chat(self, monkeypatch: pytest.MonkeyPatch, typed: str, *words: str, status: int = 0) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert run(["chat", *words]) == status

    def test_a_called_tool_is_answered_by_the_next_line(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        script, asked = [CALLS, NOON], list[TokenizedGenerateReqInput]()

        def say(request: TokenizedGenerateReqInput) -> list[Step]:
            asked.append(request)
            return script.pop(0)

        tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}
        (tmp_path / "tools.json").write_text(json.dumps([tool]))
        talk = tmp_path / "talk.json"
        with scripted_server(AppOptions(tool_call_parser="hermes"), say, template=TEMPLATE) as server:
            words = ("--base-url", server, "--tools", str(tmp_path / "tools.json"), "--stats")
            self.chat(monkeypatch, f"What time is it?\n12:00\n/save {talk}\n", *words)
        said = lines(capsys)
        assert '[tool call] clock({"zone": "UTC"})' in said and "It is noon." in said
        assert sum("tokens/s" in line for line in said) == len(asked) == 2
        question, call, result, answer = json.loads(talk.read_text())
        assert (question["role"], call["role"], answer["content"]) == ("user", "assistant", "It is noon.")
        assert result == {"role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "content": "12:00"}

    @pytest.mark.parametrize(
        ("text", "error", "message"), [("{", Refused, "is not JSON"), ("{}", Refused, "must hold a JSON list")]
    )
    def test_tools_that_are_no_list(self, tmp_path: Path, text: str, error: type[Exception], message: str) -> None:
        path = tmp_path / "tools.json"
        path.write_text(text)
        with pytest.raises(error, match=message):
            run(["chat", "--base-url", "http://127.0.0.1:9", "--tools", str(path)])

    def test_commands_and_answers_from_a_file(
        self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        talk = tmp_path / "talk.json"
        typed = [
            "/help",
            "/systm",
            "/system Be brief.",
            "What is the capital of France?",
            "/save",
            f"/save {talk}",
            f"/save {tmp_path / 'no' / 'folder'}",
            "/reset",
            f"/save {tmp_path / 'empty.json'}",
            "/system",
            "/quit",
            "never read",
        ]
        self.chat(monkeypatch, "\n".join(typed), "--base-url", url, "--temperature", "0", "--max-tokens", "8")
        said = "\n".join(lines(capsys))
        for words in ("did you mean /system?", "The system message is set.", "/save needs a file", "cannot be written"):
            assert words in said
        assert "2 messages" not in said and "3 messages are in" in said and "There is no system message." in said
        system, question, answer = json.loads(talk.read_text())
        assert system == {"role": "system", "content": "Be brief."} and question["role"] == "user"
        assert answer["content"] in said
        assert json.loads((tmp_path / "empty.json").read_text()) == [system]
        assert "never read" not in said

    def test_an_error_is_shown_and_its_question_forgotten(
        self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        talk = tmp_path / "talk.json"
        self.chat(monkeypatch, f"hello\n/save {talk}\n", "--base-url", url, "--top-p", "7", status=1)
        assert "error: the server answered 400" in capsys.readouterr().out
        assert json.loads(talk.read_text()) == []


class TestGenerate:
    def test_text_and_json_are_the_same_answer(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        asked = ["--base-url", url, "--temperature", "0", "--max-tokens", "6", "--seed", "1"]
        assert run(["generate", *asked, "--raw", PROMPT]) == 0
        written = capsys.readouterr().out
        assert written.startswith(" Paris") and written.endswith("\n")
        assert run(["generate", *asked, "--raw", "--json", PROMPT]) == 0
        assert json.loads(capsys.readouterr().out)["choices"][0]["text"].strip() == written.strip()

    def test_a_conversation(
        self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("What is the capital of France?"))
        asked = ["--base-url", url, "--system", "Be brief.", "--temperature", "0", "--max-tokens", "24"]
        assert run(["generate", *asked, "-"]) == 0
        assert "Paris" in capsys.readouterr().out

    def test_bytes_that_are_no_text(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8"))
        with pytest.raises(Failed, match="bytes that are not UTF-8 text"):
            run(["generate", "--base-url", url])

    def test_a_key_that_no_header_can_carry(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(API_KEY.name, "schlüssel")
        with pytest.raises(Refused, match="no HTTP header can carry"):
            run(["generate", "--base-url", url, "hello"])


class TestReplay:
    def record(self, url: str, path: Path, *, contents: bool) -> list[int]:
        """A file with a finished and an open request. The finished one's tokens."""
        body = {"text": PROMPT, "sampling_params": GREEDY}
        answer = httpx.post(f"{url}/generate", json=body, timeout=PATIENCE_S).json()
        found = {"output_ids": answer["output_ids"], "finish_reason": answer["meta_info"]["finish_reason"]}
        told = {"sampling_params": GREEDY, "prompts": [{"characters": len(PROMPT)}]}
        done: dict[str, Any] = {"started": 5.0, "open": False, **told}
        done["counts"] = [{"prompt_tokens": 5, "completion_tokens": 6}]
        waiting: dict[str, Any] = {"started": 4.0, "open": True, "counts": [], **told}
        if contents:
            done |= {"request": body, "answers": [found]}
        path.write_text("\n".join(map(json.dumps, [{"crash": "died"}, done, waiting])))
        return list(answer["output_ids"])

    def figures(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(lines(capsys)[-1])
        return {name: found[name] for name in ("answered", "failed", "compared", "equal")}

    def test_greedy_answers_are_compared(self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "dump.jsonl"
        self.record(url, path, contents=True)
        assert run(["replay", str(path), "--base-url", url, "--speed", "0"]) == 0
        assert self.figures(capsys) == {"answered": 2, "failed": 0, "compared": 1, "equal": 1}
        changed = path.read_text().replace('"output_ids": [', '"output_ids": [1, ')
        path.write_text(changed)
        assert run(["replay", str(path), "--base-url", url, "--speed", "1000"]) == 0
        assert self.figures(capsys) == {"answered": 2, "failed": 0, "compared": 1, "equal": 0}

    def test_without_contents_as_many_tokens_are_asked(
        self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "dump.jsonl"
        self.record(url, path, contents=False)
        assert run(["replay", str(path), "--base-url", url, "--speed", "0"]) == 0
        assert self.figures(capsys) == {"answered": 2, "failed": 0, "compared": 0, "equal": 0}
        assert run(["replay", str(path), "--base-url", url, "--speed", "0", "--only-open"]) == 0
        assert self.figures(capsys)["answered"] == 1

    def test_a_refused_request_is_counted_and_quoted(
        self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "dump.jsonl"
        bad = {"started": 1.0, "open": True, "request": {"text": "x", "sampling_params": {"top_p": 7}}}
        path.write_text(json.dumps(bad))
        assert run(["replay", str(path), "--base-url", url, "--speed", "0"]) == 1
        said = lines(capsys)
        assert "The first failure: status 400" in said[1] and "top_p" in said[1]

    @pytest.mark.parametrize(
        ("text", "message"),
        [("no json", "line 1: it is not JSON"), ("[1]", "line 1: it is no record"), ('{"crash": ""}', "no request")],
    )
    def test_a_file_of_something_else(self, tmp_path: Path, text: str, message: str) -> None:
        path = tmp_path / "dump.jsonl"
        path.write_text(text)
        with pytest.raises(Failed, match=message):
            run(["replay", str(path), "--base-url", "http://127.0.0.1:9"])


class TestProfile:
    def test_the_traces_are_named(self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--base-url", url, "--admin-api-key", KEY, "--no-cpu", "--no-gpu", "--output-dir", str(tmp_path)]
        load = ["--prompt", "One, two,", "--num-steps", "2", "--profile-prefix", "mine"]
        assert run(["profile", *words, *load]) == 0
        (path,) = lines(capsys)
        assert Path(path).exists() and Path(path).name.startswith("mine-")
        with pytest.raises(Refused, match="nothing is to be recorded"):
            run(["profile", *words, "--no-steps"])

    @pytest.mark.parametrize("prompt", ["", "word " * 9000])
    def test_a_prompt_that_is_refused_is_not_waited_for(self, url: str, tmp_path: Path, prompt: str) -> None:
        words = ["--base-url", url, "--admin-api-key", KEY, "--output-dir", str(tmp_path)]
        with pytest.raises(Failed, match="400"):
            run(["profile", *words, "--no-cpu", "--prompt", prompt, "--timeout", str(round(10 * PATIENCE_S))])

    def test_an_interrupted_recording_leaves_room_for_the_next(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        words = ["--base-url", url, "--admin-api-key", KEY, "--no-cpu", "--no-gpu", "--output-dir", str(tmp_path)]

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr("mysglang.cli.profile._files", interrupt)
            run(["profile", *words])
        assert run(["profile", *words, "--prompt", "One, two,"]) == 0

    def test_files_of_all_ranks_are_waited_for(self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        asked = list[int]()

        def wait(owner: object, folder: object, prefix: object, wanted: int, *_: object) -> None:
            asked.append(wanted)
            raise KeyboardInterrupt

        monkeypatch.setattr("mysglang.cli.profile.ApiClient.get", lambda *_: {"tp_size": 2, "pp_size": 3})
        monkeypatch.setattr("mysglang.cli.profile._wait", wait)
        with pytest.raises(KeyboardInterrupt):
            run(["profile", "--base-url", url, "--admin-api-key", KEY, "--output-dir", str(tmp_path)])
        assert asked == [2 * 6]

    def test_a_key_that_may_not(self, url: str, tmp_path: Path) -> None:
        with pytest.raises(Failed, match="401"):
            run(["profile", "--base-url", url, "--admin-api-key", "another", "--output-dir", str(tmp_path)])


class TestBenchServing:
    SMALL = ("--dataset-name", "random-ids", "--num-prompts", "4", "--random-input-len", "12", "--disable-tqdm")
    LENGTHS = ("--random-output-len", "4", "--random-range-ratio", "1")

    @pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat", "sglang --disable-stream"])
    def test_what_was_measured_is_what_was_asked(
        self, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], backend: str
    ) -> None:
        path = tmp_path / "out.jsonl"
        words = ["--base-url", url, "--output-file", str(path), "--output-details", "--backend", *backend.split()]
        assert run(["bench", "serving", *self.SMALL, *self.LENGTHS, *words]) == 0
        figures = json.loads(path.read_text())
        assert (figures["completed"], figures["failed"], figures["total_output_tokens"]) == (4, 0, 16)
        assert sum(figures["output_lens"]) == 16 and figures["errors"] == [""] * 4
        assert f"{'Total generated tokens:':<40} 16" in capsys.readouterr().out

    def test_a_refused_request_is_a_failure(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["--base-url", url, "--extra-request-body", '{"sampling_params": {"top_p": 7}}']
        with pytest.raises(Failed, match="a warm-up request failed: status 400"):
            run(["bench", "serving", *self.SMALL, *self.LENGTHS, *words])
        assert run(["bench", "serving", *self.SMALL, *self.LENGTHS, *words, "--warmup-requests", "0"]) == 1
        assert "4 requests failed, the first with: status 400" in capsys.readouterr().err
