"""AppOptions: what the HTTP application must know of the server's options and of its model, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mysglang.srt.args.serving import UnknownFields
from mysglang.srt.args.storage import StorageArgs
from mysglang.srt.configs.model_config import ModelConfig
from mysglang.srt.configs.pooling_config import PoolingConfig
from mysglang.srt.entrypoints.auth import is_loopback
from mysglang.srt.entrypoints.openai.files_desk import DeskOptions
from mysglang.srt.entrypoints.openai.sampling import SamplingDefaults
from mysglang.srt.entrypoints.openai.serving_base import ServingOptions
from mysglang.srt.entrypoints.owner import owner_name
from mysglang.srt.entrypoints.vertex import VertexRoutes
from mysglang.srt.server_args import ServerArgs

HEARTBEAT_LIMIT_S = 20.0
"""A scheduler beats about once a second, and is silent for one forward pass at most."""

SECRETS = frozenset({"api_key", "admin_api_key", "ssl_keyfile_password"})


def public_options(args: ServerArgs) -> dict[str, Any]:
    """Returns every option by its name, without the secret ones."""
    return {name: value for name, value in args.flat().items() if name not in SECRETS}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppOptions:
    """Options of the HTTP application. The defaults are those of a server with no option given."""

    served_model_name: str = "default"
    served_model_aliases: tuple[str, ...] = ()
    model_path: str = ""
    serving: ServingOptions = field(default_factory=ServingOptions)
    tool_call_parser: str | None = "auto"
    reasoning_parser: str | None = None
    grammar_backend: str | None = None
    api_keys: tuple[str, ...] = ()
    unknown_fields: UnknownFields = "report"
    strict_model_name: bool = False
    """True if requests for another model than the served one are refused."""
    cors_allow_origins: tuple[str, ...] = ()
    """Origins of other sites whose pages may use this server."""
    admin_key: str | None = None
    local_pages: bool = False
    """True if pages from any port of this machine may use this server, like pages of an allowed origin."""
    loopback_only: bool = False
    """True if requests must name this machine in their Host header."""
    strangers_may_ask: bool = False
    """True if other machines can reach the server, and need neither a key nor a certificate."""
    incremental_streaming_output: bool = False
    heartbeat_limit_s: float = HEARTBEAT_LIMIT_S
    playground: bool = True
    """True if there is a web page at / and /playground."""
    enable_metrics: bool = False
    """True if there is /metrics."""
    enable_trace: bool = False
    """True if the trace of each request's caller is recorded."""
    pooling: PoolingConfig | None = None
    """Pooling of a model that makes vectors or scores; None for one that generates."""
    desk: DeskOptions | None = None
    """Options of the file store; None if files are not supported."""
    vertex: VertexRoutes = field(default_factory=VertexRoutes)
    model_info: Mapping[str, Any] = field(default_factory=dict)
    server_info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def owners(self) -> frozenset[str]:
        """Names of the API keys that share what the server keeps; one empty name where no key is needed."""
        return frozenset(map(owner_name, self.api_keys)) or frozenset({""})

    @classmethod
    def from_args(cls, args: ServerArgs, model: ModelConfig) -> AppOptions:
        """Builds the options from resolved `args` and the config of the model that they name."""
        serving = args.serving
        model_path = args.model.model_path or ""
        name = serving.served_model_name or model_path
        return cls(
            served_model_name=name,
            served_model_aliases=serving.served_model_aliases,
            model_path=model_path,
            serving=ServingOptions(
                defaults=SamplingDefaults.choose(serving.sampling_defaults, model.generation_config),
                report_cached_tokens=serving.enable_cache_report,
                completion_template=serving.completion_template,
            ),
            tool_call_parser=serving.tool_call_parser,
            reasoning_parser=serving.reasoning_parser,
            grammar_backend=args.grammar.grammar_backend,
            api_keys=serving.keys(),
            unknown_fields=serving.unknown_fields,
            strict_model_name=serving.strict_model_name,
            cors_allow_origins=serving.cors_allow_origins,
            admin_key=serving.admin_api_key,
            local_pages=is_loopback(serving.host),
            # A request with a key is intentional, whatever host it names.
            loopback_only=is_loopback(serving.host) and not serving.has_keys,
            strangers_may_ask=not is_loopback(serving.host) and not serving.has_keys and serving.ssl_ca_certs is None,
            incremental_streaming_output=serving.incremental_streaming_output,
            heartbeat_limit_s=min(HEARTBEAT_LIMIT_S, args.observability.watchdog_timeout),
            playground=not serving.disable_playground,
            enable_metrics=args.observability.enable_metrics,
            enable_trace=args.observability.enable_trace,
            pooling=model.pooling,
            desk=_desk(args.storage),
            vertex=VertexRoutes.of_environment(),
            model_info=_model_info(args, model, name),
            server_info=public_options(args),
        )


def _desk(storage: StorageArgs) -> DeskOptions | None:
    if not storage.file_storage_path:
        return None
    return DeskOptions(
        folder=Path(storage.file_storage_path),
        max_total_bytes=int(storage.file_storage_gb * 1e9),
        max_in_flight=storage.max_batch_lines,
    )


def _model_info(args: ServerArgs, model: ModelConfig, name: str) -> dict[str, Any]:
    return {
        "model_path": args.model.model_path,
        "tokenizer_path": args.model.tokenizer_path,
        "served_model_name": name,
        "is_generation": model.pooling is None,
        "preferred_sampling_params": None,
        "weight_version": args.model.weight_version,
        "load_format": args.model.load_format,
        "reasoning_parser": args.serving.reasoning_parser,
        "tool_call_parser": args.serving.tool_call_parser,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": model.hf.get("model_type"),
        "architectures": [model.architecture],
    }
