"""A scripted cluster of log units, sequencers and a repository in memory: it keeps the laws, and fails on demand."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from tests.client.fakes import WAIT_S, environment
from varlog.client.connect import connect_log
from varlog.client.log import Log
from varlog.model.batch import HEADER_BYTES, junk, parse_header, single
from varlog.model.cluster import ClusterView, LogStream, Ordering, StorageNode, StreamState, Topic, changed
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    AlreadyWritten,
    NotSequencing,
    NotWritten,
    ProjectionConflict,
    StaleEpoch,
    Trimmed,
    UnknownLogStream,
)
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, SequencerID
from varlog.reconfiguration.rules import SealAnswer, first_projection
from varlog.rpc.memory import MemoryServer, MemoryTransport
from varlog.rpc.messages import (
    CheckEntries,
    Done,
    FetchUnit,
    FetchUnitReply,
    FillUnit,
    FindTimeReply,
    FindUnitTime,
    GetSequencer,
    GetSequencerReply,
    GetTail,
    GetTailReply,
    GetView,
    GetViewReply,
    ListUnit,
    ListUnitReply,
    MeasureRangeReply,
    MeasureUnit,
    Message,
    NextTokens,
    NextTokensReply,
    ProposeProjection,
    ProposeProjectionReply,
    ReadUnit,
    ReadUnitReply,
    SealUnit,
    SealUnitReply,
    Suspect,
    TrimTopic,
    WriteUnit,
)
from varlog.rpc.transport import Call, Connection, Handler

TOPIC = TopicID(1)
# What becomes of a request: an error is its answer; "silent": carried out, and not answered; "lose": neither.
Meddle = Callable[[str, Message], BaseException | str | None]


class FakeUnit:
    """Write-once pages by LLSN."""

    def __init__(self) -> None:
        self.epoch = Epoch(1)
        self.low = LLSN(1)
        self.pages: list[tuple[LLSN, int, bytearray]] = []

    @property
    def newest(self) -> LLSN:
        return LLSN(self.pages[-1][0] + self.pages[-1][1] - 1 if self.pages else self.low - 1)

    def page(self, llsn: LLSN) -> tuple[LLSN, int, bytearray] | None:
        at = bisect_right(self.pages, llsn, key=lambda page: page[0]) - 1
        found = self.pages[at] if at >= 0 else None
        return found if found and llsn < found[0] + found[1] else None

    def write(self, log_stream: LogStreamID, batch: bytearray) -> None:
        header = parse_header(batch)
        if header.first_llsn < self.low:
            raise Trimmed(header.first_llsn, self.low)
        at = bisect_left(self.pages, header.end_llsn, key=lambda page: page[0]) - 1
        if at >= 0 and self.pages[at][0] + self.pages[at][1] > header.first_llsn:
            if self.pages[at][2][:HEADER_BYTES] == batch[:HEADER_BYTES]:
                return
            raise AlreadyWritten(log_stream, header.first_llsn)
        self.pages.insert(at + 1, (header.first_llsn, header.count, batch))


class SequencedCluster:
    """Nodes 1..n at "node-1" …, sequencers at "seq-1" …, the repository at "repository". Every node has every stream; chains
    begin at node 1, or, with `rotated`, at another node for each stream."""

    def __init__(
        self,
        *,
        nodes: int = 3,
        streams: int = 1,
        stripe_size: int = 4,
        sequencers: int = 1,
        rotated: bool = False,
    ) -> None:
        self.transport = MemoryTransport()
        self.requests: list[tuple[str, Message]] = []
        self.meddle: Meddle = lambda address, message: None
        self.next: dict[tuple[str, int], GLSN] = {}
        self.trimmed = GLSN(0)
        self.leased: dict[str, bool] = {}
        self._waiting: list[tuple[str, Call, FetchUnit]] = []
        self._views_waiting: list[Call] = []
        self._servers: dict[str, MemoryServer] = {}
        ids = [NodeID(n) for n in range(1, nodes + 1)]
        known = tuple(SequencerID(f"seq-{n}", 1) for n in range(1, sequencers + 1))
        chains = {
            LogStreamID(n): tuple(ids[(n - 1) * rotated % nodes :] + ids[: (n - 1) * rotated % nodes])
            for n in range(1, streams + 1)
        }
        self.units = {(node, log_stream): FakeUnit() for node in ids for log_stream in chains}
        empty = {stream: {node: SealAnswer(LLSN(0)) for node in chain} for stream, chain in chains.items()}
        projection = first_projection(TOPIC, GLSN(1), stripe_size, chains, empty, known[0])
        self.view = ClusterView(
            ClusterID(7),
            1,
            tuple(StorageNode(node, f"node-{node}") for node in ids),
            (Topic(TOPIC, "orders", Ordering.SEQUENCED, stripe_size=stripe_size),),
            tuple(LogStream(stream, TOPIC, chain, StreamState.RUNNING) for stream, chain in chains.items()),
            projections=(projection,),
            sequencers=known,
        )

    @property
    def projection(self) -> Projection:
        return self.view.projections[0]

    def asked(self, *kinds: type[Message]) -> list[tuple[str, str]]:
        """(address, kind) of the requests of the data path, or of these kinds, in the order in which they came."""
        wanted = kinds or (NextTokens, WriteUnit, FillUnit, ReadUnit, FetchUnit, SealUnit, ProposeProjection)
        return [(to, type(request).__name__) for to, request in self.requests if isinstance(request, wanted)]

    def stored(self, node: int, log_stream: int = 1) -> list[tuple[LLSN, int, bytes]]:
        return [
            (llsn, count, bytes(batch))
            for llsn, count, batch in self.units[NodeID(node), LogStreamID(log_stream)].pages
        ]

    # --- The world ------------------------------------------------------------------------------------------------------

    async def start(self, *addresses: str) -> None:
        every = (
            "repository",
            *(f.address for f in self.view.nodes),
            *(f.address for f in self.view.sequencers),
        )
        for address in addresses or every:
            self._servers[address] = await self.transport.serve(address, self._make(address))

    async def stop(self, *addresses: str) -> None:
        for address in addresses or list(self._servers):
            await self._servers.pop(address).close()

    async def connect(self, *, seed: int = 1, timeout_s: float = WAIT_S) -> Log:
        return await connect_log(
            self.transport, environment(seed), "repository", topic="orders", timeout_s=timeout_s
        )

    def change_view(self, **changes: Any) -> None:
        self.view = changed(self.view, revision=self.view.revision + 1, **changes)
        waiting, self._views_waiting = self._views_waiting, []
        for call in waiting:
            call.reply(GetViewReply(self.view))

    def restart_sequencer(self, address: str) -> None:
        """It forgets what it counted, and is another one."""
        self.next = {key: next for key, next in self.next.items() if key[0] != address}
        others = tuple(
            SequencerID(found.address, found.incarnation + (found.address == address))
            for found in self.view.sequencers
        )
        self.change_view(sequencers=others)

    def reconfigure(self, **changes: Any) -> None:
        """Another client did it: all units are sealed, and the next projection holds."""
        self.seal()
        self.change_view(
            projections=(changed(self.projection, epoch=Epoch(self.projection.epoch + 1), **changes),)
        )

    def seal(self) -> None:
        for unit in self.units.values():
            unit.epoch = Epoch(self.projection.epoch + 1)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for address, call, request in waiting:
            try:
                self._fetch(address, call, request)
            except StaleEpoch as stale:
                call.fail(stale)

    def _expire(self, over: Call) -> None:
        due = [kept for kept in self._waiting if kept[1] is over]
        self._waiting = [kept for kept in self._waiting if kept[1] is not over]
        for address, call, request in due:
            self._fetch(address, call, changed(request, wait_s=0.0))

    # --- Services -------------------------------------------------------------------------------------------------------

    def _make(self, address: str) -> Callable[[Connection], Handler]:
        def handle(call: Call | None, message: Message, payload: bytearray) -> None:
            if call is None:
                return
            self.requests.append((address, message))
            meddled = self.meddle(address, message)
            if isinstance(meddled, BaseException):
                raise meddled
            if meddled == "lose":
                return
            self._handle(address, _Mute() if meddled == "silent" else call, message, payload)

        return lambda connection: handle

    def _handle(self, address: str, call: Any, message: Message, payload: bytearray) -> None:
        if address == "repository":
            self._repository(call, message)
        elif address.startswith("seq"):
            self._sequencer(address, call, message)
        else:
            self._unit(address, call, message, payload)

    def _repository(self, call: Any, message: Message) -> None:
        if isinstance(message, GetView):
            if message.newer_than >= self.view.revision and message.wait_s:
                self._views_waiting.append(call)
            else:
                call.reply(GetViewReply(self.view))
        elif isinstance(message, GetTail):
            call.reply(GetTailReply(GLSN(0), self.trimmed))
        elif isinstance(message, TrimTopic):
            self.trim(message.glsn)
            call.reply(Done())
        elif isinstance(message, ProposeProjection):
            proposed = message.projection
            if proposed.epoch != self.projection.epoch + 1:
                raise ProjectionConflict(TOPIC, proposed.epoch, self.projection.epoch)
            self.change_view(projections=(proposed,))
            call.reply(ProposeProjectionReply(proposed))
        elif isinstance(message, Suspect):
            call.reply(Done())
        else:
            raise AssertionError(message)

    def trim(self, glsn: GLSN) -> None:
        self.trimmed = max(self.trimmed, glsn)
        for (_, log_stream), unit in self.units.items():
            unit.low = self.projection.llsn_from(log_stream, GLSN(self.trimmed + 1))
            unit.pages = [page for page in unit.pages if page[0] + page[1] > unit.low]
        self.change_view(topics=(changed(self.view.topics[0], trimmed=self.trimmed),))

    def _sequencer(self, address: str, call: Any, message: Message) -> None:
        me = next(found for found in self.view.sequencers if found.address == address)
        if isinstance(message, GetSequencer):
            call.reply(GetSequencerReply(me, self.leased.get(address, True)))
            return
        assert isinstance(message, NextTokens)
        if message.epoch != self.projection.epoch or self.projection.sequencer != me:
            raise NotSequencing(TOPIC, message.epoch, self.projection.epoch)
        key = (address, me.incarnation)
        next_ = max(self.next.get(key, GLSN(0)), self.projection.begin)
        first = self.projection.run_from(next_, message.count) if message.count else next_
        self.next[key] = GLSN(first + message.count)
        call.reply(NextTokensReply(first, first - next_))

    def _unit(self, address: str, call: Any, message: Message, payload: bytearray) -> None:
        if isinstance(message, CheckEntries):
            call.reply(Done())
            return
        log_stream = message.log_stream  # type: ignore[attr-defined]
        unit = self.units.get((NodeID(int(address.removeprefix("node-"))), log_stream))
        if unit is None:
            raise UnknownLogStream(log_stream)
        if isinstance(message, SealUnit):
            if message.epoch < unit.epoch:
                raise StaleEpoch(log_stream, message.epoch, unit.epoch)
            unit.epoch = message.epoch
            call.reply(SealUnitReply(log_stream, unit.epoch, unit.newest, LLSN(1)))
            self.wake()
            return
        if isinstance(message, ListUnit):
            pages = [page for page in unit.pages if page[0] + page[1] > message.llsn]
            listed = tuple((first, count, parse_header(batch).body_crc) for first, count, batch in pages)
            call.reply(ListUnitReply(listed, LLSN(unit.newest + 1), unit.newest, unit.low, unit.epoch))
            return
        if message.epoch != unit.epoch:  # type: ignore[attr-defined]
            raise StaleEpoch(log_stream, message.epoch, unit.epoch)  # type: ignore[attr-defined]
        if isinstance(message, WriteUnit | FillUnit):
            unit.write(
                log_stream, payload if isinstance(message, WriteUnit) else junk(message.llsn, message.count)
            )
            call.reply(Done())
            self.wake()
        elif isinstance(message, ReadUnit):
            self._read(unit, call, message)
        elif isinstance(message, FetchUnit):
            self._fetch(address, call, message)
        elif isinstance(message, MeasureUnit):
            sizes = sum(len(batch) for first, _, batch in unit.pages if message.begin <= first < message.end)
            call.reply(MeasureRangeReply(message.begin, message.end, sizes, (), complete=True))
        elif isinstance(message, FindUnitTime):
            late = [first for first, _, batch in unit.pages if parse_header(batch).time_us >= message.time_us]
            call.reply(FindTimeReply(late[0] if late else LLSN(unit.newest + 1), GLSN(0)))
        else:
            raise AssertionError(message)

    def _read(self, unit: FakeUnit, call: Any, message: ReadUnit) -> None:
        if message.llsn < unit.low:
            raise Trimmed(message.llsn, unit.low)
        page = unit.page(message.llsn)
        if page is None:
            raise NotWritten(message.llsn, unit.newest)
        first, _, batch = page
        whole = batch if message.whole else single(batch, parse_header(batch), message.llsn - first)
        call.reply(ReadUnitReply(), whole)

    def _fetch(self, address: str, call: Any, message: FetchUnit) -> None:
        unit = self.units[NodeID(int(address.removeprefix("node-"))), message.log_stream]
        if message.epoch != unit.epoch:
            raise StaleEpoch(message.log_stream, message.epoch, unit.epoch)
        if message.llsn < unit.low:
            raise Trimmed(message.llsn, unit.low)
        payload, llsn = bytearray(), message.llsn
        while (page := unit.page(llsn)) is not None and len(payload) < max(1, message.bytes_max):
            payload += page[2]
            llsn = LLSN(page[0] + page[1])
        if payload or not message.wait_s or unit.newest > llsn:
            call.reply(FetchUnitReply(llsn, unit.newest, unit.low), payload)
        else:
            self._waiting.append((address, call, message))
            asyncio.get_running_loop().call_later(message.wait_s, self._expire, call)


class _Mute:
    """The answer is lost on the way."""

    def reply(self, message: Message, payload: bytes = b"") -> None: ...

    def fail(self, error: BaseException) -> None: ...
