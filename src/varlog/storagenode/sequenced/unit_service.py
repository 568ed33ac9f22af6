"""[Q5] UnitService: passes calls of clients, manager and nodes to log units.

Write, fill, read, fetch, seal, list, copy, sync.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from varlog.model.errors import UnknownLogStream
from varlog.model.ids import LogStreamID
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import (
    CopyUnit,
    FetchUnit,
    FillUnit,
    FindUnitTime,
    ListUnit,
    MeasureUnit,
    ReadUnit,
    SealUnit,
    SealUnitReply,
    SyncReply,
    SyncUnit,
    WriteUnit,
)
from varlog.rpc.transport import Call
from varlog.storagenode.sequenced.unit import LogUnit


class UnitService:
    """Finds the unit and passes the call to it. `reopen_stream` opens what the disk refused at the start."""

    def __init__(
        self, units: Mapping[LogStreamID, LogUnit], reopen_stream: Callable[[LogStreamID], Awaitable[None]]
    ) -> None:
        self._units = units
        self._reopen_stream = reopen_stream

    def serve(self, calls: Dispatcher) -> None:
        """Handlers that never wait answer their calls themselves: no task is created per request."""
        calls.on(WriteUnit, self._write)
        calls.on(FillUnit, self._fill)
        calls.on(ReadUnit, self._read)
        calls.on(FetchUnit, self._fetch)
        calls.on(MeasureUnit, self._measure)
        calls.on(FindUnitTime, self._find_time)
        calls.on(ListUnit, self._list)
        calls.on(CopyUnit, self._copy)
        calls.on_async(SealUnit, self._seal)
        calls.on_async(SyncUnit, self._sync)

    def _write(self, call: Call | None, request: WriteUnit, payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).write(call, request, payload)

    def _fill(self, call: Call | None, request: FillUnit, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).fill(call, request)

    def _read(self, call: Call | None, request: ReadUnit, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).reader.read(call, request)

    def _fetch(self, call: Call | None, request: FetchUnit, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).reader.fetch(call, request)

    def _measure(self, call: Call | None, request: MeasureUnit, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).reader.measure(call, request)

    def _find_time(self, call: Call | None, request: FindUnitTime, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).reader.find_time(call, request)

    def _list(self, call: Call | None, request: ListUnit, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).reader.list(call, request)

    def _copy(self, call: Call | None, request: CopyUnit, _payload: bytearray) -> None:
        if call is not None:
            self._unit(request.log_stream).reader.copy(call, request)

    async def _seal(self, request: SealUnit, _payload: bytearray) -> SealUnitReply:
        await self._reopen_stream(request.log_stream)
        return await self._unit(request.log_stream).seal(request.epoch)

    async def _sync(self, request: SyncUnit, _payload: bytearray) -> SyncReply:
        await self._reopen_stream(request.log_stream)
        return SyncReply(self._unit(request.log_stream).sync(request))

    def _unit(self, log_stream: LogStreamID) -> LogUnit:
        unit = self._units.get(log_stream)
        if unit is None:
            raise UnknownLogStream(log_stream)
        return unit
