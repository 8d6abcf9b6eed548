"""Scores, files of answers, and the text put together again from an OpenAI message."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mysglang.bench.refused import Failed, Refused
from mysglang.eval import engine_runner, report, tiny
from mysglang.eval.exam import Item, ToolCall, Turn, answer_text
from mysglang.eval.report import Scored
from mysglang.eval.url_runner import message_text

RESULTS = [Scored("a", "p1", "x", "x"), Scored("a", "p2", "x", "y"), Scored("b", "p3\u2028", "ü", "ü")]


def test_scores_by_task_and_in_total() -> None:
    assert report.scores(RESULTS) == {"a": 0.5, "b": 1.0}
    assert report.total(RESULTS) == pytest.approx(2 / 3)
    assert report.table(RESULTS).splitlines()[-1].split()[:2] == ["total", "66.7"]


def test_answers_come_back_from_their_file(tmp_path: Path) -> None:
    report.save(RESULTS, tmp_path / "a")
    assert report.load(tmp_path / "a") == RESULTS


def test_compare_fails_below_what_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report.save(RESULTS, tmp_path / "a")
    report.save([*RESULTS[:2], Scored("b", "p3\u2028", "ü", "u")], tmp_path / "b")
    files = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert tiny.main(["--compare", *files]) == 0
    assert tiny.main(["--compare", *files, "--at-least", "0.99"]) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"agreement": pytest.approx(2 / 3)}


def test_different_prompts_cannot_be_compared() -> None:
    with pytest.raises(ValueError, match="different prompts"):
        report.agreement(RESULTS, RESULTS[:1])


def test_mistakes_and_a_missing_server_get_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"answer": 1}')
    answers = str(tmp_path / "answers")
    report.save([], Path(answers))
    with pytest.raises(Failed, match="/nowhere cannot be read: No such file"):
        tiny.main(["--compare", answers, "/nowhere"])
    with pytest.raises(Failed, match="other does not hold answers that --save-answers wrote"):
        tiny.main(["--compare", answers, str(tmp_path / "other")])
    with pytest.raises(Failed, match="/nowhere/x cannot be written: No such file"):
        report.save([], Path("/nowhere/x"))
    with pytest.raises(Refused, match="--url 'gpu7:30000' is not an address such as http://"):
        tiny.main(["--per-task", "1", "--tasks", "copy", "--url", "gpu7:30000"])
    # No program listens on port 1.
    with pytest.raises(Failed, match=r"no server answers at http://127.0.0.1:1/v1/chat/completions \("):
        tiny.main(["--per-task", "1", "--tasks", "copy", "--url", "http://127.0.0.1:1"])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--transformers", "--page-size", "16"], "--page-size"),
        (["--url", "http://127.0.0.1:1", "--page-size", "16"], "--page-size"),
        (["--url", "http://127.0.0.1:1", "--dtype", "float32"], "--dtype"),
        (["--transformers", "--dtype", "half"], "--dtype"),
        (["--batch-size", "4"], "--batch-size"),
    ],
)
def test_an_option_of_another_runner_is_refused(given: list[str], named: str) -> None:
    with pytest.raises(Refused, match=named):
        tiny.main(given)


def test_the_engine_runs_in_the_dtype_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def answers(items: Sequence[Item], flags: list[str]) -> Iterator[str]:
        asked.append(flags)
        return iter([""] * len(items))

    monkeypatch.setattr(engine_runner, "answers", answers)
    tiny.main(["--per-task", "1", "--tasks", "copy", "--dtype", "bfloat16", "--", "--page-size", "16"])
    assert asked == [["--page-size", "16", "--dtype", "bfloat16"]]


@pytest.mark.parametrize(
    "turn",
    [
        Turn("assistant", "Hello!"),
        Turn("assistant", "4", thought="2 + 2 is 4."),
        Turn("assistant", "", (ToolCall("clock", {"city": "Köln", "n": 3}), ToolCall("clock", {}))),
        Turn("assistant", "", (ToolCall("clock", {}),), thought="I should call clock."),
    ],
)
def test_a_parsed_message_becomes_the_models_text(turn: Turn) -> None:
    calls = [{"function": {"name": c.name, "arguments": json.dumps(c.arguments)}} for c in turn.calls]
    parsed = {"content": turn.content or None, "reasoning_content": turn.thought or None, "tool_calls": calls or None}
    assert message_text(parsed) == answer_text(turn, True)
    assert message_text({"content": answer_text(turn, True)}) == answer_text(turn, True)
