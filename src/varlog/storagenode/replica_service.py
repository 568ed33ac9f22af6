"""[A6] What replicas ask of each other: a primary of its backups to take batches, one that is filled to copy from a sealed one."""

from __future__ import annotations

from collections.abc import Mapping

from varlog.model.errors import UnknownLogStream, VarlogError
from varlog.model.ids import LogStreamID
from varlog.rpc.messages import CopyFrom, Done, ReplicaOpen, Replicate
from varlog.rpc.transport import Call, Connection
from varlog.runtime.logs import get_logger, logfmt
from varlog.storagenode.log_stream.replica import Replica

_log = get_logger("backup")


class ReplicaService:
    """The backup's side of replication: an error closes the connection, that is its answer. And the source's side of a sync."""

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
