"""The target of traces: valid endpoints, and those that are refused by name."""

from __future__ import annotations

import pytest

from mysglang.srt.args import tracing
from mysglang.srt.args.observability import ObservabilityArgs
from mysglang.srt.args.tracing import OtlpTarget, complaint_about, read_endpoint
from mysglang.srt.errors import ConfigError
from mysglang.srt.server_args import ServerArgs
from mysglang.srt.utils.hardware import Hardware


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing._PROTOCOLS:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("localhost:4317", OtlpTarget("grpc", "localhost:4317", False)),
        ("grpc://collector:4317", OtlpTarget("grpc", "collector:4317", False)),
        ("http://collector:4317", OtlpTarget("grpc", "collector:4317", False)),
        ("https://collector:4317/", OtlpTarget("grpc", "collector:4317", True)),
        ("http://collector:4318/v1/traces", OtlpTarget("http/protobuf", "http://collector:4318/v1/traces", False)),
        ("https://a.b/otlp/v1/traces", OtlpTarget("http/protobuf", "https://a.b/otlp/v1/traces", True)),
    ],
)
def test_endpoints(text: str, target: OtlpTarget) -> None:
    assert read_endpoint(text) == target


@pytest.mark.parametrize("variable", tracing._PROTOCOLS)
def test_opentelemetrys_variables_are_honoured(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "http/protobuf")
    assert read_endpoint("collector:4318").address == "http://collector:4318/v1/traces"
    assert read_endpoint("http://collector:4318").address == "http://collector:4318/v1/traces"
    assert read_endpoint("grpc://collector:4317").protocol == "grpc"


@pytest.mark.parametrize("text", ["", "ftp://a:1", "a b", "http://", "host:port"])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ValueError, match="neither HOST:PORT nor a URL"):
        read_endpoint(text)
    complaint = complaint_about(ObservabilityArgs(enable_trace=True, otlp_traces_endpoint=text))
    assert complaint is not None and complaint.startswith("--otlp-traces-endpoint: ")


@pytest.mark.parametrize("options", [{"otlp_traces_endpoint": "a:1"}, {"otlp_service_name": "s"}])
def test_where_to_is_said_of_traces_only(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="needs --enable-trace"):
        ServerArgs.from_kwargs(Hardware(), **options)
    assert ServerArgs.from_kwargs(Hardware(), enable_trace=True, **options).observability.enable_trace


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_PACKAGES", ("opentelemetry_that_is_not_there.sdk",))
    assert complaint_about(ObservabilityArgs()) is None
    complaint = complaint_about(ObservabilityArgs(enable_trace=True))
    assert complaint is not None and 'pip install "mysglang[trace]"' in complaint
