"""An item as the text a model is given, through the chat template of its folder.

Knows templates. Knows no server and no engine: a served model renders the same template by itself.
"""

from pathlib import Path

from mysglang.eval.tiny_world.items import Item
from mysglang.srt.args.resolve import EMBEDDED_MODEL
from mysglang.srt.parser.chat_template import ChatTemplate

TINY = EMBEDDED_MODEL


def chat_template(folder: Path = TINY) -> ChatTemplate:
    """The template of a model folder, in the server's own sandbox. Raises FileNotFoundError without one."""
    return ChatTemplate((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def prompt_text(template: ChatTemplate, item: Item) -> str:
    """The prompt of an item: its conversation up to the scored answer, or, for a raw item, its plain text."""
    if item.raw:
        return item.turns[0].content
    variables = {
        "messages": item.messages(),
        "tools": list(item.tools) or None,
        "enable_thinking": item.thinking,
        "add_generation_prompt": True,
    }
    return template.render(variables)
