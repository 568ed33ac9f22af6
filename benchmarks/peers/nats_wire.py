"""NatsWire: the NATS protocol with as little Python as it takes: publish with a reply, subscribe, nothing else.

nats-py spends more processor time on a message than the server does. This is the least that a client in Python needs, so that a
figure says what the server can do, not what its client's parser can. Both are measured where it matters; the better one counts.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import cast

import msgspec

_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true,"lang":"python"}\r\nPING\r\n'

# Called with (reply subject, headers, payload) of one message.
OnMessage = Callable[[bytes, bytes, bytes], None]


class WireError(Exception):
    """The server refused something, or said something that this client does not know."""


class _Ack(msgspec.Struct):
    """What JetStream answers a publish with."""

    stream: str = ""
    seq: int = 0
    error: dict[str, object] | None = None


class NatsWire(asyncio.Protocol):
    """One connection. Answers come to one inbox; its last token is the number of the call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._closed: asyncio.Future[None] = self._loop.create_future()
        self._rest = b""
        self._out: list[bytes] = []
        self._numbers = itertools.count(1)
        self._inbox = b"_INBOX.%x." % id(self)
        # Calls under way: answers still missing, and the future of all of them.
        self._calls: dict[bytes, tuple[int, asyncio.Future[bytes]]] = {}
        self._subscriptions: dict[bytes, OnMessage] = {b"1": self._answered}
        self._decode_ack = msgspec.json.Decoder(_Ack).decode

    @classmethod
    async def connected(cls, host: str, port: int) -> NatsWire:
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(cls, host, port)
        await wire._ready
        return wire

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        await asyncio.wait([self._closed])

    # --- calls ------------------------------------------------------------------------------------------------

    async def publish(self, subject: bytes, payload: bytes) -> int:
        """One entry into a stream; its position."""
        number, done = self._call(1)
        self._send(b"PUB %b %b%b %d\r\n%b\r\n" % (subject, self._inbox, number, len(payload), payload))
        return self._checked(await done)

    async def publish_many(self, subject: bytes, payloads: Sequence[bytes]) -> int:
        """All under way at once, each acknowledged by itself; the position of one of them when all are."""
        number, done = self._call(len(payloads))
        head = b"PUB %b %b%b " % (subject, self._inbox, number)
        self._send(b"".join([b"%b%d\r\n%b\r\n" % (head, len(payload), payload) for payload in payloads]))
        return self._checked(await done)

    async def publish_atomic(self, subject: bytes, payloads: Sequence[bytes]) -> int:
        """One atomic batch (at most 1000): the last message commits it, and is the only one that is answered with a position."""
        number, done = self._call(1)
        batch, parts = b"%b%b" % (self._inbox[7:].replace(b".", b"-"), number), list[bytes]()
        for sequence, payload in enumerate(payloads, 1):
            last = sequence == len(payloads)
            header = b"NATS/1.0\r\nNats-Batch-Id:%b\r\nNats-Batch-Sequence:%d\r\n%b\r\n" % (
                batch, sequence, b"Nats-Batch-Commit:1\r\n" if last else b"",
            )  # fmt: skip
            reply = self._inbox + number + b" " if last else b""
            size = len(header) + len(payload)
            parts.append(
                b"HPUB %b %b%d %d\r\n%b%b\r\n" % (subject, reply, len(header), size, header, payload)
            )
        self._send(b"".join(parts))
        return self._checked(await done)

    async def request(self, subject: str, payload: bytes = b"") -> bytes:
        number, done = self._call(1)
        self._send(
            b"PUB %b %b%b %d\r\n%b\r\n" % (subject.encode(), self._inbox, number, len(payload), payload)
        )
        return await done

    def send(self, subject: str, reply: str, payload: bytes) -> None:
        """A message whose answers come to a subscription."""
        self._send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload))

    def subscribe(self, subject: bytes, on_message: OnMessage) -> bytes:
        """The subscription's id."""
        identity = b"%d" % (next(self._numbers) + 1)
        self._subscriptions[identity] = on_message
        self._send(b"SUB %b %b\r\n" % (subject, identity))
        return identity

    def unsubscribe(self, identity: bytes) -> None:
        self._subscriptions.pop(identity, None)
        self._send(b"UNSUB %b\r\n" % identity)

    def _call(self, answers: int) -> tuple[bytes, asyncio.Future[bytes]]:
        number, done = b"%d" % next(self._numbers), self._loop.create_future()
        self._calls[number] = (answers, done)
        return number, done

    def _checked(self, answer: bytes) -> int:
        ack = self._decode_ack(answer)
        if ack.error is not None or not ack.stream:
            raise WireError(f"JetStream did not take an entry: {answer!r}")
        return ack.seq

    def _send(self, data: bytes) -> None:
        """With whatever else is sent in this turn of the loop, in one write."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    # --- what comes -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # No check by class: uvloop's transports keep the contract without being of the class.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_CONNECT + b"SUB %b* 1\r\n" % self._inbox)

    def connection_lost(self, error: Exception | None) -> None:
        lost = error or ConnectionResetError("the NATS server has closed the connection")
        if not self._closed.done():
            self._closed.set_result(None)
        if not self._ready.done():
            self._ready.set_exception(lost)
        for _, done in self._calls.values():
            if not done.done():
                done.set_exception(lost)
        self._calls.clear()

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        begin, end = 0, len(data)
        subscriptions, find = self._subscriptions, data.find
        while begin < end:
            eol = find(b"\r\n", begin)
            if eol < 0:
                break
            fields = data[begin:eol].split(b" ")
            kind = fields[0]
            if kind == b"MSG":
                body = eol + 2
                after = body + int(fields[-1])
                if after + 2 > end:
                    break
                on_message = subscriptions.get(fields[2])
                if on_message is not None:
                    # Answers are told apart by the subject they come to, entries by the one they may be replied to at.
                    on_message(fields[1] if len(fields) == 4 else fields[3], b"", data[body:after])
                begin = after + 2
            elif kind == b"HMSG":
                body, header_bytes = eol + 2, int(fields[-2])
                after = body + int(fields[-1])
                if after + 2 > end:
                    break
                on_message = subscriptions.get(fields[2])
                if on_message is not None:
                    headers = data[body : body + header_bytes]
                    on_message(
                        fields[1] if len(fields) == 5 else fields[3],
                        headers,
                        data[body + header_bytes : after],
                    )
                begin = after + 2
            else:
                self._control(kind, data[begin:eol])
                begin = eol + 2
        self._rest = data[begin:]

    def _control(self, kind: bytes, line: bytes) -> None:
        if kind == b"PING":
            self._send(b"PONG\r\n")
        elif kind == b"PONG" and not self._ready.done():
            self._ready.set_result(None)
        elif kind == b"-ERR" and self._transport is not None:
            self._transport.abort()

    def _answered(self, subject: bytes, headers: bytes, payload: bytes) -> None:
        number = subject[len(self._inbox) :]
        call = self._calls.get(number)
        if call is None:
            return
        missing, done = call
        if missing == 1 or b'"error"' in payload or headers:
            del self._calls[number]
            if not done.done():
                done.set_result(payload)
        else:
            self._calls[number] = (missing - 1, done)
