"""From an item to the text the model reads: the chat template once more, in Python and fast.

`assets/tiny/chat_template.jinja` is the truth; a unit test holds the two equal. Training renders millions of items
here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mysglang.eval.exam import Item, answer_text, compact_json

END = "<|im_end|>"
THINK_SIGNAL = "Think first, inside <think></think>."
_TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to help the user. "
    "The functions are described inside <tools></tools>:\n<tools>"
)
_TOOLS_TAIL = (
    "\n</tools>\n\nTo call a function, answer with its name and arguments as JSON inside <tool_call></tool_call>."
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text; `learned` when the model itself writes it."""

    text: str
    learned: bool


def pieces(item: Item) -> list[Piece]:
    """The whole conversation. With thinking on, only the last answer is learned: earlier thoughts are dropped."""
    if item.raw:
        return [Piece(item.turns[0].content, False), Piece(item.turns[1].content + END, True)]
    out: list[Piece] = []
    head = _system_text(item)
    pending = f"<|im_start|>system\n{head}{END}\n" if head else ""
    last = len(item.turns) - 1
    for i, turn in enumerate(item.turns):
        if turn.role == "assistant":
            final = i == last
            out.append(Piece(pending + "<|im_start|>assistant\n", False))
            out.append(Piece(answer_text(turn, item.thinking and final) + END, final or not item.thinking))
            pending = "\n"
        elif turn.role == "tool":
            pending += f"<|im_start|>user\n<tool_response>\n{turn.content}\n</tool_response>{END}\n"
        else:
            pending += f"<|im_start|>{turn.role}\n{turn.content}{END}\n"
    return out


def prompt_text(item: Item) -> str:
    """The model's input before it writes the scored answer."""
    return "".join(piece.text for piece in pieces(item)[:-1])


def _system_text(item: Item) -> str:
    parts: Sequence[str] = (
        item.system,
        _TOOLS_HEAD + "".join("\n" + compact_json(tool) for tool in item.tools) + _TOOLS_TAIL if item.tools else "",
        THINK_SIGNAL if item.thinking else "",
    )
    return "\n\n".join(part for part in parts if part)
