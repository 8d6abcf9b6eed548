"""/openapi.json and /docs: the request bodies of the routes, which read them themselves, described for FastAPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

REF = "#/components/schemas/{model}"

Described = type[BaseModel] | type[msgspec.Struct]


JSON, FORM = "application/json", "multipart/form-data"


def takes(model: Described, media_type: str = JSON) -> dict[str, Any]:
    """`openapi_extra` of a route whose body is a `model`."""
    schema = {"$ref": REF.format(model=model.__name__)}
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def describe_bodies(app: FastAPI, models: Sequence[Described]) -> None:
    """Have `app` describe `models`, which its routes name by `takes`."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            components = schema.setdefault("components", {}).setdefault("schemas", {})
            components.update(_schemas(models))
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _schemas(models: Sequence[Described]) -> Mapping[str, Any]:
    pydantic_models = [model for model in models if issubclass(model, BaseModel)]
    _, found = models_json_schema([(model, "validation") for model in pydantic_models], ref_template=REF)
    structs = [model for model in models if issubclass(model, msgspec.Struct)]
    _, more = msgspec.json.schema_components(structs, ref_template=REF.replace("{model}", "{name}"))
    return {**found.get("$defs", {}), **more}
