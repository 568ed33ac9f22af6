"""[A4] ChainedAppends: appends that are taken on a condition: behind their predecessor (R-USE-4), or at one LLSN exactly.

A condition is judged in the moment in which its batch would get its LLSN, so what is in line before it counts, and what is refused
leaves no trace. Where memory does not know the end of a chain the headers on disk are searched, down to where the chain can have
begun; what comes for the same chain meanwhile waits behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from varlog.model.errors import (
    NotAccepted,
    NotPrimary,
    PositionConflict,
    SequenceConflict,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Append, AppendReply
from varlog.runtime.worker import Worker
from varlog.storage.headers import BatchPlace, HeaderStretch
from varlog.storage.log_store import LogStore
from varlog.storagenode.log_stream.batch_search import BatchSearch, Damaged, SearchParts
from varlog.storagenode.log_stream.chain_rules import Judgement, Link, Sent, judge, link_of
from varlog.storagenode.log_stream.chains import Chains
from varlog.storagenode.log_stream.intake import Arrival
from varlog.storagenode.log_stream.replica_machine import ReplicaMachine
from varlog.storagenode.log_stream.waiters import Waiters

# Of one chain, while its end is looked for. Those of a client's window are far fewer.
HELD_MAX: Final = 1_024
_NO_BOUND: Final = 2**63


@dataclass(frozen=True, slots=True)
class ChainParts:
    """What the conditional appends of a replica are handed by it. `resume`: take these, which were in front of the line."""

    store: LogStore
    machine: ReplicaMachine
    waiters: Waiters
    chains: Chains
    search: BatchSearch[ProducerID, BatchPlace]
    resume: Callable[[Sequence[Arrival]], None]


@dataclass(slots=True)
class _Held:
    """A chain whose end is looked for, and who waits for it, in the order in which they came."""

    resets: int
    arrivals: list[Arrival] = field(default_factory=list)


class ChainedAppends:
    """The conditional appends of one replica."""

    def __init__(self, parts: ChainParts) -> None:
        self._parts = parts
        self._held: dict[ProducerID, _Held] = {}

    def admits(self, arrival: Arrival, request: Append) -> bool:
        """Whether the batch may be taken now. If not it was answered, or will be; raises what it is refused with."""
        machine = self._parts.machine
        if not machine.primary:
            raise NotPrimary(machine.log_stream)
        if request.idempotent and not self._extends(arrival, request):
            return False
        if request.expected_llsn and request.expected_llsn != machine.assigned_end:
            raise PositionConflict(machine.log_stream, request.expected_llsn, machine.assigned_end)
        return True

    def refuse(self, error: VarlogError) -> None:
        """The replica takes nothing any more."""
        held, self._held = self._held, {}
        for chain in held.values():
            for arrival in chain.arrivals:
                arrival.call.fail(error)

    def _extends(self, arrival: Arrival, request: Append) -> bool:
        header, chains = arrival.header, self._parts.chains
        if header.producer in self._held:
            self._hold(arrival)
            return False
        floor = self._floor(request)
        known, newest = chains.newest(header.producer, floor)
        if not known:
            self._search(arrival, floor)
            return False
        sent = Sent(
            header.sequence,
            header.body_crc,
            request.previous_crc,
            request.writer_attempt,
            request.known_sequence,
        )
        judgement = judge(newest, sent)
        if judgement is Judgement.TAKE:
            return True
        self._answer_same(arrival, newest, judgement)
        return False

    def _answer_same(self, arrival: Arrival, newest: Link | None, judgement: Judgement) -> None:
        """The batch is there already, or under way; else SequenceConflict."""
        header, parts = arrival.header, self._parts
        link = newest if judgement is Judgement.SAME else None
        if newest is not None and not parts.chains.is_committed(newest):
            link = link_of(parts.chains.pending(header.producer), header.sequence, header.body_crc)
        if link is None:
            last = newest.sequence if newest is not None else 0
            raise SequenceConflict(parts.machine.log_stream, header.sequence, last)
        if parts.chains.is_committed(link):
            arrival.call.reply(AppendReply(parts.store.glsn_of(link.llsn), link.llsn))
        else:
            parts.waiters.join((header.producer, header.sequence), arrival.call)

    def _floor(self, request: Append) -> LLSN:
        """Above which LLSN the chain is."""
        store = self._parts.store
        if request.min_glsn < store.hidden:
            return LLSN(0)  # what is trimmed may have been of it
        return LLSN(store.llsn_from(GLSN(request.min_glsn + 1)) - 1)

    # --- a chain whose end is not in memory ------------------------------------------------------------------------------

    def _search(self, arrival: Arrival, floor: LLSN) -> None:
        parts, producer = self._parts, arrival.header.producer
        held = self._held[producer] = _Held(parts.chains.resets, [arrival])
        parts.search.find(
            producer, floor, parts.chains.known_from, partial(self._found, producer, floor, held)
        )

    def _hold(self, arrival: Arrival) -> None:
        arrivals = self._held[arrival.header.producer].arrivals
        if len(arrivals) >= HELD_MAX:
            raise NotAccepted(
                f"the end of its chain is looked for, and {len(arrivals)} batches wait for it already"
            )
        arrivals.append(arrival)

    def _found(
        self, producer: ProducerID, floor: LLSN, held: _Held, place: BatchPlace | VarlogError | None
    ) -> None:
        parts = self._parts
        if self._held.get(producer) is not held:
            return  # sealed meanwhile, and told so
        del self._held[producer]
        if isinstance(place, VarlogError) or held.resets != parts.chains.resets:
            why = place if isinstance(place, VarlogError) else "more was forgotten meanwhile"
            unknown = Unavailable(f"the end of this chain is not known here: {why}")
            for arrival in held.arrivals:
                arrival.call.fail(unknown)
            return
        link = None if place is None else Link(producer, place.sequence, place.llsn, place.body_crc)
        parts.chains.found(producer, floor, link)
        parts.resume(held.arrivals)


def newest_of(store: LogStore, worker: Worker, on_damage: Damaged) -> SearchParts[ProducerID, BatchPlace]:
    """How the newest batch of a producer is looked for on disk: as far back as its chain can begin."""

    def look(stretch: HeaderStretch, wanted: dict[ProducerID, None]) -> dict[ProducerID, BatchPlace]:
        return {place.producer: place for place in store.batches_of(stretch, wanted)}

    return SearchParts(store, worker, on_damage, look, bytes_max=_NO_BOUND)
