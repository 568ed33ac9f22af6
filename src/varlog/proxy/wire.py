"""The shapes of requests and answers about entries, as pydantic models: what the OpenAPI document is made of."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

# The largest position in a request's JSON: up to here every reader of JSON has numbers exactly (RFC 8259).
JSON_POSITION_MAX = 2**53 - 1

GlsnField = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """A request: a field that it does not have is refused, so that a slip of the pen is not passed over."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, given: Any) -> Any:
        """7.0 is the number 7 in JSON, however it was written."""
        if not isinstance(given, dict):
            return given
        return {name: _whole(value) for name, value in given.items()}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Encoding(StrEnum):
    """How the bytes of an entry are told in JSON."""

    AUTO = "auto"
    TEXT = "text"
    BASE64 = "base64"
    JSON = "json"


class EntryEncoding(StrEnum):
    """How the bytes of this entry are told."""

    TEXT = "text"
    BASE64 = "base64"
    JSON = "json"


class TextEntry(Strict):
    """An entry that is the UTF-8 of a text."""

    text: str


class Base64Entry(Strict):
    """An entry of any bytes, in base64."""

    base64: str = Field(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")


class JsonEntry(Strict):
    """An entry that is a JSON value, stored as it was written."""

    json_value: Any = Field(alias="json", description="Any JSON value.")


class AppendRequest(Strict):
    """Entries that are appended as one atomic batch: all or none, at consecutive positions."""

    entries: list[TextEntry | Base64Entry | JsonEntry] = Field(min_length=1)


class Appended(BaseModel):
    """Where a batch is: `count` entries at consecutive positions, from `glsn` on in the topic and from `llsn` on in the stream."""

    topic: str
    log_stream: int
    glsn: GlsnField
    llsn: GlsnField
    count: int = Field(ge=1)


class EntryOut(BaseModel):
    """One entry. `encoding` says what `data` is: the text, base64 of the bytes, or the JSON value that the bytes are."""

    glsn: GlsnField
    llsn: GlsnField
    log_stream: int
    timestamp: datetime = Field(description="When it was appended, by the clock of who appended it.")
    data: Any
    encoding: EntryEncoding


class Page(BaseModel):
    """Entries in total order. Go on with `from=next`; there is nothing more for now once `next` is above `tail`."""

    entries: list[EntryOut]
    next: GlsnField
    tail: GlsnField


class Tail(BaseModel):
    """The newest and the oldest position of a topic; `oldest` is above `newest` while there is nothing to read."""

    topic: str
    newest: GlsnField
    oldest: GlsnField


class TrimRequest(Strict):
    """Delete every entry at or below `until`, for ever. Without `force` no named reader loses what it has not read."""

    until: int = Field(ge=1, le=JSON_POSITION_MAX)
    force: bool = False
