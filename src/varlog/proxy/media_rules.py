"""PURE. Media types: which of those on offer a caller accepts best (RFC 9110), and what a Content-Type names."""

from __future__ import annotations

from collections.abc import Sequence

JSON = "application/json"
NDJSON = "application/x-ndjson"
OCTETS = "application/octet-stream"
TEXT = "text/plain"
ARROW = "application/vnd.apache.arrow.stream"


def media_type(content_type: str) -> str:
    """The media type of a Content-Type, without its parameters. Without one a body is bytes (RFC 9110)."""
    return content_type.partition(";")[0].strip().lower() or OCTETS


def best(accept: str, offers: Sequence[str]) -> str | None:
    """The offer that the caller likes best; the first of equals; None if he accepts none. No Accept accepts everything."""
    wishes = [_wish(part) for part in accept.split(",") if part.strip()]
    if not wishes:
        return offers[0]
    graded = [(_grade(offer, wishes), -at, offer) for at, offer in enumerate(offers)]
    grade, _, offer = max(graded)
    return offer if grade > 0 else None


def _wish(part: str) -> tuple[str, float]:
    """(media range, weight) of one part of an Accept. A weight that is no number counts as none given."""
    name, _, parameters = part.partition(";")
    weight = 1.0
    for parameter in parameters.split(";"):
        key, _, value = parameter.partition("=")
        if key.strip().lower() == "q":
            try:
                weight = float(value)
            except ValueError:
                weight = 1.0
    return name.strip().lower(), weight if 0.0 <= weight <= 1.0 else 1.0


def _grade(offer: str, wishes: Sequence[tuple[str, float]]) -> float:
    """The weight of the most precise range that the offer is in; 0 if it is in none."""
    family = f"{offer.partition('/')[0]}/*"
    for wanted in (offer, family, "*/*"):
        weights = [weight for name, weight in wishes if name == wanted]
        if weights:
            return max(weights)
    return 0.0
