"""A scripted cluster that takes appends on a condition as a primary does, and lists chains."""

from __future__ import annotations

from tests.client.fakes import FakeCluster
from varlog.model.batch import BatchHeader, parse_header
from varlog.model.cluster import StreamState
from varlog.model.errors import NotAccepted, PositionConflict, Sealed, SequenceConflict
from varlog.model.ids import LogStreamID, ProducerID
from varlog.rpc.messages import (
    AppendAt,
    AppendIdempotent,
    AppendReply,
    ListIdempotentBatches,
    ListIdempotentBatchesReply,
    Message,
)
from varlog.rpc.transport import Call
from varlog.storagenode.committed.idempotent_rules import ProducedBatch, Sent, SequenceDecision, decide

Conditional = AppendIdempotent | AppendAt


class ChainedCluster(FakeCluster):
    """Every append is ordered at once, unless it is held. `rivals`: called before each chained append is judged, as another attempt
    that is a little faster."""

    def __init__(self, *, nodes: int = 1, streams: int = 1) -> None:
        super().__init__(nodes=nodes, streams=streams)
        self.chains: dict[tuple[LogStreamID, ProducerID], list[tuple[BatchHeader, AppendReply]]] = {}
        # Who sent the newest batch of each.
        self.attempts: dict[tuple[LogStreamID, ProducerID], int] = {}
        self.in_flight_most = 1 << 30
        self.rivals: list[tuple[Conditional, bytearray]] = []
        self.requests_held: list[Conditional] = []
        self.page = 1000

    @property
    def rows(self) -> list[bytes]:
        """What is in the log, in order."""
        return [row for batch in self.batches_seen for row in batch]

    def _handle(self, address: str, call: Call, message: Message, payload: bytearray) -> None:
        if isinstance(message, ListIdempotentBatches):
            if (error := self._failure(address)) is not None:
                raise error
            call.reply(self._list(message))
        elif isinstance(message, Conditional):
            if address.startswith("node") and (error := self._failure(address)) is not None:
                raise error
            self._append_if(call, message, payload)
        else:
            super()._handle(address, call, message, payload)

    def _list(self, message: ListIdempotentBatches) -> ListIdempotentBatchesReply:
        found = [
            (header.sequence, at.llsn, header.count, header.body_crc)
            for header, at in self.chains.get((message.log_stream, message.producer), [])
            if at.llsn > message.min_llsn and at.glsn > max(message.min_glsn, self.trimmed)
        ]
        return ListIdempotentBatchesReply(tuple(found[: self.page]), more=len(found) > self.page)

    def _append_if(self, call: Call, message: Conditional, payload: bytearray) -> None:
        if self._stream(message.log_stream).state is not StreamState.RUNNING:
            raise Sealed(message.log_stream)
        if len(self.held) >= self.in_flight_most:
            raise NotAccepted("too much in flight")
        if self.hold_appends:
            self.held.append((call, message.log_stream, payload))
            self.requests_held.append(message)
            return
        if self.rivals:
            self.take(*self.rivals.pop(0))
        call.reply(self.take(message, payload))

    def take_held(self, *, answer: bool) -> None:
        """The oldest held append arrives, in the eyes of the primary; its answer may be lost."""
        call, _, payload = self.held.pop(0)
        message = self.requests_held.pop(0)
        try:
            taken = self.take(message, payload)
        except (SequenceConflict, PositionConflict) as refusal:
            if answer:
                call.fail(refusal)
        else:
            if answer:
                call.reply(taken)

    def take(self, message: Conditional, payload: bytearray) -> AppendReply:
        header = parse_header(payload, signed=False)
        if isinstance(message, AppendAt) and message.expected_llsn != self.streams[message.log_stream].end:
            raise PositionConflict(
                message.log_stream, message.expected_llsn, self.streams[message.log_stream].end
            )
        name = message.log_stream, header.producer
        chain = self.chains.setdefault(name, [])
        if isinstance(message, AppendIdempotent):
            newest = chain[-1] if chain else None
            link = newest and ProducedBatch(
                header.producer,
                newest[0].sequence,
                newest[1].llsn,
                newest[0].body_crc,
                self.attempts[name],
            )
            sent = Sent(
                header.sequence,
                header.body_crc,
                message.previous_crc,
                message.writer_attempt,
                message.known_sequence,
            )
            decision = decide(link or None, sent)
            if decision is SequenceDecision.DUPLICATE and newest:
                return newest[1]
            if decision is SequenceDecision.CONFLICT:
                raise SequenceConflict(message.log_stream, header.sequence, link.sequence if link else 0)
        appended = self.order(message.log_stream, bytearray(payload))
        chain.append((header, appended))
        self.attempts[name] = message.writer_attempt if isinstance(message, AppendIdempotent) else 0
        return appended
