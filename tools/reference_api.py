"""Reference pages of the interfaces for programs: HTTP, metrics and Python."""

from __future__ import annotations

import asyncio
import inspect
import re
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import httpx

import varlog
from tools.reference import WIDTH, page, table
from varlog import aio

if TYPE_CHECKING:
    from fastapi import FastAPI

Json = dict[str, Any]


# --- HTTP ---------------------------------------------------------------------------------------------------------------


def http() -> str:
    """Every route of the OpenAPI document: parameters, bodies and answers."""
    from varlog.proxy.openapi import ALWAYS

    document = _application(Path("unused")).openapi()
    routes = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    introduction = (
        "From `GET /openapi.json`, which a proxy serves for programs. [The log over HTTP](../guide/http.md) explains formats, "
        "subscriptions, errors and limits, and has examples. An error is `application/problem+json`, see [errors](errors.md)."
    )
    always = "Every route under `/v1` may also answer with these:\n\n" + table(
        ("status", "meaning"), list(ALWAYS.items())
    )
    return page(
        "HTTP", introduction, always, *(_route(name, operation, document) for name, operation in routes)
    )


def _route(name: str, operation: Json, document: Json) -> str:
    from varlog.proxy.openapi import ALWAYS

    text = operation.get("description") or operation.get("summary") or ""
    parts = [f"## `{name}`", textwrap.fill(" ".join(text.split()), WIDTH, break_on_hyphens=False)]
    if parameters := operation.get("parameters"):
        rows = [
            (f"`{found['name']}`", found["in"], _type(found["schema"]), found.get("description", ""))
            for found in parameters
        ]
        parts.append(table(("parameter", "in", "type", "meaning"), rows))
    if body := operation.get("requestBody"):
        kinds = ", ".join(f"`{kind}`" for kind in body["content"])
        parts.append(f"Body: {kinds}.")
        for content in body["content"].values():
            parts += _fields(content.get("schema", {}), document)
    answers = [
        (code, found.get("description", ""))
        for code, found in sorted(operation["responses"].items())
        if code not in ALWAYS
    ]
    parts.append(table(("status", "meaning"), answers))
    return "\n\n".join(part for part in parts if part)


def _fields(schema: Json, document: Json) -> Iterator[str]:
    """The fields of a body that has a named shape."""
    name = schema.get("$ref", "").rpartition("/")[2]
    if not name:
        return
    shape = document["components"]["schemas"][name]
    rows = [
        (
            f"`{field}`",
            _type(found),
            "yes" if field in shape.get("required", []) else "",
            found.get("description", ""),
        )
        for field, found in shape.get("properties", {}).items()
    ]
    yield table(("field", "type", "required", "meaning"), rows)


def _type(schema: Json) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return str(schema.get("type", ""))


# --- metrics ------------------------------------------------------------------------------------------------------------


def metrics() -> str:
    """What /metrics of a proxy says of itself, on an empty log."""
    with tempfile.TemporaryDirectory() as directory:
        text = asyncio.run(_scrape(Path(directory)))
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    rows = [
        (f"`{name}`", kinds[name], what)
        for name, what in re.findall(r"^# HELP (\S+) (.*)$", text, re.MULTILINE)
        if not name.endswith("_created")
    ]
    introduction = (
        "What `GET /metrics` of a proxy has, in the text format of Prometheus. [Monitoring](../operate/monitoring.md) says "
        "what to alert on and what to plot; [the table of the proxy](../guide/http.md#metrics) explains more."
    )
    return page("Metrics", introduction, table(("metric", "type", "what it is"), rows))


def _application(directory: Path) -> FastAPI:
    from varlog.proxy.app import make_app
    from varlog.proxy.gateway import EmbeddedBackend, Gateway

    return make_app(Gateway(EmbeddedBackend(directory, sync=False)))


async def _scrape(directory: Path) -> str:
    app = _application(directory)
    async with (
        asyncio.timeout(60),
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client,
    ):
        created = await client.post("/v1/topics", json={"name": "orders"})
        created.raise_for_status()
        return (await client.get("/metrics")).text


# --- Python -------------------------------------------------------------------------------------------------------------


def python() -> str:
    """The public names, with signatures and docstrings. Errors are a page of their own."""
    parts = [*_names(varlog), *_names(aio)]
    introduction = (
        "The public names of `varlog`, which block, and of `varlog.aio`, which are the same with `async`. Errors are in "
        "[errors](errors.md); recipes (locks, queues, key/value, transactions) in [recipes](../guide/recipes.md)."
    )
    return page("Python", introduction, *parts)


def _names(module: ModuleType) -> Iterator[str]:
    yield f"## `{module.__name__}`"
    for name in sorted(module.__all__, key=lambda name: (name[0].isupper(), name)):
        found = getattr(module, name)
        if inspect.isclass(found) and issubclass(found, Exception):
            continue
        if inspect.isclass(found) and found.__module__.startswith("varlog."):
            yield f"### `{module.__name__}.{name}`\n\n{_doc(found)}"
            yield from _methods(found)
        elif inspect.isfunction(found):
            yield f"### `{module.__name__}.{name}`\n\n{_signature(name, found)}\n\n{_doc(found)}"


def _methods(kind: type) -> Iterator[str]:
    for name, found in vars(kind).items():
        if name.startswith("_") or not found.__doc__:
            continue
        if inspect.isfunction(found):
            yield f"{_signature(name, found)}\n\n{_doc(found)}"
        elif isinstance(found, property):
            yield f"`{name}`: {_doc(found)}"


def _signature(name: str, function: Any) -> str:
    signature = str(inspect.signature(function)).replace("(self, ", "(").replace("(self)", "()")
    signature = re.sub(r"\b(?:varlog|collections\.abc|pathlib|typing)\.(?:\w+\.)*(?=\w)", "", signature)
    signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", signature)  # annotations are strings in this code base
    signature = re.sub(r"<([\w.]+): [^>]*>", r"\1", signature)  # members of an enumeration
    prefix = "async " if inspect.iscoroutinefunction(function) else ""
    line = f"{prefix}{name}{signature}"
    if len(line) > WIDTH:
        line = line.replace("(", "(\n    ", 1).replace(", ", ",\n    ")
        line = re.sub(r"\[([^\]]*)\]", lambda match: match[0].replace(",\n    ", ", "), line)
        line = re.sub(r"\) -> ", ",\n) -> ", line)
    return f"```python\n{line}\n```"


def _doc(found: object) -> str:
    parts = (inspect.getdoc(found) or "").split("\n\n")
    return "\n\n".join(
        part if part.startswith((" ", "-")) else textwrap.fill(part, WIDTH, break_on_hyphens=False)
        for part in parts
    )
