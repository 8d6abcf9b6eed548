"""/openapi.json and /docs: the bodies and answers of the routes, described for FastAPI.

A route names the body that it takes and the answer that it gives; errors, which every route has in the shape of its
dialect, and keys are described here once for all of them. What is described is nowhere enforced: tests hold bodies and
answers against it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from mysglang.srt.args.serving import UnknownFields
from mysglang.srt.entrypoints.auth import Access
from mysglang.srt.entrypoints.error_responses import STATUSES, ErrorShape
from mysglang.srt.entrypoints.field_docs import add_descriptions, all_subclasses
from mysglang.srt.entrypoints.request_examples import EXAMPLES
from mysglang.srt.messages.generate import INTERNAL, GenerateReqInput

REF = "#/components/schemas/{model}"
NAMED = "#/components/schemas/{name}"

Described = type[BaseModel] | type[msgspec.Struct]

JSON, FORM, BYTES = "application/json", "multipart/form-data", "application/octet-stream"
EVENTS, LINES = "text/event-stream", "application/x-ndjson"

KEYS: Mapping[str, Mapping[str, str]] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}

_COMPONENTS = "x-components"
"""Key under which an operation keeps the components of its answer, until all of them are collected."""


class Answer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of the structs that describe answers in the API document. A field that may be absent has the default
    UNSET.
    """


def takes(model: Described, media_type: str = JSON) -> dict[str, Any]:
    """Returns `openapi_extra` for a route whose body is a `model`."""
    content: dict[str, Any] = {"schema": {"$ref": REF.format(model=model.__name__)}}
    if media_type == JSON:
        content["example"] = EXAMPLES[model.__name__]
    return {"requestBody": {"required": True, "content": {media_type: content}}}


def gives(
    answer: object, *, stream: Sequence[object] = (), stream_type: str = EVENTS, done: bool = False
) -> dict[str, Any]:
    """Returns `openapi_extra` for a route that answers 200 with JSON. `answer`: any type that msgspec knows.

    `stream`: what an event or line of a stream may be, of a route that can answer with one; with `done`, the event
    after all others is `[DONE]`. For a route that also `takes`, join the two with `|`.
    """
    (schema, *items), components = _schemas_of((answer, *stream))
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if items:
        item = {"anyOf": items}
        content[stream_type] = {"itemSchema": _event(item, done=done) if stream_type == EVENTS else item}
    return {"responses": {"200": {"content": content}}, _COMPONENTS: components}


@cache
def _schemas_of(types: tuple[object, ...]) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
    """Returns a schema for each type, and the components that these name. They must not be changed, because all
    documents share them.
    """
    return msgspec.json.schema_components(types, ref_template=NAMED)


def gives_bytes() -> dict[str, Any]:
    """Returns the `openapi_extra` of a route that answers with the bytes of an uploaded file."""
    content = {BYTES: {"schema": {"type": "string", "format": "binary"}}}
    return {"responses": {"200": {"content": content}}}


def describe(
    app: FastAPI,
    models: Sequence[Described],
    *,
    access: Access,
    shapes: Callable[[str], ErrorShape],
    has_keys: bool,
    unknown_fields: UnknownFields,
) -> None:
    """Have `app` describe itself. `models` are the names that routes use in `takes`; `shapes` gives the form of errors
    of a path. `has_keys`: True if clients need a key. `unknown_fields`: how an unknown field is handled.
    """
    refuses = unknown_fields == "error"

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, models, access, shapes, has_keys=has_keys, refuses=refuses)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _document(
    app: FastAPI,
    models: Sequence[Described],
    access: Access,
    shapes: Callable[[str], ErrorShape],
    *,
    has_keys: bool,
    refuses: bool,
) -> dict[str, Any]:
    routes = [route for route in app.routes if isinstance(route, APIRoute)]
    document = get_openapi(title=app.title, version=app.version, description=app.description, routes=routes)
    parts = document.setdefault("components", {})
    parts["securitySchemes"] = KEYS
    parts["schemas"] = dict(_schemas(models, refuses=refuses))
    parts["responses"] = {}
    for path, operations in document["paths"].items():
        shape = shapes(path)
        for method, operation in operations.items():
            _join(parts["schemas"], operation.pop(_COMPONENTS, {}))
            statuses = _statuses(path, method, operation, access)
            parts["responses"] |= {_name(shape, status): _error(shape, status) for status in statuses}
            operation["responses"].pop("422", None)  # FastAPI's own, which is a 400 here
            operation["responses"] |= {
                str(status): {"$ref": f"#/components/responses/{_name(shape, status)}"} for status in statuses
            }
            operation["security"] = _security(path, access, has_keys=has_keys)
    errors = {shapes(path).schema for path in document["paths"]}
    _join(parts["schemas"], msgspec.json.schema_components(errors, ref_template=NAMED)[1])
    add_descriptions(parts["schemas"], [*models, *errors, *all_subclasses(Answer)])
    return document


