"""The OpenAPI document says of every route what it answers, how it fails and which key it needs."""

from typing import Any

import jsonschema_rs
import msgspec
import pytest

from fixtures.dialects import CALL, OPTIONS, PARAMETERS, TEMPLATE, says
from fixtures.scripted_engine import serve
from mysglang.srt.args.serving import UnknownFields
from mysglang.srt.entrypoints.app_options import AppOptions
from mysglang.srt.entrypoints.openai.responses.answers import (
    ContentPartDone,
    FunctionCallItem,
    MessageItem,
    OutputTextPart,
    ReasoningItem,
    ReasoningTextPart,
    ResponseEvent,
    ResponseObject,
)


async def document(options: AppOptions | None = None) -> dict[str, Any]:
    async with serve(options=options) as served:
        found: dict[str, Any] = served.app.openapi()
    return found


async def test_every_answer_and_every_error_is_described() -> None:
    found = await document()
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            answers = operation["responses"]
            assert {"500", "503"} <= answers.keys() and "422" not in answers, (method, path)
            assert {"400", "413"} <= answers.keys() or "requestBody" not in operation, (method, path)
            for kind, content in answers["200"].get("content", {}).items():
                assert content.get("schema") or content.get("itemSchema"), (method, path, kind)


async def test_every_body_has_an_example_that_fits_it() -> None:
    found = await document(AppOptions(unknown_fields="error"))
    for path, operations in found["paths"].items():
        for operation in operations.values():
            body = operation.get("requestBody", {"content": {}})["content"].get("application/json")
            if body is not None:
                schema = {**body["schema"], "components": found["components"]}
                assert [*jsonschema_rs.validator_for(schema).iter_errors(body["example"])] == [], path


async def test_what_is_named_is_there() -> None:
    found = await document()
    named: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            named.update([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(found)
    assert len(named) > 50
    for reference in named:
        at: Any = found
        for name in reference.removeprefix("#/").split("/"):
            at = at[name]


async def test_errors_are_told_in_the_dialect_of_the_path() -> None:
    found = await document()
    shapes = {
        "/generate": "NativeError",
        "/v1/completions": "OpenAIError",
        "/v1/messages": "AnthropicError",
        "/api/chat": "OllamaError",
    }
    for path, told in shapes.items():
        reference = found["paths"][path]["post"]["responses"]["400"]["$ref"]
        error = found["components"]["responses"][reference.rpartition("/")[2]]
        assert error["content"]["application/json"]["schema"]["$ref"].endswith(told)


async def test_streams_have_types_of_their_own() -> None:
    paths = (await document())["paths"]
    for path in ("/v1/chat/completions", "/v1/completions", "/generate", "/v1/messages", "/v1/responses"):
        assert "text/event-stream" in paths[path]["post"]["responses"]["200"]["content"]
    assert "application/x-ndjson" in paths["/api/chat"]["post"]["responses"]["200"]["content"]


async def test_who_needs_a_key() -> None:
    paths = (await document(AppOptions(api_keys=("k",), admin_key="a")))["paths"]
    assert paths["/health"]["get"]["security"] == [] and "401" not in paths["/health"]["get"]["responses"]
    assert {} not in paths["/generate"]["post"]["security"]
    paths = (await document())["paths"]
    assert {} in paths["/generate"]["post"]["security"]
    assert {} not in paths["/pause_generation"]["post"]["security"]


async def test_what_only_we_may_say_is_not_offered() -> None:
    schemas = (await document())["components"]["schemas"]
    assert "add_special_tokens" not in schemas["GenerateReqInput"]["properties"]
    assert "add_special_tokens" in schemas["TokenizeRequest"]["properties"]
    assert "pool" not in schemas["GenerateReqInput"]["properties"]
    assert {"type": "null"} in schemas["GenerateReqInput"]["properties"]["stream"]["anyOf"]


@pytest.mark.parametrize(("unknown_fields", "open_to_more"), [("report", True), ("error", False)])
async def test_other_names_are_offered_where_they_are_only_reported(
    unknown_fields: UnknownFields, open_to_more: bool
) -> None:
    schemas = (await document(AppOptions(unknown_fields=unknown_fields)))["components"]["schemas"]
    for body in ("GenerateReqInput", "SamplingParams", "ChatCompletionRequest", "CloseSessionReqInput"):
        assert schemas[body]["additionalProperties"] is open_to_more


async def test_a_list_of_one_may_be_its_entry() -> None:
    schemas = (await document())["components"]["schemas"]
    one_or_several = [{"type": "string"}, {"items": {"type": "string"}, "type": "array"}, {"type": "null"}]

    def kinds(field: dict[str, Any]) -> list[dict[str, Any]]:
        """Types of the field, whatever the bound on a list's length."""
        return [{name: value for name, value in one.items() if name != "maxItems"} for one in field["anyOf"]]

    for body in ("SamplingParams", "ChatCompletionRequest", "CompletionRequest", "ResponsesRequest"):
        assert kinds(schemas[body]["properties"]["stop"]) == one_or_several
    assert kinds(schemas["SamplingParams"]["properties"]["stop_regex"]) == one_or_several


@pytest.mark.parametrize("include", [[], ["message.output_text.logprobs"]])
async def test_the_output_of_a_response_is_described(include: list[str]) -> None:
    """Each item and part by its type, none of it as any object."""
    schemas = (await document())["components"]["schemas"]
    assert set(schemas["OutputTextPart"]["required"]) == {"type", "text", "annotations", "logprobs"}
    items = schemas["ResponseObject"]["properties"]["output"]["items"]
    assert {one["$ref"].rpartition("/")[2] for one in items["anyOf"]} == {
        "MessageItem",
        "ReasoningItem",
        "FunctionCallItem",
    }
    async with serve(says(CALL), OPTIONS, template=TEMPLATE) as served:
        tool = {"type": "function", "name": "weather", "parameters": PARAMETERS}
        body = {"input": "Hi", "tools": [tool], "include": include, "chat_template_kwargs": {"enable_thinking": True}}
        whole = await served.post("/v1/responses", body)
        stream = await served.post("/v1/responses", {**body, "stream": True})
    response = msgspec.convert(whole.json(), ResponseObject)
    assert [type(item) for item in response.output] == [ReasoningItem, MessageItem, FunctionCallItem]
    told = [msgspec.json.decode(frame.partition(b"data: ")[2], type=ResponseEvent) for frame in frames(stream.content)]
    assert {OutputTextPart, ReasoningTextPart} == {type(e.part) for e in told if isinstance(e, ContentPartDone)}


def frames(stream: bytes) -> list[bytes]:
    return stream.split(b"\n\n")[:-1]
