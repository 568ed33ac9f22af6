"""Problem: every error of the proxy as JSON (RFC 9457), with its HTTP status."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Final, Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from varlog.model import errors as model
from varlog.proxy.errors import BadBody, BadParameter, ChangeUnknown, ProxyError, TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.runtime.logging import get_logger

MEDIA_TYPE = "application/problem+json"
# How a problem closes a WebSocket: with this code plus its status, and as much of its detail as a close frame has room for.
CLOSE_PROBLEM: Final = 4000
CLOSE_REASON_BYTES_MAX: Final = 123
logger = get_logger("proxy")

ProblemOutcome = Literal["none", "unknown"]


class Problem(BaseModel):
    """An error (RFC 9457). `outcome`: "none" if certainly nothing was done, "unknown" if it may have been done, or may still be."""

    type: str = Field(
        description="The error: urn:varlog: and its name.", examples=["urn:varlog:unknown-topic"]
    )
    title: str = Field(description="What this error means, the same every time.")
    status: int = Field(description="The HTTP status.", ge=400, le=599)
    detail: str = Field(description="What happened this time.")
    remedy: str = Field(description="What to do about it.")
    outcome: ProblemOutcome = Field(description="Whether anything was done, or may have been.")
    facts: dict[str, str | int | float | list[str]] = Field(description="The facts of this error, by name.")

    @property
    def name(self) -> str:
        """The name of the error, without the URN prefix."""
        return self.type.removeprefix("urn:varlog:")

    def encoded(self) -> bytes:
        return self.model_dump_json().encode()


_LATER = "Try again later: the cluster repairs itself; GET /v1/status shows what it waits for."

# The status and the remedy of each error of the log; a subclass without an entry uses that of its nearest ancestor.
_ANSWERS: dict[type[model.VarlogError], tuple[int, str]] = {
    model.InvalidRequest: (422, "Change the request: the same one is refused again."),
    model.EntryTooLarge: (413, "Split the entry, or store its data elsewhere and append a reference."),
    model.BatchTooLarge: (413, "Append it in several batches."),
    model.UnknownTopic: (404, "Create the topic with POST /v1/topics, or see GET /v1/topics."),
    model.UnknownLogStream: (404, "See GET /v1/log-streams."),
    model.NotInCluster: (502, "Start the proxy with the address of the right cluster."),
    model.Sealed: (503, "Append to another log stream or without naming one, or unseal it."),
    model.TopicStopped: (
        503,
        "An operator must act: `varlog topic adopt-order` shows what is missing; with --yes the topic continues.",
    ),
    model.AlreadyWritten: (409, "Append it again: it gets other positions."),
    model.SequenceConflict: (409, "Continue with the batch after `newest`; what is up to it is in the log."),
    model.PositionConflict: (409, "Continue with the entry for the position `next`."),
    model.Overloaded: (503, "Try again after `retry_after_s`, or append at a lower rate."),
    model.Rejected: (503, _LATER),
    model.OutcomeUnknown: (504, "Check whether it is in the log before you repeat it."),
    ChangeUnknown: (504, "See GET /v1/status; repeating the request is harmless."),
    model.Unavailable: (503, _LATER),
    model.NotWritten: (404, "Subscribe from this position to wait for it."),
    model.Trimmed: (410, "Continue at the oldest position; everything before it is deleted."),
    model.JunkPosition: (404, "Continue at the next position."),
    model.CorruptBatch: (500, "Read again: another replica is asked; `varlog status` names the damaged one."),
    model.PreconditionFailed: (409, "Establish what `detail` asks for, then try again."),
    model.TrimBeyondTail: (409, "Trim up to the newest position at most."),
    model.ReaderBehind: (409, "Trim less, forget the reader, or trim with force."),
    model.CorruptReplica: (
        500,
        "Read again: another replica is asked; `varlog status` names the damaged one.",
    ),
    model.VarlogError: (500, "See the log of the proxy."),
}

_SENTENCES = {"remedy", "what", "why"}

_HTTP: dict[int, tuple[str, str]] = {
    404: ("no-such-path", "See GET /openapi.json for the available paths."),
    405: ("no-such-method", "Use one of the methods that the header Allow names."),
    413: ("body-too-large", "Send less per request."),
}


def problem_of(error: Exception) -> Problem:
    """An error as a problem, for a response, the last event of a subscription, or the close of a socket."""
    if isinstance(error, ProxyError):
        return _problem(error, error.status, error.remedy)
    if isinstance(error, model.VarlogError):
        home = next(kind for kind in type(error).__mro__ if kind in _ANSWERS)
        status, remedy = _ANSWERS[home]
        return _problem(error, status, remedy)
    if isinstance(error, RequestValidationError):
        return problem_of(_unreadable(error))
    if isinstance(error, HTTPException):
        if isinstance(error.__cause__, ProxyError):
            return problem_of(error.__cause__)
        # Only FastAPI raises 400, and only for a body that is not text.
        return problem_of(BadBody("it is not UTF-8")) if error.status_code == 400 else _of_http(error)
    return Problem(
        type="urn:varlog:bug",
        title="The proxy has a bug",
        status=500,
        detail=f"the proxy failed: {type(error).__name__}",
        remedy="Report it, with the log of the proxy.",
        outcome="unknown",
        facts={},
    )


def answer(error: Exception, limits: ProxyLimits) -> Response:
    """The response for an error."""
    problem = problem_of(error)
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if problem.status == 503 or isinstance(error, TooBusy):
        retry_after_s = error.retry_after_s if isinstance(error, model.Overloaded) else limits.retry_after_s
        headers["Retry-After"] = str(max(1, math.ceil(retry_after_s)))
    return Response(problem.encoded(), problem.status, headers, MEDIA_TYPE)


def answer_with_problems(app: FastAPI, limits: ProxyLimits, routes: Sequence[BaseRoute] = ()) -> None:
    """Have the application answer every error with a problem. `routes`: all of its routes."""

    async def handle(request: Request, error: Exception) -> Response:
        response = answer(error, limits)
        if response.status_code == 405 and (methods := _methods_of(request.url.path, routes)):
            response.headers["Allow"] = ", ".join(sorted(methods))
        return response

    for kind in (model.VarlogError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, handle)


def _methods_of(path: str, routes: Sequence[BaseRoute]) -> set[str]:
    """The methods of a path: it may have several routes, and the one that refused knows only its own."""
    found = (route for route in routes if isinstance(route, Route) and route.path_regex.match(path))
    return {method for route in found for method in route.methods or ()}


def _problem(error: model.VarlogError, status: int, remedy: str) -> Problem:
    return Problem(
        type=f"urn:varlog:{_dashed(type(error).__name__)}",
        title=(type(error).__doc__ or type(error).__name__).partition("\n")[0].rstrip("."),
        status=status,
        detail=str(error),
        remedy=remedy,
        outcome="unknown" if isinstance(error, model.OutcomeUnknown) else "none",
        facts=_facts(error),
    )


def _of_http(error: HTTPException) -> Problem:
    name, remedy = _HTTP.get(error.status_code, ("http", "See GET /openapi.json for the available paths."))
    return Problem(
        type=f"urn:varlog:{name}",
        title=name.replace("-", " ").capitalize(),
        status=error.status_code,
        detail=str(error.detail),
        remedy=remedy,
        outcome="none",
        facts={},
    )


def _unreadable(error: RequestValidationError) -> ProxyError:
    """The first error of a request that FastAPI rejected."""
    first: dict[str, Any] = error.errors()[0]
    place = [str(part) for part in first["loc"]]
    why = str(first["msg"])
    if place[0] == "body":
        return BadBody(f"{'.'.join(place[1:])}: {why}" if place[1:] else why)
    return BadParameter(" ".join(place), why)


def _facts(error: model.VarlogError) -> dict[str, str | int | float | list[str]]:
    """The fields of an error, without sentences, which are part of the detail."""
    return {
        name: value
        for name, value in vars(error).items()
        if isinstance(value, str | int | float | list) and name not in _SENTENCES
    }


def _dashed(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name).lower()
