"""SimConnection: one end of a connection. What it sends is encoded, copied, held up, and arrives in order or never."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from varlog.model.batch import Buffer
from varlog.model.limits import CONNECTION_WRITE_BYTES_MAX
from varlog.rpc.codec import decode, encode, number_of
from varlog.rpc.endpoint import Endpoint
from varlog.rpc.framing import HEADER_BYTES, REPLY, REQUEST, FrameReader, MalformedFrame, frame_head
from varlog.rpc.messages import Message
from varlog.testing.sim.process import Process

if TYPE_CHECKING:
    from varlog.testing.sim.network import SimNetwork


@dataclass(slots=True)
class Frame:
    """One message under way."""

    kind: int
    request: int
    number: int
    meta: bytes
    payload: bytes
    source: Buffer  # what the sender handed over: it must not write to it any more
    spoilt: bool = False  # it was damaged on its way

    def is_believed(self, meta: bytes) -> bool:
        """Whether the reader of frames takes it if its message has become `meta` on its way, and its checksum is as it was."""
        if meta == self.meta:
            return False  # the damage is elsewhere
        facts = self.kind, self.number, self.request, 0
        signed = HEADER_BYTES - 4
        crc = frame_head(*facts, self.meta, self.payload)[signed:HEADER_BYTES]
        wire = frame_head(*facts, meta, self.payload)[:signed] + crc + meta + self.payload
        taken: list[int] = []
        try:
            FrameReader(memoryview(bytearray(wire)), lambda kind, *_: taken.append(kind)).received(len(wire))
        except MalformedFrame:
            return False
        return bool(taken)


class SimConnection(Endpoint):
    """One end; calls, answers and back-pressure are the production code of Endpoint. Its callbacks run in its process."""

    def __init__(self, network: SimNetwork, process: Process, peer: str, *, accepting: bool) -> None:
        super().__init__(asyncio.get_running_loop(), accepting=accepting)
        self.process = process
        self.other: SimConnection
        self._peer = peer
        self._network = network
        self._arrives_at = 0.0
        self._inbox: deque[Frame | None] = deque()  # under way to this end; None is the end of the connection
        self._inbox_bytes = 0
        self._late = 0  # frames whose time came while reading was paused
        self._over = False  # broken, though nobody here has noticed yet
        self._deaf = False  # nothing reaches this end any more, though both may believe in the connection
        self._not_before = 0.0  # what is under way to this end arrives no earlier
        self.posted = 0  # the request that the newest message from this end is, or answers
        network.add(self)

    @property
    def accepting(self) -> bool:
        """Whether the other end dialled."""
        return self._accepting

    # --- Endpoint -----------------------------------------------------------------------------------------------

    def _post(self, kind: int, message: Message, payload: Buffer, request: int) -> None:
        self.process.check()
        network, other = self._network, self.other
        number, meta = number_of[type(message)], encode(message)
        frame_head(kind, number, request, 0, meta, payload)  # refuses what no wire would take
        network.messages += 1
        self.posted = request
        if network.on_message is not None:
            network.on_message(self, message)
            self.process.check()
        if other._closed or self._over:
            return  # lost
        if other._deaf:
            other._inbox_bytes += len(payload)  # never acknowledged, so it stays in the sender's buffer
        else:
            frame = Frame(kind, request, number, meta, bytes(payload), payload)
            frame.spoilt = network.spoil is not None and network.spoil(self, message)
            other._put(frame)
        if other._inbox_bytes > CONNECTION_WRITE_BYTES_MAX and not self._writes_backed_up:
            self._set_writes_backed_up(True)

    def _set_reading(self, reading: bool) -> None:
        if reading:
            late, self._late = self._late, 0
            for _ in range(late):
                self._schedule(0.0)

    def _hang_up(self) -> None:
        self._network.discard(self)
        self._inbox.clear()
        if not self.other._closed and not self.other._deaf:
            self.other._ends_after(self._network.latency())

    # --- how connections end otherwise ----------------------------------------------------------------------------

    def die(self) -> None:
        """This end's process is dead: the other end gets some of what was sent, and notices after a while."""
        self._closed = True
        self._network.discard(self)
        if not self.other._closed and not self.other._deaf:
            self.other._lose_some()
            self.other._ends_after(self._network.notice_delay())

    def snap(self) -> None:
        """The network breaks the connection: both ends lose some of what is under way, and notice when they do."""
        for end in (self, self.other):
            if not end._closed:
                end._over = True
                end._lose_some()
                end._ends_after(self._network.notice_delay())

    def lose(self, *, both_ways: bool) -> None:
        """What this end sends from now on never arrives (both ways: nor what it is sent). Both ends learn of it late: without
        an acknowledgement the network gives the connection up at last, and then they may be of two minds for a while."""
        for end in (self.other, self) if both_ways else (self.other,):
            end._deaf = True
            end._inbox.clear()
        for end in (self, self.other):
            delay = self._network.keep_alive_delay()
            self._loop.call_later(delay, end._give_up, context=end.process.context)

    def _give_up(self) -> None:
        if not self._closed:
            self._network.discard(self)
            self._inbox.clear()
            self._end("nothing comes from the other side any more")

    def straggle(self, late_s: float) -> None:
        """The connection breaks: this end, which dialled, notices at once; what it has sent lies unread at the other, and is
        taken late."""
        dialling, accepting = self, self.other
        if dialling._closed or accepting._closed or accepting._deaf:
            return
        accepting._not_before = self._loop.time() + late_s
        accepting._over = dialling._over = True
        accepting._ends_after(late_s)
        dialling._give_up()

    def _lose_some(self) -> None:
        for _ in range(len(self._inbox) - self._network.kept(len(self._inbox))):
            frame = self._inbox.pop()
            if frame is not None:
                self._inbox_bytes -= len(frame.payload)

    def _ends_after(self, delay: float) -> None:
        self._inbox.append(None)
        self._schedule(delay)

    # --- what arrives ---------------------------------------------------------------------------------------------

    def _put(self, frame: Frame) -> None:
        self._inbox.append(frame)
        self._inbox_bytes += len(frame.payload)
        self._schedule(self._network.latency())

    def _schedule(self, delay: float) -> None:
        here, there = self.process.host, self.other.process.host
        held = self._network.held_until(there, here)
        delay += self._network.distance(here, there)
        self._arrives_at = max(self._arrives_at, self._loop.time() + delay, held)
        self._loop.call_at(self._arrives_at, self._arrive, context=self.process.context)

    def _arrive(self) -> None:
        if self._closed or not self._inbox:
            return
        if self._reading_paused:
            self._late += 1
            return
        if self._not_before > self._loop.time():
            self._loop.call_at(self._not_before, self._arrive, context=self.process.context)
            return
        frame = self._inbox.popleft()
        if frame is None:
            self._network.discard(self)
            self._end("the other side is gone")
            return
        self._inbox_bytes -= len(frame.payload)
        if self.other._writes_backed_up and self._inbox_bytes <= CONNECTION_WRITE_BYTES_MAX // 2:
            self.other._set_writes_backed_up(False)
        if frame.source != frame.payload:
            self._network.complaints.append(
                f"{self._peer} wrote to a payload after sending it to {self.process.name}"
            )
        message = decode(frame.number, frame.meta)
        if frame.spoilt:
            message = self._network.damaged(message)
            # The checksum of the frame tells: nothing of it is believed, and nothing behind it can be found.
            if not frame.is_believed(encode(message)):
                self._break_off("a frame arrived damaged")
                return
        self._take(frame, message)
        if self._network.on_arrival is not None:
            self._network.on_arrival(self, message)

    def _break_off(self, why: str) -> None:
        self._network.discard(self)
        self._inbox.clear()
        if not self.other._closed and not self.other._deaf:
            self.other._ends_after(self._network.latency())
        self._end(why)

    def _take(self, frame: Frame, message: Message) -> None:
        payload = bytearray(frame.payload)
        if frame.kind == REQUEST:
            self._take_request(frame.request, message, payload)
        elif frame.kind == REPLY:
            self._take_reply(frame.request, message, payload)
        else:
            self._take_oneway(message, payload)


def link(
    network: SimNetwork, one: Process, two: Process, address: str
) -> tuple[SimConnection, SimConnection]:
    """The two ends of a new connection from process `one` to process `two`."""
    ours = SimConnection(network, one, address, accepting=False)
    theirs = SimConnection(network, two, one.name, accepting=True)
    ours.other, theirs.other = theirs, ours
    return ours, theirs
