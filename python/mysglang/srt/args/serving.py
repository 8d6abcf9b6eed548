"""How the server meets its clients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mysglang.srt.args.field import arg
from mysglang.srt.args.parsers import REASONING_PARSERS, ToolCallParser

DefaultsSource = Literal["model", "openai"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingArgs:
    """Address, access, and how answers look."""

    host: str = arg("127.0.0.1", help="Address to listen on; 0.0.0.0 or :: for everybody.")
    port: int = arg(30000, at_least=0, at_most=65535, help="Port to listen on; 0 takes a free one.")
    api_key: str | None = arg(None, help="What clients must send as `Authorization: Bearer KEY`.")
    admin_api_key: str | None = arg(None, help="The key for routes that change what the server does, instead.")
    fastapi_root_path: str = arg("", help="Path under which a proxy shows this server.")
    served_model_name: str | None = arg(None, help="The model's name in the API; its path if unset.")
    chat_template: str | None = arg(None, help="File of a Jinja chat template, instead of the tokenizer's.")
    tool_call_parser: ToolCallParser = arg(
        "auto", help="How the model writes tool calls; auto: as its chat template shows them."
    )
    reasoning_parser: str | None = arg(
        None,
        help="How the model writes its thoughts, which are then told apart from its answer: "
        f"{', '.join(REASONING_PARSERS)}, or two tags as <start>...<end>; auto for the embedded model.",
    )
    sampling_defaults: DefaultsSource = arg(
        "model", help="Sampling parameters of requests that bring none: the model's generation config, or OpenAI's."
    )
    enable_cache_report: bool = arg(False, help="Report cached prompt tokens in the usage of OpenAI answers.")
    stream_interval: int = arg(1, at_least=1, help="Tokens between two frames of a stream.")
    incremental_streaming_output: bool = arg(
        False, help="Frames of a native stream carry only what is new, not all so far."
    )
    skip_server_warmup: bool = arg(False, help="Be ready without a first request to oneself.")
    drain_timeout: float = arg(
        10.0,
        at_least=0,
        help="Seconds that open requests get to end after SIGTERM or Ctrl-C; a second signal ends them.",
    )
