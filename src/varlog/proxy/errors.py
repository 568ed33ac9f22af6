"""ProxyError: the proxy's own refusals, each with its HTTP status and one remedy.

ProxyError
├── BadBody, BadParameter            the request cannot be read
├── MalformedRequest                 not HTTP
├── HeadTooLarge, BodyTooLarge       more bytes than one request may have
├── SlowHead, SlowBody, SlowMessage  a request or message that arrives too slowly
├── CompressedBody                   a body that would have to be decompressed
├── UnsupportedMedia, NotAcceptable  a media type that the proxy does not accept, or cannot produce
├── NoSuchNode                       no storage node has this number
├── TooBusy                          as much is in flight as the proxy allows
├── TooSlow                          a consumer that reads nothing
├── Stopping, SubscriptionOver       a subscription that the proxy ends: resume it elsewhere or again
├── ForeignOrigin                    a page of another site wants to use this one
├── Misdirected                      a request for a host that this proxy does not answer for
└── DeadlinePassed                   there was no answer in time

OutcomeUnknown
└── ChangeUnknown                    a change of the cluster that may have been made
"""

from __future__ import annotations

from collections.abc import Sequence

from varlog.model.errors import OutcomeUnknown, VarlogError


class ProxyError(VarlogError):
    """A request that the proxy refuses itself: nothing was sent to the log."""

    status = 400
    remedy = "Change the request; GET /openapi.json describes what the proxy accepts."


class BadBody(ProxyError):
    """The body cannot be read."""

    status = 422
    remedy = "Send a body as GET /openapi.json describes it for this media type."

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"the body cannot be read: {self.why}"


class BadParameter(ProxyError):
    """A part of the request has a value that it cannot have."""

    status = 422

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where = where
        self.why = why

    def message(self) -> str:
        return f"{self.where}: {self.why}"


class BodyTooLarge(ProxyError):
    """The body is over the limit."""

    status = 413
    remedy = "Send less at once, or start the proxy with a larger limit for bodies."

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def message(self) -> str:
        return f"a body may have {self.limit} bytes, and this one has more"


class MalformedRequest(ProxyError):
    """What arrived is not an HTTP request."""

    status = 400

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"this is not an HTTP request: {self.why}"


class HeadTooLarge(ProxyError):
    """The head of the request is over the limit."""

    status = 431
    remedy = "Send fewer and shorter headers, and a shorter query."

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.limit = limit

    def message(self) -> str:
        return f"the head of a request may have {self.limit} bytes, and this one has more"


class SlowHead(ProxyError):
    """The head of the request was not complete in time."""

    status = 408
    remedy = "Send the head of a request immediately; close unused connections."

    def __init__(self, head_s: float) -> None:
        super().__init__(head_s)
        self.head_s = head_s

    def message(self) -> str:
        return f"the head of a request was not complete within {self.head_s:g} s"


class SlowBody(ProxyError):
    """The body arrives too slowly."""

    status = 408
    remedy = "Send the body faster, or less at a time; nothing of it was sent to the log."

    def __init__(self, bytes_s_min: int) -> None:
        super().__init__(bytes_s_min)
        self.bytes_s_min = bytes_s_min

    def message(self) -> str:
        return f"less than {self.bytes_s_min} bytes of the body arrive in a second"


class SlowMessage(ProxyError):
    """A message of a WebSocket was not finished in time."""

    status = 408
    remedy = "Send a message without pauses and in few frames; nothing of it was sent to the log."

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"a message was begun and is not finished: {self.why}"


class UnsupportedMedia(ProxyError):
    """The media type of the body is not accepted here."""

    status = 415

    def __init__(self, media_type: str, accepted: Sequence[str]) -> None:
        super().__init__(media_type, list(accepted))
        self.media_type = media_type
        self.accepted = list(accepted)
        self.remedy = f"Name the type of the body with Content-Type: {', '.join(accepted)}."

    def message(self) -> str:
        return f"a body of type {self.media_type!r} is not accepted here"