def _join(known: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Adds schemas. Two different ones of the same name are an error, since one would hide the other."""
    for name, schema in more.items():
        assert known.setdefault(name, schema) == schema, f"two schemas are called {name}"


def _statuses(path: str, method: str, operation: Mapping[str, Any], access: Access) -> list[int]:
    """Returns the statuses other than success that an operation may answer. A route without a body has no 400, and a
    route without a key has no 401.
    """
    silent = method in ("get", "head") and not operation.get("parameters")
    left_out = {400, 404, 409, 413, 429, 499, 507} if silent else set()
    return [status for status in STATUSES if status not in left_out | ({401} if path in access.open else set())]


def _security(path: str, access: Access, *, has_keys: bool) -> list[dict[str, list[str]]]:
    """Returns the keys that an operation accepts: either key where one is needed; none, or either, where the server may
    have none.
    """
    if path in access.open:
        return []
    keys: list[dict[str, list[str]]] = [{name: []} for name in KEYS]
    return keys if has_keys or path in access.locked else [{}, *keys]


def _name(shape: ErrorShape, status: int) -> str:
    return f"{shape.schema.__name__}{status}"


def _error(shape: ErrorShape, status: int) -> dict[str, Any]:
    schema = {"$ref": REF.format(model=shape.schema.__name__)}
    description = f"{HTTPStatus(status).phrase if status != 499 else 'Request Ended'}: {STATUSES[status]}"
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _event(schema: Mapping[str, Any], *, done: bool) -> dict[str, Any]:
    """Returns the schema of a server-sent event whose data is JSON."""
    data: dict[str, Any] = {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
    if done:
        data = {"anyOf": [data, {"const": "[DONE]"}]}
    return {"type": "object", "required": ["data"], "properties": {"event": {"type": "string"}, "data": data}}


def _schemas(models: Sequence[Described], *, refuses: bool) -> Mapping[str, Any]:
    """Returns the schemas of bodies. `refuses`: whether unknown names are refused."""
    pydantic_models = [model for model in models if issubclass(model, BaseModel)]
    _, found = models_json_schema([(model, "validation") for model in pydantic_models], ref_template=REF)
    structs = [model for model in models if issubclass(model, msgspec.Struct)]
    _, more = msgspec.json.schema_components(structs, ref_template=NAMED)
    ours = {GenerateReqInput.__name__: INTERNAL}
    return {
        name: _as_sent(schema, ours.get(name, frozenset()), refuses=refuses)
        for name, schema in {**found.get("$defs", {}), **more}.items()
    }


def _as_sent(schema: Mapping[str, Any], ours: Collection[str], *, refuses: bool) -> Mapping[str, Any]:
    """Returns the schema of an object as clients may send it: null stands for the default of every field that has one.
    `ours`: fields that only the server sets, which clients do not know.
    """
    if "properties" not in schema:
        return schema
    required = schema.get("required", [])
    fields = {
        name: field if name in required else _or_null(or_one(field))
        for name, field in schema["properties"].items()
        if name not in ours
    }
    return {**schema, "properties": fields, "additionalProperties": not refuses}


def or_one(field: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the schema of a field that may be one entry of its list without the list, if it is marked so."""
    if "x-or-one" not in field:
        return field
    about = {name: value for name, value in field.items() if name not in ("type", "items", "x-or-one")}
    return {"anyOf": [field["items"], {"type": "array", "items": field["items"]}], **about}


def _or_null(field: Mapping[str, Any]) -> Mapping[str, Any]:
    if {"type": "null"} in field.get("anyOf", ()):
        return field
    if "anyOf" in field:
        return {**field, "anyOf": [*field["anyOf"], {"type": "null"}]}
    about = {name: field[name] for name in ("default", "title", "description") if name in field}
    plain = {name: value for name, value in field.items() if name not in about}
    return {"anyOf": [plain, {"type": "null"}], **about}
