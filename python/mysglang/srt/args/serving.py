"""Options of the HTTP server: its address, access to it, and the form of answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from mysglang.srt.args.field import arg
from mysglang.srt.args.parsers import REASONING_PARSERS, CompletionTemplateName, ToolCallParser
from mysglang.srt.errors import ConfigError

DefaultsSource = Literal["model", "openai"]

UnknownFields = Literal["report", "error"]
"""How a request with a field that this server does not know is handled: answered, or refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingArgs:
    """Address, API keys, TLS, parsers, processes and time limits."""

    host: str = arg("127.0.0.1", help="Address to listen on. 0.0.0.0 or ::, every interface; set an API key then.")
    port: int = arg(30000, at_least=0, at_most=65535, help="Port to listen on. 0: a free port, which the start prints.")
    api_key: str | None = arg(
        None,
        help="Key that clients must send as `Authorization: Bearer KEY`. Other users of the machine can see it in "
        "the list of processes; --api-key-file avoids that.",
    )
    api_key_file: str | None = arg(None, help="File with API keys, one per line. Lines that begin with # are comments.")
    admin_api_key: str | None = arg(
        None,
        help="Key for routes that change the server, such as weight updates and pausing. Without it these routes "
        "are closed.",
    )
    share_cache_between_keys: bool = arg(
        False,
        help="Let requests with different API keys share cached prefixes. Faster for common prompts, but a client "
        "can measure whether another key sent the same prompt.",
    )
    ssl_certfile: str | None = arg(None, help="File with the certificate chain in PEM. The server then speaks HTTPS.")
    ssl_keyfile: str | None = arg(
        None, help="File with the certificate's private key in PEM. Required with --ssl-certfile."
    )
    ssl_keyfile_password: str | None = arg(None, help="Password of the private key.")
    ssl_ca_certs: str | None = arg(
        None,
        help="File with certificate authorities in PEM. Clients must then present a certificate that one of them "
        "signed.",
    )
    cors_allow_origins: tuple[str, ...] = arg(
        (), help="Web sites (https://host) whose pages may call this server from a browser. *: all."
    )
    fastapi_root_path: str = arg("", help="Path under which a proxy publishes this server, such as /models/tiny.")
    disable_playground: bool = arg(
        False, help="Serve no web page at / and /playground. The routes below /playground are absent, too."
    )
    served_model_name: str | None = arg(None, help="Name of the model in the API. If unset, the value of --model-path.")
    served_model_aliases: tuple[str, ...] = arg((), help="More names under which requests may ask for the model.")
    chat_template: str | None = arg(None, help="File with a Jinja chat template, instead of the tokenizer's own.")
    completion_template: CompletionTemplateName = arg(
        "auto",
        help="Marks for requests with a `suffix` (fill in the middle). auto: the family whose marks the tokenizer has.",
    )
    tool_call_parser: ToolCallParser = arg(
        "auto",
        help="Format in which the model writes tool calls. auto: as its chat template shows them. none: calls stay"
        " in the text.",
    )
    reasoning_parser: str | None = arg(
        None,
        help="Format in which the model writes its thoughts, which the server then reports apart from the answer. "
        f"Values: {', '.join(REASONING_PARSERS)}, or two tags as <start>...<end>. If unset, thoughts stay in the text, "
        "except for the embedded model.",
    )
    sampling_defaults: DefaultsSource = arg(
        "model",
        help="Sampling parameters of requests that give none. model: from the model's generation config. openai: "
        "OpenAI's defaults.",
    )
    unknown_fields: UnknownFields = arg(
        "report",
        help="What happens to a request with an unknown field. report: it is answered, and the field is named in "
        "the log and in the header x-ignored-fields. error: it gets a 400.",
    )
    strict_max_tokens: bool = arg(
        False,
        help="Refuse requests whose prompt and max_tokens together exceed the context, instead of cutting max_tokens.",
    )
    strict_model_name: bool = arg(
        False, help="Answer 404 to requests that ask for another model name, instead of serving them."
    )
    enable_streaming_session: bool = arg(
        False, help="No effect; accepted for compatibility with SGLang. Every session may stream."
    )
    enable_custom_logit_processor: bool = arg(
        False,
        help="No effect; accepted for compatibility with SGLang. Requests may name a processor of the server "
        "(--logit-processor), but never send code.",
    )
    enable_mis: bool = arg(
        False, help="No effect; accepted for compatibility with SGLang. /v1/score always takes several items."
    )
    enable_cache_report: bool = arg(False, help="Report cached prompt tokens in the `usage` of answers.")
    stream_interval: int = arg(
        1, at_least=1, help="Tokens between two frames of a stream. Raise it to save CPU time when many streams run."
    )
    incremental_streaming_output: bool = arg(
        False, help="Let each frame of a native stream (/generate) carry only the new text, instead of all text so far."
    )
    tokenizer_worker_num: int = arg(
        1,
        at_least=1,
        at_most=64,
        help="HTTP front processes. Raise it if one process uses a whole core for tokenizing and streaming.",
    )
    detokenizer_worker_num: int = arg(
        1,
        at_least=1,
        at_most=64,
        help="Processes that turn tokens into text. Raise it if one process uses a whole core.",
    )
    skip_server_warmup: bool = arg(False, help="Skip the warm-up request at start.")
    write_timeout: float = arg(
        30.0,
        at_least=0.1,
        help="Seconds after which a client that does not read its answer is disconnected and its request ended.",
    )
    read_timeout: float = arg(
        30.0,
        at_least=0.1,
        help="Seconds within which the head of a request must arrive, and each further 256 KiB of its body. A "
        "slower request gets a 408.",
    )
    drain_timeout: float = arg(
        10.0,
        at_least=0,
        help="Seconds that open requests may take to end after SIGTERM or Ctrl-C. A second signal ends the server "
        "at once. Set it to the length of your longest answers.",
    )

    @property
    def has_keys(self) -> bool:
        """True if clients need a key."""
        return bool(self.api_key) or self.api_key_file is not None

    @property
    def keeps_keys_apart(self) -> bool:
        """True if each API key has a prefix cache of its own: with several keys, unless sharing is allowed."""
        return not self.share_cache_between_keys and len(set(self.keys())) > 1

    def keys(self) -> tuple[str, ...]:
        """Returns every API key of clients. The key file is read again at each call.

        Raises ConfigError if the file has no key any more: without that, a file that is removed while the model loads
        would leave the server open.
        """
        named = () if not self.api_key else (self.api_key,)
        if self.api_key_file is None:
            return named
        try:
            return named + read_keys(self.api_key_file)
        except ValueError as error:
            raise ConfigError(f"--api-key-file {self.api_key_file}: {error}.") from None

    def key_complaint(self) -> str | None:
        """Returns an error message if the key file cannot be used, or None."""
        try:
            self.keys()
        except ConfigError as error:
            return str(error)
        return None


def read_keys(path: str) -> tuple[str, ...]:
    """Returns the keys in a file, one on each line, lines that begin with # left out. Raises ValueError if there are
    none.
    """
    file = Path(path)
    if file.exists() and not file.is_file():
        # Each process of a server reads the file, and a pipe gives its content once.
        raise ValueError("it is not a regular file")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    except OSError:
        lines = []
    keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
    if not keys:
        raise ValueError("there is no such file, or it contains no key")
    return keys
