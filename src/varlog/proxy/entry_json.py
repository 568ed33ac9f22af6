"""EntryJson: entries as JSON, with their bytes as text, base64 or a JSON value."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import TypeVar

import msgspec

from varlog.model.entry import Entry
from varlog.proxy.errors import BadBody
from varlog.proxy.wire import Encoding

T = TypeVar("T", bound=msgspec.Struct)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime.max.replace(tzinfo=UTC)


class EntryJson(msgspec.Struct, frozen=True, gc=False):
    """One entry of a response; its schema in the OpenAPI document is wire.EntryOut."""

    glsn: int
    llsn: int
    log_stream: int
    timestamp: datetime
    data: str | bytes | msgspec.Raw  # bytes are encoded as base64
    encoding: str


class PageJson(msgspec.Struct, frozen=True):
    """One page of a response; its schema in the OpenAPI document is wire.EntryPage."""

    entries: list[EntryJson]
    next: int
    tail: int


def entry_json(entry: Entry, encoding: Encoding = Encoding.AUTO) -> EntryJson:
    """The entry for JSON. Bytes that cannot be rendered as asked fall back to AUTO: text where they are UTF-8, else base64."""
    data, how = _data_json(entry.data, encoding)
    return EntryJson(entry.glsn, entry.llsn, entry.log_stream, time_json(entry.time_us), data, how)


def entries_json(entries: Iterable[Entry], encoding: Encoding = Encoding.AUTO) -> list[EntryJson]:
    return [entry_json(entry, encoding) for entry in entries]


def time_json(time_us: int) -> datetime:
    """The time of day; an appender's clock may have had any value."""
    try:
        return _EPOCH + timedelta(microseconds=time_us)
    except OverflowError:
        return _LATEST if time_us > 0 else _EPOCH


def to_json(value: object) -> bytes:
    """JSON without a line break in it."""
    return msgspec.json.encode(value)


def _data_json(data: bytes, encoding: Encoding) -> tuple[str | bytes | msgspec.Raw, str]:
    if encoding is Encoding.BASE64:
        return data, Encoding.BASE64.value
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data, Encoding.BASE64.value
    if encoding is Encoding.JSON and (value := _json_value(data)) is not None:
        return value, Encoding.JSON.value
    return text, Encoding.TEXT.value


def _json_value(data: bytes) -> msgspec.Raw | None:
    """The JSON value of these bytes as written: parsing would change numbers that a float cannot hold."""
    try:
        value = msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return None
    return msgspec.Raw(msgspec.json.format(data, indent=-1)) if b"\n" in data or b"\r" in data else value


# --- requests -------------------------------------------------------------------------------------------------------------


class EntryInput(msgspec.Struct, forbid_unknown_fields=True):
    """One entry of a request: exactly one of its fields is set. Its schema in the OpenAPI document is in wire."""

    text: str | msgspec.UnsetType = msgspec.UNSET
    base64: bytes | msgspec.UnsetType = msgspec.UNSET
    json: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class _AppendBody(msgspec.Struct, forbid_unknown_fields=True):
    entries: list[EntryInput]


_APPEND_BODY = msgspec.json.Decoder(_AppendBody)


def entries_of_json(body: bytes) -> list[bytes]:
    """The entries of {"entries": [{"text": …}, {"base64": …}, {"json": …}]}."""
    return [entry_bytes(entry) for entry in decode_body(_APPEND_BODY, body).entries]


def entry_bytes(entry: EntryInput) -> bytes:
    """The bytes of one entry of a request."""
    if entry.json is not msgspec.UNSET and entry.text is entry.base64 is msgspec.UNSET:
        return bytes(entry.json)
    if entry.text is not msgspec.UNSET and entry.base64 is entry.json is msgspec.UNSET:
        return entry.text.encode()
    if entry.base64 is not msgspec.UNSET and entry.text is entry.json is msgspec.UNSET:
        return entry.base64
    raise BadBody('an entry has exactly one of "text", "base64" and "json"')


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """The parsed body of a request, or BadBody."""
    try:
        body.decode()  # the decoder does not check what it leaves raw, also not that it is UTF-8
        return decoder.decode(body)
    except UnicodeDecodeError as error:
        raise BadBody(f"it is not UTF-8 at byte {error.start}") from error
    except msgspec.DecodeError as error:
        raise BadBody(str(error)) from error
    except RecursionError as error:
        raise BadBody("it is nested too deeply") from error
