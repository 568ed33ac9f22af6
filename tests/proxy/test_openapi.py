"""The OpenAPI document, and requests made up from it: whatever it allows is taken, whatever it forbids is refused, every answer is
as it says (schemathesis, all its checks, straight into the application)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import negative_data_rejection

from varlog.client.admin import Admin
from varlog.client.log import Log
from varlog.proxy.app import make_app
from varlog.proxy.gateway import EmbeddedBackend, Gateway
from varlog.proxy.header_rules import AcceptedNames
from varlog.proxy.limits import ProxyLimits

EXAMPLES = 10

# 410 is a good answer to a good request: what it asks for is gone. 503 and 504 are, too: what it appends to is sealed.
CHECKS = {
    "not_a_server_error": {"expected-statuses": ["2xx", "3xx", "4xx", "503", "504"]},
    "positive_data_acceptance": {"expected-statuses": ["2xx", "401", "403", "404", "409", "410", "5xx"]},
}
# Streams of events do not end: one event is enough, and where none comes the caller leaves.
STREAMS = [
    {"include-path": path, "max-stream-events": 1, "request-timeout": 0.2}
    for path in ("/v1/topics/{topic}/events", "/v1/status/events")
]


@schemathesis.serializer("application/x-ndjson")
def lines_of_json(_: schemathesis.SerializationContext, value: object) -> bytes:
    return value.encode() if isinstance(value, str) else str(value).encode()


class _Temporary:
    """An embedded log in a directory of its own, which is made when the application starts and removed when it stops."""

    def __init__(self) -> None:
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._embedded: EmbeddedBackend | None = None

    async def start(self) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._embedded = EmbeddedBackend(Path(self._directory.name), sync=False)
        await self._embedded.start()
        async with await self._embedded.admin() as admin:
            await admin.create_topic("orders")
        async with await self._embedded.log("orders") as log:
            await log.append_batch([b"one", b"\xff", b'{"three": 3}'])

    async def admin(self) -> Admin:
        assert self._embedded is not None
        return await self._embedded.admin()

    async def log(self, topic: str) -> Log:
        assert self._embedded is not None
        return await self._embedded.log(topic)

    async def close(self) -> None:
        assert self._embedded is not None and self._directory is not None
        await self._embedded.close()
        self._directory.cleanup()


def _schema(mode: str, parameters: dict[str, object]) -> schemathesis.BaseSchema:
    app = make_app(
        Gateway(_Temporary()),
        ProxyLimits(timeout_s=1.0, timeout_s_max=1.0),
        AcceptedNames(["testserver"]),
    )
    config = SchemathesisConfig.from_dict(
        {
            "generation": {"max-examples": EXAMPLES, "deterministic": True, "mode": mode},
            "checks": CHECKS,
            "operations": STREAMS,
            "parameters": parameters,
        }
    )
    schema = schemathesis.openapi.from_dict(app.openapi(), config=config)
    schema.app = app
    return schema


def check_answer(case: schemathesis.Case[Any]) -> None:
    """Call, and judge the answer by every check there is. A header or parameter that nobody knows is no reason to refuse."""
    unknown = any(name.startswith("x-schemathesis-unknown") for name in (*case.headers, *case.query))
    case.call_and_validate(excluded_checks=[negative_data_rejection] if unknown else None)


anything = _schema("all", {})
what_is_there = _schema("positive", {"topic": "orders", "path.log_stream": 1, "node": 1})


@anything.parametrize()
def test_the_proxy_keeps_to_its_document(case: schemathesis.Case[Any]) -> None:
    check_answer(case)


@what_is_there.parametrize()
def test_the_proxy_keeps_to_its_document_where_there_is_something(case: schemathesis.Case[Any]) -> None:
    """Names that are made up name nothing: here they name a topic, a log stream and a node that exist."""
    check_answer(case)


def test_every_error_in_the_document_has_the_one_shape() -> None:
    document = make_app(Gateway(_Temporary())).openapi()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for status, response in operation["responses"].items():
                if int(status) >= 400 and path.startswith("/v1/"):
                    assert list(response["content"]) == ["application/problem+json"], (method, path, status)
    assert document["components"]["schemas"]["Problem"]["required"] == [
        "type",
        "title",
        "status",
        "detail",
        "remedy",
        "outcome",
        "facts",
    ]
