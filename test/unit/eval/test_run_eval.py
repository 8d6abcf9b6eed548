"""The evaluations over HTTP: questions out of files, verdicts on answers, and whole runs against a server that knows
what is right, or does not.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mysglang.bench.refused import Failed, Refused
from mysglang.cli.main import run
from mysglang.eval.examples import Task, TaskOptions, last_number
from mysglang.eval.sandbox import cuts_network, runs_well
from mysglang.eval.tasks import Gsm8k, HumanEval, Mgsm, Mmlu, chosen_letter, code_in

GSM8K = [{"question": f"What is {n} + {n}?", "answer": f"It is {n} twice.\n#### {2 * n:,}"} for n in (1, 2, 3, 700, 5)]
MMLU = "Question,A,B,C,D,Answer,Subject\nFirst?,1,2,3,4,B,maths\nSecond?,w,x,y,z,D,letters\n"
ADD = {
    "task_id": "t/0",
    "prompt": 'def add(a, b):\n    """The sum."""\n',
    "entry_point": "add",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(-1, 1) == 0\n",
}
RIGHT, WRONG = "```python\ndef add(a, b):\n    return a + b\n```", "```python\ndef add(a, b):\n    return a * b\n```"


def options(path: Path, examples: int | None = None, shots: int = 0, seed: int = 0) -> TaskOptions:
    return TaskOptions(path, examples, shots, seed)


def gsm8k(folder: Path) -> Path:
    path = folder / "gsm8k.jsonl"
    path.write_text("\n".join(map(json.dumps, GSM8K)) + "\n")
    return path


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


@pytest.mark.parametrize(
    ("text", "number"),
    [("so 12 and 1,234.5.", 1234.5), ("-3", -3), ("a 7b", 7), (".5", 0.5), ("none", None), ("1. 2. 3.", 3)],
)
def test_the_last_number(text: str, number: float | None) -> None:
    assert last_number(text) == number


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("Answer: B", "B"),
        ("A or B?\nThe answer is **C**.", "C"),
        ("Answer: A\nNo.\nAnswer: $D$", "D"),
        ("I think so.\n(C)", "C"),
        ("answer: b", "B"),
        ("A good question.", None),
        ("", None),
    ],
)
def test_the_letter_of_an_answer(text: str, letter: str | None) -> None:
    assert chosen_letter(text) == letter


def test_each_evaluation_asks_in_its_own_words(tmp_path: Path) -> None:
    tasks: list[tuple[Task, str, str, str]] = [
        (Mgsm(), "mgsm_en.tsv", "What is 1 + 1?\t2\n", "Solve this step by step."),
        (Mmlu(), "mmlu.csv", MMLU, "Which choice is right?"),
        (HumanEval(), "humaneval.jsonl", json.dumps(ADD), "Complete this Python function."),
    ]
    for task, name, text, words in tasks:
        assert words in task.examples(options(written(tmp_path, name, text)))[0].prompt


def test_gsm8k_puts_solved_questions_before_each(tmp_path: Path) -> None:
    first, *rest = Gsm8k().examples(options(gsm8k(tmp_path), shots=2))
    assert len(rest) == 2
    assert first.prompt.startswith(
        "Question: What is 1 + 1?\nAnswer: It is 1 twice.\n#### 2\n\nQuestion: What is 2 + 2?"
    )
    assert first.prompt.endswith("\n\nQuestion: What is 3 + 3?\nAnswer:")
    assert first.judge("So 6.").right and not first.judge("5").right and not first.judge("?").valid
    assert rest[0].judge("it is 1,400").right


def test_the_seed_draws_the_questions(tmp_path: Path) -> None:
    def drawn(seed: int) -> list[str]:
        return [example.prompt for example in Gsm8k().examples(options(gsm8k(tmp_path), 3, seed=seed))]

    assert drawn(1) == drawn(1) and len(drawn(1)) == 3
    assert len({tuple(drawn(seed)) for seed in range(5)}) > 1


def test_mgsm_reads_a_language_of_each_file(tmp_path: Path) -> None:
    written(tmp_path, "mgsm_de.tsv", "Was ist 2 + 2?\t4\nWas ist 3 + 3?\t6\n")
    written(tmp_path, "mgsm_en.tsv", "What is 2 + 2?\t4\nWhat is 3 + 3?\t6\n")
    found = Mgsm().examples(options(tmp_path, 1))
    assert [example.group for example in found] == ["de", "en"]
    [alone] = Mgsm().examples(options(tmp_path / "mgsm_en.tsv", 1))
    assert alone.prompt == found[1].prompt


def test_mmlu_shows_choices_and_counts_by_subject(tmp_path: Path) -> None:
    first, second = Mmlu().examples(options(written(tmp_path, "mmlu.csv", MMLU)))
    assert "First?\n\nA) 1\nB) 2\nC) 3\nD) 4\n" in first.prompt
    assert (first.group, second.group) == ("maths", "letters")
    assert first.judge("Answer: B").right and not first.judge("Answer: C").right
    assert not first.judge("I do not know").valid


def test_lines_within_a_question_are_kept(tmp_path: Path) -> None:
    table = MMLU.replace("First?", '"First?\nSecond\u2028line?"')
    first, _ = Mmlu().examples(options(written(tmp_path, "mmlu.csv", table)))
    assert "First?\nSecond\u2028line?\n\nA) 1\n" in first.prompt
    problem = {"question": "1 +\u20281?", "answer": "#### 2"}
    [only] = Gsm8k().examples(options(written(tmp_path, "a.jsonl", json.dumps(problem, ensure_ascii=False) + "\r\n")))
    assert "1 +\u20281?" in only.prompt


def test_humaneval_runs_the_tests(tmp_path: Path) -> None:
    path = tmp_path / "human.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(ADD).encode()))
    [example] = HumanEval().examples(options(path))
    assert example.judge(RIGHT).right and not example.judge(WRONG).right
    assert example.judge("    return a + b").right  # a body alone continues the prompt


def test_the_last_block_is_the_code() -> None:
    assert code_in("first\n```py\na\n```\nthen\n```python\nb\n```\n") == "b\n"
    assert code_in("no block") == "no block"


def test_limits_of_the_sandbox(tmp_path: Path) -> None:
    assert runs_well("import json", 20)
    assert not runs_well("raise ValueError", 20)
    assert not runs_well("raise SystemExit", 20)
    assert not runs_well("import time\ntime.sleep(60)", 0.5)
    assert not runs_well("x = bytearray(3 << 30)", 20)
    assert not runs_well("open('big', 'wb').write(b'0' * (8 << 20))", 20)
    assert runs_well("import os\nassert not set(os.environ) - {'LC_CTYPE'}, os.environ", 20)
    assert isinstance(cuts_network(), bool)


@pytest.mark.parametrize(
    ("task", "name", "text", "said"),
    [
        (Gsm8k(), "a.jsonl", "{", "line 1: it is not JSON"),
        (Gsm8k(), "a.jsonl", "[1]", "line 1: it is not a JSON object"),
        (Gsm8k(), "a.jsonl", '{"question": "x"}', "a line has no text under 'answer'"),
        (Gsm8k(), "a.jsonl", '{"question": "x", "answer": "no"}', "holds no number"),
        (Gsm8k(), "a.jsonl", "", "holds no question"),
        (Mmlu(), "a.csv", "Question,A,B\n", "these are missing: C, D, Answer"),
        (Mmlu(), "a.csv", MMLU.replace("B,maths", "E,maths"), "must be one of A, B, C and D; got 'E'"),
        (Mgsm(), "mgsm_en.tsv", "no tab\n", "with a tab between them"),
        (HumanEval(), "a.jsonl", '{"prompt": "x"}', "a line has no text under 'entry_point'"),
    ],
)
def test_a_file_that_is_no_such_evaluation(tmp_path: Path, task: Task, name: str, text: str, said: str) -> None:
    with pytest.raises(Failed, match=said):
        task.examples(options(written(tmp_path, name, text)))


@contextmanager
def answering(answer: Callable[[str], str | None]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server that gives these answers to prompts, and a 500 for None; its URL, and what it was sent."""
    sent: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            sent.append(body)
            chat = self.path == "/v1/chat/completions"
            text = answer(body["messages"][-1]["content"] if chat else body["prompt"])
            choice = {"message": {"content": text}} if chat else {"text": text}
            reply = json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}).encode()
            self.send_response(500 if text is None else 200)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def figures(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_a_run_of_gsm8k(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def solve(prompt: str) -> str:
        return "It is 6." if "3 + 3" in prompt.splitlines()[-2] else "I do not know."

    answers = tmp_path / "answers.jsonl"
    with answering(solve) as (url, sent):
        words = ["--num-shots", "2", "--parallel", "2", "--max-new-tokens", "9", "--save-answers", str(answers)]
        assert run(["eval", "gsm8k", "--data-path", str(gsm8k(tmp_path)), "--base-url", url, *words]) == 0
    found = figures(capsys)
    assert (found["examples"], found["failed"]) == (3, 0)
    assert (found["score"], found["invalid"]) == (pytest.approx(1 / 3), pytest.approx(2 / 3))
    assert {(body["temperature"], body["max_tokens"], tuple(body["stop"])) for body in sent} == {(0, 9, ("Question:",))}
    assert [json.loads(line)["right"] for line in answers.read_text().splitlines()] == [True, False, False]


def test_a_run_of_mmlu_by_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "mmlu.csv", MMLU)
    with answering(lambda prompt: "Answer: B") as (url, _):
        port = url.rpartition(":")[2]
        assert run(["eval", "--eval-name", "mmlu", "--data-path", str(path), "--port", port]) == 0
    found = figures(capsys)
    assert found["scores"] == {"letters": 0.0, "maths": 1.0} and found["score"] == 0.5


def test_a_run_of_humaneval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "human.jsonl", json.dumps(ADD))
    with answering(lambda prompt: RIGHT) as (url, _):
        words = ["eval", "humaneval", "--data-path", str(path), "--base-url", url]
        with pytest.raises(Refused, match="give --allow-code-execution"):
            run(words)
        assert run([*words, "--allow-code-execution"]) == 0
    found = figures(capsys)
    assert found["score"] == 1.0 and found["network_cut"] in (True, False)


def test_requests_that_fail_count_as_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with answering(lambda prompt: None if "3 + 3?" in prompt.splitlines()[-2] else "10") as (url, _):
        words = ["--num-shots", "2", "--base-url", url]
        assert run(["eval", "gsm8k", "--data-path", str(gsm8k(tmp_path)), *words]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out.splitlines()[-1])
    assert (found["failed"], found["score"]) == (1, pytest.approx(1 / 3))
    assert "1 request failed, the first with: status 500" in captured.err


def test_names_and_flags_that_are_not_there() -> None:
    with pytest.raises(Refused, match="'gsm9k' is not an evaluation; there are gsm8k, mmlu, mgsm, humaneval, tiny"):
        run(["eval", "gsm9k"])
    with pytest.raises(Refused, match="--repeat is an option of SGLang's tool"):
        run(["eval", "gsm8k", "--data-path", "x", "--repeat", "2"])
    with pytest.raises(Failed, match=r"missing\.jsonl cannot be read: No such file or directory"):
        run(["eval", "gsm8k", "--data-path", "missing.jsonl"])
