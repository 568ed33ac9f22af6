"""[R2] Reader: point reads by GLSN, or by stream and LLSN (R-READ-1, R-READ-4).

It asks any replica, and the next one if that fails.
"""

from __future__ import annotations

import asyncio

from varlog.client.chunk import Chunk
from varlog.client.node_client import DamageReports
from varlog.client.ordering import check_position
from varlog.client.retry import Backoff
from varlog.client.routing import ATTEMPT_S, Routing, expect
from varlog.client.routing_rules import cover, in_turn
from varlog.model.cluster import LogStream
from varlog.model.entry import Entry
from varlog.model.errors import (
    CorruptBatch,
    NotWritten,
    TopicStopped,
    Trimmed,
    Unavailable,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import ReadAt, ReadAtReply
from varlog.runtime.logging import get_logger, logfmt

# How long a node that lags behind the repository may take to learn of an ordered position.
BEHIND_S = 1.0
# A wait shorter than this does not count as a failure of the node.
PATIENT_S = 0.5

logger = get_logger("client")


class Reader:
    """The point reads of one client of one topic."""

    def __init__(self, routing: Routing) -> None:
        self._routing = routing
        self._reports = DamageReports(routing)

    async def read(self, glsn: GLSN, timeout_s: float) -> Entry:
        check_position("GLSN", glsn)
        backoff = Backoff(self._routing.environment, timeout_s)
        wait_s, trouble = 0.0, "no set of storage nodes covers the topic"
        failed: dict[NodeID, float] = {}
        while True:
            self._routing.check_open()
            topic = self._routing.topic
            nodes = self._cover(topic.topic, failed)
            request = ReadAt(topic.topic, glsn, wait_s=min(wait_s, backoff.remaining_s))
            answers = await asyncio.gather(*(self._ask(node, request, backoff) for node in nodes or ()))
            behind = False
            for node, answer in zip(nodes or (), answers, strict=True):
                if isinstance(answer, Entry):
                    return answer
                if isinstance(answer, Trimmed):
                    raise answer
                if isinstance(answer, NotWritten):
                    behind = True
                elif answer is not None:
                    failed[node] = 0.0
                    trouble = str(answer)
            if behind:
                tail = await self._routing.tail(backoff.remaining_s)
                if glsn > tail.high_watermark:
                    if self._routing.stopped:  # an unreachable node may know a newer position
                        raise Unavailable(
                            f"position {glsn} is above the newest known one, {tail.high_watermark}, and "
                            f"{TopicStopped(self._routing.topic_name, self._routing.stopped)}"
                        )
                    raise NotWritten(glsn, tail.high_watermark)
                wait_s = BEHIND_S
            if backoff.spent:
                raise Unavailable(f"position {glsn} could not be read within {timeout_s:g} s: {trouble}")
            if nodes is None or not (behind or failed):
                # All nodes failed, or each of them lacks the stream with this position: the view is old.
                failed.clear()
                self._routing.refresh_soon()
                await backoff.wait()

    async def read_stream(self, log_stream: LogStreamID, llsn: LLSN, timeout_s: float) -> Entry:
        check_position("LLSN", llsn)
        backoff = Backoff(self._routing.environment, timeout_s)
        trouble = "no replica answered"
        while True:
            self._routing.check_open()
            stream = next((s for s in self._routing.streams if s.log_stream == log_stream), None)
            if stream is None:
                await self._routing.refresh(backoff.remaining_s)
                if all(s.log_stream != log_stream for s in self._routing.streams):
                    raise UnknownLogStream(log_stream)
                continue
            request = ReadAt(stream.topic, log_stream=log_stream, llsn=llsn)
            for node in in_turn(
                stream.replicas, self._routing.turn, self._routing.failure_detector.avoided()
            ):
                answer = await self._ask(node, request, backoff)
                if isinstance(answer, Entry):
                    return answer
                if isinstance(answer, Trimmed):
                    raise answer
                # Only the primary knows everything that it acknowledged; a lagging backup cannot prove that an entry does not
                # exist.
                if isinstance(answer, NotWritten) and node == stream.primary:
                    if await self._is_newest(stream, backoff):
                        raise answer
                    break  # it is no longer the primary: ask the current replicas
                if answer is not None:
                    trouble = str(answer)
            if backoff.spent:
                raise Unavailable(
                    f"LLSN {llsn} of log stream {log_stream} could not be read within {timeout_s:g} s: {trouble}"
                )
            self._routing.refresh_soon()
            await backoff.wait()

    async def _is_newest(self, stream: LogStream, backoff: Backoff) -> bool:
        """Whether the repository knows no newer epoch of the stream, so that no other primary can have acknowledged anything in
        it."""
        view = await self._routing.refresh(backoff.remaining_s)
        now = view.stream(stream.log_stream)
        return now is not None and now.epoch == stream.epoch

    def _cover(self, topic: TopicID, failed: dict[NodeID, float]) -> dict[NodeID, list[LogStreamID]] | None:
        """The nodes to ask: none that failed for this read, and, if possible, none that failed recently for other reads."""
        view, turn = self._routing.view, self._routing.turn
        return cover(view, topic, turn, self._routing.failure_detector.avoided() | failed) or cover(
            view, topic, turn, failed
        )

    async def _ask(self, node: NodeID, request: ReadAt, backoff: Backoff) -> Entry | VarlogError | None:
        """The entry, or the error of the node, or None if the position is in a stream that the node does not store."""
        attempt_s = min(backoff.remaining_s, ATTEMPT_S)
        try:
            connection = await self._routing.connection_to(node, attempt_s)
            answer_s = min(
                request.wait_s + attempt_s, backoff.remaining_s
            )  # connecting took some of the time
            got, payload = await connection.call(request, timeout_s=answer_s)
            found = expect(got, ReadAtReply)
            entry = _entry(found, payload, request) if found.found else None
            self._routing.failure_detector.node_answered(node)
            return entry
        except (NotWritten, Trimmed) as answer:
            return answer
        except VarlogError as error:
            if isinstance(error, CorruptBatch):
                self._report_damage(
                    node, request, error
                )  # not counted against the node: its other entries are intact
            else:
                self._routing.report_failure(node, error, patient=attempt_s >= PATIENT_S)
            return error

    def _report_damage(self, node: NodeID, request: ReadAt, error: CorruptBatch) -> None:
        """Report damage, if the request was by LLSN: a node that was asked by GLSN has checked the entry, and knows already."""
        if request.log_stream:
            self._reports.report(node, request.log_stream, request.llsn, LLSN(request.llsn + 1), error)
        else:
            logger.warning(
                logfmt("a storage node has a damaged entry", node=node, position=request.glsn, why=error)
            )


def _entry(found: ReadAtReply, payload: bytearray, request: ReadAt) -> Entry:
    chunk = Chunk(payload)
    if chunk.end_llsn - chunk.first_llsn != 1:
        raise CorruptBatch("requested one entry, received several")
    entry = chunk.entries(found.log_stream, found.glsn, chunk.first_llsn, 1)[0]
    if (entry.glsn != request.glsn and request.glsn) or (entry.llsn != request.llsn and request.llsn):
        raise CorruptBatch(f"received an entry other than the requested one: {entry.position}")
    return entry
