"""HistoryFile: the calls of one client process, recorded as they begin and end.

The files of several clients make one history.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import msgspec

from varlog.verify.history import AppendCall, ClientCall, History, ReadCall, SubscribeCall, TailCall, TrimCall

_KINDS: dict[str, type[ClientCall]] = {
    kind.__name__: kind for kind in (AppendCall, ReadCall, SubscribeCall, TrimCall, TailCall)
}
_COMPLAINT = "complaint"
_LENGTH_BYTES = 4
# How late a reply may arrive where real processes share two cores with the whole cluster, and the machine may pause: what
# never ends is found all the same.
REAL_SLACK_S = 30.0


class RealHistory(History):
    """A history whose events are nanoseconds of CLOCK_MONOTONIC: all processes of a machine share it, so their events have
    one order."""

    def __init__(self) -> None:
        super().__init__()
        self.deadline_slack_s = REAL_SLACK_S

    def event(self) -> int:
        self._events = time.monotonic_ns()
        return self._events


class HistoryWriter:
    """Appends records. What was written is there even if this process is killed in the next moment."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("ab", buffering=0)

    def write(self, operation: ClientCall) -> None:
        """Once when it begins, so that an entry has its owner whatever happens, and once when it has ended."""
        self._put(type(operation).__name__, msgspec.msgpack.encode(operation))

    def complain(self, what: str) -> None:
        self._put(_COMPLAINT, msgspec.msgpack.encode(what))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def _put(self, kind: str, body: bytes) -> None:
        record = msgspec.msgpack.encode((kind, msgspec.Raw(body)))
        self._file.write(len(record).to_bytes(_LENGTH_BYTES, "little") + record)


class HistoryFile:
    """One client's file, read while it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0
        self._operations: dict[tuple[str, int], ClientCall] = {}
        self.complaints: list[str] = []
        self.acknowledged = 0

    @property
    def operations(self) -> list[ClientCall]:
        return list(self._operations.values())

    def refresh(self) -> None:
        """Take in what was written since the last look; a record that is not whole yet is left for the next."""
        for kind, body in self._records():
            if kind == _COMPLAINT:
                self.complaints.append(msgspec.msgpack.decode(body, type=str))
                continue
            operation = msgspec.msgpack.decode(body, type=_KINDS[kind])
            self._operations[operation.client, operation.started] = operation
            if isinstance(operation, AppendCall) and operation.first is not None:
                self.acknowledged += 1

    def _records(self) -> Iterator[tuple[str, bytes]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                written = file.read()
        except FileNotFoundError:
            return
        at = 0
        while len(written) - at >= _LENGTH_BYTES:
            begin = at + _LENGTH_BYTES
            end = begin + int.from_bytes(written[at:begin], "little")
            if end > len(written):
                break
            kind, body = msgspec.msgpack.decode(written[begin:end], type=tuple[str, msgspec.Raw])
            yield kind, bytes(body)
            at = end
        self._read_bytes += at


def merged_history(files: Iterable[HistoryFile]) -> RealHistory:
    """One history of all clients, in real-time order. A client that was killed left its last operations open."""
    history = RealHistory()
    for file in files:
        file.refresh()
        history.operations += file.operations
        history.complaints += file.complaints
    for operation in history.operations:
        operation.abandoned = operation.ended is None
    history.operations.sort(key=lambda operation: operation.started)
    return history
