"""`mysglang chat` in a terminal, with the embedded model: it calls a tool, reads the result, and answers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from fixtures.oracle import assert_quiet
from fixtures.server_process import ServerProcess, python_path
from fixtures.terminal import CTRL_D, Terminal

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def test_a_tool_call_is_shown_and_its_result_is_asked_for(tiny_server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    command = [sys.executable, "-m", "mysglang", "chat", "--tools", "tools.json", "--temperature", "0"]
    environment = os.environ | {"PYTHONPATH": python_path("python"), "MYSGLANG_BASE_URL": tiny_server.url}
    with Terminal(command, environment, str(tmp_path)) as terminal:
        terminal.expect("mysglang-tiny at ")
        terminal.expect("you> ")
        terminal.type("What is the weather in Paris?\r")
        terminal.expect('[tool call] get_weather({"city": "Paris"})')
        terminal.expect("get_weather returns> ")
        terminal.type('{"temperature": 21, "condition": "sunny"}\r')
        terminal.expect("21")
        terminal.expect("you> ")
        terminal.type("/save talk.json\r")
        terminal.expect("4 messages are in talk.json")
        messages = json.loads((tmp_path / "talk.json").read_text())
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]
        terminal.expect("you> ")
        terminal.type(CTRL_D)
        assert terminal.wait() == 0
    assert_quiet(tiny_server.url)
