"""docs/api.md lists every route and every field, and docs/flags.md every flag, as the code has them."""

from pathlib import Path

from pydantic import BaseModel

from fixtures import api_table, flags_page
from fixtures.scripted_engine import serve
from mysglang.srt.entrypoints.body import validate
from mysglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
from mysglang.srt.entrypoints.strict_model import StrictModel

PAGE = Path(__file__).parents[2] / "docs" / "api.md"
FLAGS = Path(__file__).parents[2] / "docs" / "flags.md"


def test_the_page_of_flags_is_what_the_declarations_say() -> None:
    stale = "docs/flags.md is not up to date: python scripts/write_api_docs.py"
    assert FLAGS.read_text(encoding="utf-8") == flags_page.render(), stale


async def test_the_page_is_what_the_application_says() -> None:
    async with serve() as served:
        told = api_table.render(served.app)
    text = PAGE.read_text(encoding="utf-8")
    begin, end = text.index(api_table.BEGIN), text.index(api_table.END) + len(api_table.END)
    assert text[begin:end] == told, "docs/api.md is not up to date: python scripts/write_api_docs.py"


async def test_every_field_of_every_described_body_has_a_row() -> None:
    async with serve() as served:
        rows = api_table.described_bodies(served.app)
        schemas = (await served.client.get("/openapi.json")).json()["components"]["schemas"]
    assert "ChatMessage" in rows, "objects inside of bodies have tables too"
    assert {"stop", "priority", "beam_width"} <= rows["SamplingParams"] | rows["GenerateReqInput"]
    for name, fields in rows.items():
        assert set(schemas[name].get("properties", {})) <= fields, name


async def test_routes_that_are_said_to_be_absent_are() -> None:
    async with serve() as served:
        here = {getattr(route, "path", None) for route in served.app.routes}
        absent = [path for path in api_table.ABSENT if path not in here]
        answers = [(await served.post(path, {})).status_code for path in absent]
    assert set(answers) <= {404}


def test_what_is_without_effect_is_a_field() -> None:
    def walk(model: type[BaseModel]) -> None:
        for inner in model.__subclasses__():
            if issubclass(inner, StrictModel):
                assert inner.without_effect <= inner.model_fields.keys()
            walk(inner)

    walk(StrictModel)
    sent = {"messages": [{"role": "user", "content": "a"}]}
    plain, marked = validate(ChatCompletionRequest, dict(sent)), validate(ChatCompletionRequest, {**sent, "user": "me"})
    assert plain.model_dump(exclude={"user"}) == marked.model_dump(exclude={"user"})


def test_a_type_in_words() -> None:
    class Inner(StrictModel):
        name: str

    class Outer(StrictModel):
        many: list[Inner] = []
        some: int | None = 3
        unsupported = {"gone": (False, 0)}
        without_effect = frozenset({"some"})

    schema = Outer.model_json_schema()
    schema["properties"]["many"]["description"] = "What they are."
    assert api_table._model_rows(Outer, schema) == [
        ("`many`", "list of Inner", "`[]`", "honoured", "What they are."),
        ("`some`", "integer", "`3`", "accepted, no effect", ""),
        ("`gone`", "", "", "refused, except `false` or `0`"),
    ]