class CompressedBody(ProxyError):
    """The body is compressed, and the proxy does not decompress it."""

    status = 415
    remedy = "Send the body uncompressed, without Content-Encoding; compressed data can be an entry of application/octet-stream."

    def __init__(self, coding: str) -> None:
        super().__init__(coding)
        self.coding = coding

    def message(self) -> str:
        return f"a body with Content-Encoding {self.coding!r} is not accepted here: a few bytes of it can become any number"


class NotAcceptable(ProxyError):
    """The response is not available in any of the accepted media types."""

    status = 406

    def __init__(self, asked: str, offered: Sequence[str]) -> None:
        super().__init__(asked, list(offered))
        self.asked = asked
        self.offered = list(offered)
        self.remedy = f"Ask with Accept for one of {', '.join(offered)}."

    def message(self) -> str:
        return f"there is no response of type {self.asked!r} here"


class NoSuchNode(ProxyError):
    """No storage node has this number."""

    status = 404
    remedy = "See GET /v1/nodes."

    def __init__(self, node: int) -> None:
        super().__init__(node)
        self.node = node

    def message(self) -> str:
        return f"there is no storage node {self.node}"


class TooBusy(ProxyError):
    """As much is in flight as the proxy allows."""

    status = 429
    remedy = "Try again a little later; this was not sent to the log."

    def __init__(self, what: str, limit: int) -> None:
        super().__init__(what, limit)
        self.what = what
        self.limit = limit

    def message(self) -> str:
        return f"the proxy has as many {self.what} in flight as it allows: {self.limit}"


class TooSlow(ProxyError):
    """A consumer read nothing for too long and was dropped."""

    status = 408
    remedy = "Read faster; resume after the last entry that arrived."

    def __init__(self, slow_s: float) -> None:
        super().__init__(slow_s)
        self.slow_s = slow_s

    def message(self) -> str:
        return f"the consumer read nothing for {self.slow_s:g} s and was dropped"


class ChangeUnknown(OutcomeUnknown):
    """It is not known whether a change of the cluster was made."""

    def message(self) -> str:
        return f"it is not known whether this was done: {self.why}"


class DeadlinePassed(ProxyError):
    """There was no answer before the deadline."""

    status = 504
    remedy = "Try again, or allow more time with the parameter `timeout`."

    def __init__(self, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self.timeout_s = timeout_s

    def message(self) -> str:
        return f"there was no answer within {self.timeout_s:g} s"


class Stopping(ProxyError):
    """The proxy is stopping."""

    status = 503
    remedy = "Connect to another proxy, or to this one a little later, and resume after the last entry that arrived."

    def message(self) -> str:
        return "the proxy is stopping, and its subscriptions end"


class SubscriptionOver(ProxyError):
    """A subscription lasted as long as the proxy allows."""

    status = 503
    remedy = "Connect again, and resume after the last entry that arrived."

    def __init__(self, subscription_s: float) -> None:
        super().__init__(subscription_s)
        self.subscription_s = subscription_s

    def message(self) -> str:
        return f"a subscription may last {self.subscription_s:g} s here, and this one did"


class ForeignOrigin(ProxyError):
    """A page of another site tried to use this proxy through a browser."""

    status = 403
    remedy = (
        "Use the dashboard of this proxy, or a program. A program that calls itself Mozilla names a Content-Type that no form has, "
        "such as application/octet-stream."
    )

    def __init__(self, origin: str, host: str) -> None:
        super().__init__(origin, host)
        self.origin = origin
        self.host = host

    def message(self) -> str:
        return f"a page of {self.origin} may not use {self.host}"


class Misdirected(ProxyError):
    """The request is for a host that this proxy does not answer for."""

    status = 421
    remedy = (
        "Use one of the hosts that the detail lists, or start the proxy with --public-name NAME for each further one that clients "
        "reach it by."
    )

    def __init__(self, host: str, accepted: str) -> None:
        super().__init__(host, accepted)
        self.host = host
        self.accepted = accepted

    def message(self) -> str:
        asked = f"the host {self.host!r}" if self.host else "a request without a host"
        return f"this proxy does not answer for {asked}, but for: {self.accepted}"
