"""Entries out of a request's body: JSON, lines, or the body as one entry."""

from __future__ import annotations

from collections.abc import Callable

from varlog.proxy.entry_json import entries_of_json
from varlog.proxy.errors import BadBody, UnsupportedMedia
from varlog.proxy.media_rules import JSON, NDJSON, OCTETS, TEXT, media_type


def _lines(body: bytes) -> list[bytes]:
    """Every line is an entry, also an empty one; the newline is no part of it, and the last one may lack it."""
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _json_lines(body: bytes) -> list[bytes]:
    """Every line is an entry, stored as it is; empty lines are passed over, as is usual there."""
    return [line for line in _lines(body) if line.strip()]


_READERS: dict[str, Callable[[bytes], list[bytes]]] = {
    JSON: entries_of_json,
    OCTETS: lambda body: [body],
    NDJSON: _json_lines,
    TEXT: _lines,
}


def entries_of_body(content_type: str, body: bytes) -> list[bytes]:
    """The entries that a body holds. UnsupportedMedia, BadBody."""
    if not content_type and not body:
        # An entry may be empty, but somebody who means that says what he sends.
        raise BadBody("there is none")
    read = _READERS.get(media_type(content_type))
    if read is None:
        raise UnsupportedMedia(content_type, list(_READERS))
    return read(body)
