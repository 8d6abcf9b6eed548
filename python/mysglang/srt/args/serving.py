"""How the server meets its clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mysglang.srt.args.field import arg
from mysglang.srt.args.parsers import REASONING_PARSERS, CompletionTemplateName, ToolCallParser

DefaultsSource = Literal["model", "openai"]

UnknownFields = Literal["report", "error"]
"""What becomes of a request with a field that this server does not know: it is answered, or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingArgs:
    """Address, access, and how answers look."""

    host: str = arg("127.0.0.1", help="Address to listen on; 0.0.0.0 or :: for everybody.")
    port: int = arg(30000, at_least=0, at_most=65535, help="Port to listen on; 0 takes a free one.")
    api_key: str | None = arg(None, help="What clients must send as `Authorization: Bearer KEY`.")
    api_key_file: str | None = arg(
        None, help="File with API keys, one on each line. They do not appear in the list of processes."
    )
    admin_api_key: str | None = arg(
        None, help="The key for routes that change what the server does; an API key does not open them then."
    )
    share_cache_between_keys: bool = arg(
        False, help="Let requests with different API keys find each other's prompts in the prefix cache."
    )
    ssl_certfile: str | None = arg(None, help="File with the certificate chain in PEM; the server then speaks HTTPS.")
    ssl_keyfile: str | None = arg(None, help="File with the certificate's private key in PEM.")
    ssl_keyfile_password: str | None = arg(None, help="Password of the private key.")
    ssl_ca_certs: str | None = arg(
        None, help="Authorities in PEM: clients must then bring a certificate that one of them has signed."
    )
    cors_allow_origins: tuple[str, ...] = arg(
        (), help="Web sites (https://host) whose pages may use this server from a browser; * for all."
    )
    fastapi_root_path: str = arg("", help="Path under which a proxy shows this server.")
    served_model_name: str | None = arg(None, help="The model's name in the API; its path if unset.")
    served_model_aliases: tuple[str, ...] = arg((), help="Other names by which requests may ask for the model.")
    chat_template: str | None = arg(None, help="File of a Jinja chat template, instead of the tokenizer's.")
    completion_template: CompletionTemplateName = arg(
        "auto", help="How the model is asked for what comes before a `suffix`; auto: by the marks its tokenizer has."
    )
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
    unknown_fields: UnknownFields = arg(
        "report",
        help="Requests with a field that this server does not know: answer them and name the field in the log and in "
        "the header x-ignored-fields, or refuse them.",
    )
    strict_max_tokens: bool = arg(
        False,
        help="Refuse requests whose max_tokens do not fit behind their prompt, instead of ending the answer where the "
        "context is full.",
    )
    strict_model_name: bool = arg(
        False, help="Answer 404 to requests for a model by another name than the served one's, instead of serving them."
    )
    enable_streaming_session: bool = arg(False, help="No effect: sessions may always be streaming ones.")
    enable_custom_logit_processor: bool = arg(
        False,
        help="No effect: requests may always name a processor of the server (--logit-processor), and never bring code.",
    )
    enable_mis: bool = arg(False, help="No effect: /v1/score always takes several items in one request.")
    enable_cache_report: bool = arg(False, help="Report cached prompt tokens in the usage of OpenAI answers.")
    stream_interval: int = arg(1, at_least=1, help="Tokens between two frames of a stream.")
    incremental_streaming_output: bool = arg(
        False, help="Frames of a native stream carry only what is new, not all so far."
    )
    tokenizer_worker_num: int = arg(
        1, at_least=1, at_most=64, help="HTTP front processes; start more where one cannot take in all requests."
    )
    detokenizer_worker_num: int = arg(1, at_least=1, at_most=64, help="Processes that turn tokens into text.")
    skip_server_warmup: bool = arg(False, help="Skip the warm-up request at start.")
    write_timeout: float = arg(
        30.0,
        at_least=0.1,
        help="Seconds after which a client that takes nothing of what waits for it is cut off, and its request ended.",
    )
    read_timeout: float = arg(
        30.0,
        at_least=0.1,
        help="Seconds that the head of a request may take to arrive, and each 256 KiB of its body; then 408.",
    )
    drain_timeout: float = arg(
        10.0,
        at_least=0,
        help="Seconds that open requests get to end after SIGTERM or Ctrl-C; a second signal ends them.",
    )

    @property
    def has_keys(self) -> bool:
        """Whether clients need a key."""
        return bool(self.api_key) or self.api_key_file is not None

    @property
    def keeps_keys_apart(self) -> bool:
        """Whether each key has a prefix cache of its own: where there are several, unless they may share."""
        return not self.share_cache_between_keys and len(set(self.keys())) > 1

    def keys(self) -> tuple[str, ...]:
        """Every key of clients, read anew."""
        named = () if not self.api_key else (self.api_key,)
        return named + (() if self.api_key_file is None else read_keys(self.api_key_file))


def read_keys(path: str) -> tuple[str, ...]:
    """The keys in a file, one on each line, lines that begin with # left out; none if there is no such file."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
