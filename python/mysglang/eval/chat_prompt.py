"""An item as the text a model is given, through the chat template of its folder.

Knows templates. Knows no server and no engine: a served model renders the same template by itself.
"""

import json
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mysglang.eval.tiny_world.items import Item

TINY = Path(__file__).parents[1] / "assets" / "tiny"


def chat_template(folder: Path = TINY) -> Template:
    """The template of a model folder, with `tojson` as Hugging Face has it. Raises FileNotFoundError without one."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = _to_json
    return environment.from_string((folder / "chat_template.jinja").read_text(encoding="utf-8"))


def prompt_text(template: Template, item: Item) -> str:
    """The prompt of an item: its conversation up to the scored answer, or, for a raw item, its plain text."""
    if item.raw:
        return item.turns[0].content
    return template.render(
        messages=item.messages(),
        tools=list(item.tools) or None,
        enable_thinking=item.thinking,
        add_generation_prompt=True,
    )


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
