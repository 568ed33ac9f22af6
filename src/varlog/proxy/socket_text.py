"""The messages of a WebSocket as JSON: entries, answers to appends, problems; and the appends that come in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from varlog.model.entry import Entry, Run
from varlog.proxy.entry_json import EntryInput, EntryJson, decode_given, entries_json, entry_given, to_json
from varlog.proxy.errors import BadBody
from varlog.proxy.frame_rules import Render
from varlog.proxy.problem import problem_of
from varlog.proxy.wire import Encoding

Ref = msgspec.Raw | msgspec.UnsetType


class AppendFrame(msgspec.Struct, forbid_unknown_fields=True):
    """One append. `ref` is any JSON value, and comes back with the answer."""

    append: list[EntryInput]
    ref: Ref = msgspec.UNSET
    log_stream: int | None = None
    timeout: float | None = None

    @property
    def entries(self) -> list[bytes]:
        return [entry_given(entry) for entry in self.append]


class _Where(msgspec.Struct):
    topic: str
    log_stream: int
    glsn: int
    llsn: int
    count: int


class _AppendedFrame(msgspec.Struct):
    appended: _Where
    ref: Ref


class _ProblemFrame(msgspec.Struct):
    problem: msgspec.Raw
    ref: Ref


class _EntriesFrame(msgspec.Struct):
    entries: list[EntryJson]


_DECODER = msgspec.json.Decoder(AppendFrame)


def append_given(message: bytes) -> AppendFrame:
    """What a message asks for, or BadBody."""
    given = decode_given(_DECODER, message)
    if given.timeout is not None and not 0 < given.timeout < float("inf"):
        raise BadBody(f"a timeout is above zero, in seconds, not {given.timeout}")
    return given


def appended_text(topic: str, run: Run, ref: Ref) -> bytes:
    """Where the entries of an append are."""
    first = run.first
    return to_json(_AppendedFrame(_Where(topic, first.log_stream, first.glsn, first.llsn, run.count), ref))


def problem_text(error: Exception, ref: Ref = msgspec.UNSET) -> bytes:
    """An error, of the append with this `ref`, or of the socket."""
    return to_json(_ProblemFrame(msgspec.Raw(problem_of(error).encoded()), ref))


def _entries(encoding: Encoding, entries: Sequence[Entry]) -> bytes:
    return to_json(_EntriesFrame(entries_json(entries, encoding)))


# One function an encoding, made once: frames know by it what they have rendered already.
RENDERS: Final[dict[Encoding, Render]] = {encoding: partial(_entries, encoding) for encoding in Encoding}
