"""Log-probabilities beside the text that their tokens made: in pieces and in one, without markers."""

from typing import Any

from mysglang.srt.entrypoints.openai.answer_parser import Thought
from mysglang.srt.entrypoints.openai.responses.events import OutputEvents, TokenShares
from mysglang.srt.function_call.core_types import NormalText


def token(text: str | bytes) -> dict[str, Any]:
    data = text if isinstance(text, bytes) else text.encode()
    return {"token": data.decode(errors="replace"), "bytes": list(data)}


def texts(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["token"] for entry in entries]


def test_markers_belong_to_nobody() -> None:
    shares = TokenShares()
    shares.add(map(token, ["Hm", ".", "</think>", "\n\n", "So"]))
    assert texts(shares.take("Hm.")) == ["Hm", "."]
    assert texts(shares.take("So")) == ["So"]
    shares.add(map(token, [" it", " is", "<end>"]))
    assert texts(shares.take(" it")) == [" it"]
    assert texts(shares.take(" is")) == [" is"]
    assert shares.take("") == []


def test_a_token_that_comes_in_two_pieces_counts_once() -> None:
    shares = TokenShares()
    shares.add(map(token, ["a", "bcd", "e"]))
    assert texts(shares.take("ab")) == ["a", "bcd"]
    assert texts(shares.take("c")) == []
    assert texts(shares.take("de")) == ["e"]


def test_half_characters() -> None:
    shares = TokenShares()
    shares.add(map(token, ["é".encode()[:1], "é".encode()[1:], "x"]))
    assert len(shares.take("éx")) == 3
    shares.add(map(token, [b"\xff", "y"]))
    assert len(shares.take("\ufffdy")) == 2


def test_a_message_has_those_of_its_own_text() -> None:
    output = OutputEvents(encrypt=False)
    events = output.say([Thought("Hm")], [token("Hm")])
    events += output.say([], [token("</think>")])
    events += output.say([NormalText("So ")], [token("So ")])
    events += output.say([NormalText("it")], [token("it"), token("<end>")])
    events += output.finish()
    told = [texts(event["logprobs"]) for event in events if event["type"].startswith("response.output_text")]
    assert told == [["So "], ["it"], ["So ", "it"]]
    assert texts(output.items[1]["content"][0]["logprobs"]) == ["So ", "it"]
