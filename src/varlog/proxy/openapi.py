"""The OpenAPI document: FastAPI's, with problems and hand-written bodies added."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from varlog.proxy.problem import MEDIA_TYPE, Problem
from varlog.proxy.wire import AppendRequest, EntryOut, EntryPage

# Models that no route declares: those of bodies and responses that are parsed and rendered by hand.
MODELS: tuple[type[BaseModel], ...] = (Problem, AppendRequest, EntryOut, EntryPage)

EVENTS = "text/event-stream"

# What every call under /v1 may be answered with.
ALWAYS = {
    "403": "The request came from a page of another site.",
    "421": "The proxy does not answer for this host.",
    "422": "The request cannot be read.",
    "500": "A bug, or corruption that no replica could repair.",
    "502": "The proxy was started for another cluster.",
    "503": "The log or the cluster cannot answer now.",
    "504": "There was no answer in time; `outcome` says whether anything may have been done.",
}
_REASONS = {
    404: "There is no such topic, log stream, node or position.",
    406: "The response is not available in this media type.",
    408: "The body arrived too slowly.",
    409: "The present state does not allow it.",
    410: "The position was trimmed.",
    413: "The body, an entry or the batch is too large.",
    415: "The media type of the body is not accepted.",
    429: "As much is in flight as the proxy allows.",
}


def ref(model: type[BaseModel]) -> dict[str, str]:
    """A reference to the schema of a model."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route for errors that not every route has."""
    return {status: _problem(_REASONS[status]) for status in statuses}


def describe_api(app: FastAPI) -> None:
    """Have the application serve the whole document, built on the first request."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # FastAPI's documented way to extend it


def _document(app: FastAPI) -> dict[str, Any]:
    whole = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas: dict[str, Any] = whole.setdefault("components", {}).setdefault("schemas", {})
    _, extra = models_json_schema(
        [(model, "serialization" if model in (EntryOut, EntryPage) else "validation") for model in MODELS],
        ref_template="#/components/schemas/{model}",
    )
    schemas.update(extra["$defs"])
    for path, operations in whole["paths"].items():
        for method, operation in operations.items():
            for parameter in operation.get("parameters", []):
                parameter["schema"] = _without_null(parameter["schema"])
            if path.startswith("/v1/"):
                _add_problems(path, method, operation)
            elif "422" in operation["responses"]:
                operation["responses"]["422"] = _problem(ALWAYS["422"])
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    return whole


def _add_problems(path: str, method: str, operation: dict[str, Any]) -> None:
    """Add the errors that follow from the kind of route to those that it names itself."""
    responses = operation["responses"]
    for response in responses.values():
        if EVENTS in response.get("content", {}):
            response["content"][
                EVENTS
            ] = {}  # a stream of events is no single value that a schema could describe
    responses.update({status: _problem(why) for status, why in ALWAYS.items()})
    body = "requestBody" in operation
    follow = {404: "{" in path, 408: body, 409: method != "get", 413: body}
    for status, follows in follow.items():
        if follows:
            responses.setdefault(str(status), _problem(_REASONS[status]))


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """An optional parameter can be left out, but never be null: a URL or header cannot express that."""
    choices = [choice for choice in schema.get("anyOf", []) if choice != {"type": "null"}]
    if len(choices) != 1:
        return schema
    return {**choices[0], **{key: value for key, value in schema.items() if key != "anyOf"}}


def _problem(why: str) -> dict[str, Any]:
    return {"description": why, "content": {MEDIA_TYPE: {"schema": ref(Problem)}}}
