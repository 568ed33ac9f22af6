"""Problem: every error is answered in one shape, says what is known and what to do, and has its own status."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from tests.proxy.helpers import Proxy, with_proxy
from varlog.model import errors as model
from varlog.model.errors import VarlogError
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN
from varlog.proxy import errors as proxy_errors
from varlog.proxy.errors import ProxyError, TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.problem import answer_with_problems, problem_of

SHAPE = ["type", "title", "status", "detail", "remedy", "outcome", "facts"]


def _kinds(root: type[VarlogError]) -> Iterator[type[VarlogError]]:
    yield root
    for kind in root.__subclasses__():
        yield from _kinds(kind)


def _bare(kind: type[VarlogError]) -> VarlogError:
    """One of a kind, whose facts do not matter."""
    error = kind.__new__(kind)
    Exception.__init__(error, "message")
    error.message = lambda: "message"  # type: ignore[method-assign]
    return error


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (model.UnknownTopic("a"), 404),
        (model.UnknownLogStream(LogStreamID(1)), 404),
        (model.NotWritten(2, 1), 404),
        (model.JunkPosition(2), 404),
        (model.Trimmed(1, 2), 410),
        (model.EmptyBatch(), 422),
        (model.EntryTooLarge(2, 1), 413),
        (model.BatchTooLarge("bytes", 2, 1), 413),
        (model.Sealed(LogStreamID(1)), 503),
        (model.NotAccepted("late"), 503),
        (model.Unavailable("nobody"), 503),
        (model.NotLeader(), 503),
        (model.OutcomeUnknown("lost"), 504),
        (model.PreconditionFailed("no"), 409),
        (model.StartupError("port"), 500),
    ],
)
def test_an_error_of_the_log_has_its_status(error: VarlogError, status: int) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.detail) == (status, str(error))


def test_only_an_unknown_outcome_leaves_it_open_whether_something_was_done() -> None:
    """Law 10: after "none" the request may be repeated."""
    for module in (model, proxy_errors):
        for kind in _kinds(VarlogError):
            if kind.__module__ == module.__name__:
                unknown = issubclass(kind, model.OutcomeUnknown)
                assert problem_of(_bare(kind)).outcome == ("unknown" if unknown else "none"), kind
    assert problem_of(RuntimeError()).outcome == "unknown"


def test_every_error_has_a_name_a_title_and_a_remedy_of_its_own_kind() -> None:
    names = set()
    for kind in _kinds(VarlogError):
        if kind.__module__ in (model.__name__, proxy_errors.__name__):
            problem = problem_of(_bare(kind))
            assert problem.title and problem.remedy.endswith("."), kind
            names.add(problem.type)
    assert {"urn:varlog:unknown-topic", "urn:varlog:too-busy", "urn:varlog:outcome-unknown"} <= names
    assert all(name.removeprefix("urn:varlog:").replace("-", "").isalpha() for name in names)


def test_facts_are_the_fields_of_an_error_without_its_sentences() -> None:
    assert problem_of(model.ReaderBehind("billing", GLSN(3), GLSN(9))).facts == {
        "reader": "billing",
        "position": 3,
        "asked": 9,
    }
    assert problem_of(model.NotAccepted("why")).facts == {}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nowhere", 404),
        ("GET", "/v1/nowhere", 404),
        ("GET", "/v1/topics/orders/tail/", 404),
        ("PATCH", "/v1/topics/orders/tail", 405),
        ("GET", "/v1/topics/-bad/tail", 422),
        ("GET", "/v1/topics/orders/tail?timeout=0", 422),
        ("GET", "/v1/topics/orders/tail?timeout=nan", 422),
    ],
)
def test_what_the_framework_refuses_has_the_same_shape(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.request(method, path)
        assert answer.status_code == status
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert list(answer.json()) == SHAPE and answer.json()["status"] == status

    with_proxy(tmp_path, story)


def test_an_unsupported_method_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    """The methods of one path are on several routes."""

    async def story(proxy: Proxy) -> None:
        answer = await proxy.http.put("/v1/topics/orders/entries")
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, POST")

    with_proxy(tmp_path, story)


def _answered(error: Exception, limits: ProxyLimits) -> httpx.Response:
    """The answer of an application whose only route fails like this."""
    app = FastAPI()
    answer_with_problems(app, limits)

    @app.get("/")
    async def fail() -> Any:
        raise error

    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            return await http.get("/")

    return asyncio.run(call())


@pytest.mark.parametrize(
    "error", [model.Unavailable("now"), model.NotAccepted("late"), TooBusy("appends", 1)]
)
def test_a_temporary_refusal_has_a_retry_after(error: VarlogError) -> None:
    answer = _answered(error, ProxyLimits(retry_after_s=7.0))
    assert answer.status_code in (429, 503)
    assert answer.headers["Retry-After"] == "7"


def test_an_overload_states_its_own_retry_after() -> None:
    answer = _answered(model.Overloaded(1000, 400.0, 2.3), ProxyLimits(retry_after_s=7.0))
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "3"
    assert "retry after 2.3 s" in answer.text


def test_a_bug_shows_its_kind_and_no_more() -> None:
    """What is in the message of an exception that nobody expected is nobody's business outside."""
    answer = _answered(RuntimeError("the secret"), ProxyLimits())
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:varlog:bug")
    assert "RuntimeError" in answer.text and "secret" not in answer.text


def test_every_refusal_of_the_proxy_is_one_of_the_caller_or_of_the_moment() -> None:
    """None of them is a 500: that is for bugs."""
    for kind in _kinds(ProxyError):
        assert issubclass(kind, ProxyError) and kind.status in {
            400,
            403,
            404,
            406,
            408,
            409,
            413,
            415,
            421,
            422,
            429,
            431,
            503,
            504,
        }, kind
