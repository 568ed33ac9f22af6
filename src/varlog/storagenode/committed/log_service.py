"""[A3 A6 R3] Serves what clients and other replicas ask of a node's replicas.

`LogService` serves clients; `ReplicaService` serves a primary that replicates to its backups, and a replica that is filled from a
sealed one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from varlog.model.epoch import NO_EPOCH
from varlog.model.errors import (
    InvalidRequest,
    NotWritten,
    Trimmed,
    Unavailable,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID
from varlog.model.limits import FETCH_WAIT_S_MAX, FETCHES_WAITING_MAX
from varlog.model.status import ReplicaState
from varlog.rpc.messages import (
    Append,
    AppendAt,
    AppendIdempotent,
    CopyFrom,
    Done,
    Fetch,
    FindAppend,
    FindTime,
    ListIdempotentBatches,
    MeasureRange,
    ReadAt,
    ReadAtReply,
    ReplicaOpen,
    Replicate,
)
from varlog.rpc.transport import Call, Connection
from varlog.runtime.fair_places import FairPlaces
from varlog.runtime.logging import get_logger, logfmt
from varlog.storagenode.committed.replica import Replica
from varlog.storagenode.topic_watermarks import TopicWatermarks


class LogService:
    """Passes each call to its replica. After a start, reads wait for the repository's first message (law 9)."""

    def __init__(self, replicas: Mapping[LogStreamID, Replica], marks: TopicWatermarks) -> None:
        self._replicas = replicas
        self._marks = marks
        self._waiting: FairPlaces[int, tuple[Call, ReadAt, asyncio.TimerHandle]] = FairPlaces()
        self._next_key = 0

    def append(self, call: Call, request: Append, payload: bytearray) -> None:
        self._replica(request.log_stream).append(call, request, payload)

    def append_if(self, call: Call, request: AppendIdempotent | AppendAt, payload: bytearray) -> None:
        self._replica(request.log_stream).append_if(call, request, payload)

    def find_append(self, call: Call, request: FindAppend) -> None:
        self._replica(request.log_stream).find_append(call, request)

    def list_batches(self, call: Call, request: ListIdempotentBatches) -> None:
        replica = self._replica(request.log_stream)
        self._check_readable(replica)
        if not replica.is_authoritative:
            raise Unavailable(f"this replica of log stream {request.log_stream} is being filled: ask again")
        replica.batch_list.list(call, request)

    def fetch(self, call: Call, request: Fetch) -> None:
        replica = self._replica(request.log_stream)
        self._check_readable(replica)
        if not replica.is_authoritative and replica.reader.begin(request) >= replica.store.committed_end:
            raise Unavailable(
                f"this replica of log stream {request.log_stream} is being filled: ask another one"
            )
        replica.reader.fetch(call, request)

    def read_at(self, call: Call, request: ReadAt) -> None:
        """Read by (stream, LLSN), or by GLSN among the topic's streams on this node."""
        if request.log_stream:
            replica = self._replica(request.log_stream)
            self._check_readable(replica)
            if not replica.is_authoritative and request.llsn >= replica.store.committed_end:
                raise Unavailable(
                    f"this replica of log stream {request.log_stream} is being filled: ask another one"
                )
            replica.reader.read_llsn(call, request.llsn)
        elif request.glsn < 1:
            raise InvalidRequest(f"position {request.glsn} does not exist: positions start at 1")
        elif not self._read_glsn(call, request):
            self._keep(call, request)

    def measure(self, call: Call, request: MeasureRange) -> None:
        replica = self._replica(request.log_stream)
        self._check_readable(replica)
        call.reply(replica.reader.measure(request, is_authoritative=replica.is_authoritative))

    def find_time(self, call: Call, request: FindTime) -> None:
        replica = self._replica(request.log_stream)
        self._check_readable(replica)
        if not replica.is_authoritative:
            raise Unavailable(
                f"this replica of log stream {request.log_stream} is being filled: ask another one"
            )
        replica.reader.find_time(call, request)

    def wake(self) -> None:
        """The watermarks moved: answer the reads that waited for them."""
        for key in [key for key, (_, request, _) in self._waiting.items() if self._is_ordered(request)]:
            call, request, timer = self._waiting.pop(key)
            timer.cancel()
            try:
                self._read_glsn(call, request)
            except Exception as error:  # noqa: BLE001 - the call needs an answer, whatever happened
                call.fail(error)

    def close(self) -> None:
        for _, _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _read_glsn(self, call: Call, request: ReadAt) -> bool:
        """False if the position is not ordered yet, as far as this node knows."""
        replicas = [replica for replica in self._replicas.values() if replica.topic == request.topic]
        for replica in replicas:
            self._check_readable(replica)
        trimmed = self._marks.trimmed(request.topic)
        if request.glsn <= trimmed:
            raise Trimmed(request.glsn, trimmed + 1)
        for replica in replicas:
            llsn = replica.reader.find(request.glsn)
            if llsn is not None:
                replica.reader.read_llsn(call, llsn)
                return True
        if not self._is_ordered(request):
            return False
        if any(replica.epoch != NO_EPOCH and not replica.is_authoritative for replica in replicas):
            raise Unavailable(f"a replica here lacks entries: position {request.glsn} may be in one of them")
        call.reply(ReadAtReply(found=False))
        return True

    def _is_ordered(self, request: ReadAt) -> bool:
        return request.glsn <= self._marks.high_watermark(request.topic)

    def _keep(self, call: Call, request: ReadAt) -> None:
        client = call.connection
        left = self._waiting.make_room(client, FETCHES_WAITING_MAX) if request.wait_s > 0 else None
        if left is None:
            raise NotWritten(request.glsn, self._marks.high_watermark(request.topic))
        for other, asked, timer in left:
            timer.cancel()
            other.fail(NotWritten(asked.glsn, self._marks.high_watermark(asked.topic)))
        key = self._next_key = self._next_key + 1
        wait_s = min(request.wait_s, FETCH_WAIT_S_MAX)
        timer = asyncio.get_running_loop().call_later(wait_s, self._expire, key)
        self._waiting.put(key, client, (call, request, timer))

    def _expire(self, key: int) -> None:
        call, request, _ = self._waiting.pop(key)
        call.fail(NotWritten(request.glsn, self._marks.high_watermark(request.topic)))

    def _replica(self, log_stream: LogStreamID) -> Replica:
        replica = self._replicas.get(log_stream)
        if replica is None:
            raise UnknownLogStream(log_stream)
        return replica

    def _check_readable(self, replica: Replica) -> None:
        if not self._marks.received:
            raise Unavailable(
                "this node has just started and has not received the watermarks of the metadata repository yet"
            )
        if replica.state is ReplicaState.FROZEN:
            raise Unavailable(f"log stream {replica.log_stream} is frozen on this node")


_log = get_logger("backup")


class ReplicaService:
    """[A6] The backup's side of replication, where an error closes the connection; and the source's side of a sync."""

    def __init__(self, replicas: Mapping[LogStreamID, Replica]) -> None:
        self._replicas = replicas

    def open(self, call: Call, request: ReplicaOpen) -> None:
        replica = self._replicas.get(request.log_stream)
        if replica is None:
            raise UnknownLogStream(request.log_stream)
        replica.open_upstream(request)
        call.reply(Done())

    def copy(self, call: Call, request: CopyFrom) -> None:
        replica = self._replicas.get(request.log_stream)
        if replica is None:
            raise UnknownLogStream(request.log_stream)
        replica.copy_source.copy(call, request)

    def replicate(self, upstream: Connection, request: Replicate, payload: bytearray) -> None:
        replica = self._replicas.get(request.log_stream)
        try:
            if replica is None:
                raise UnknownLogStream(request.log_stream)
            replica.replicate(request, payload)
        except VarlogError as refusal:
            _log.warning(logfmt("replication refused", log_stream=request.log_stream, why=refusal))
            upstream.close()
