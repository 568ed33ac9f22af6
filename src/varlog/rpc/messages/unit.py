"""Messages from clients to log units of storage nodes, sequenced ordering."""

from __future__ import annotations

from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID
from varlog.model.lsn import LLSN
from varlog.rpc.messages.base import Message
from varlog.rpc.messages.replica import ReplicaAddress

# --- Log unit service: clients -> storage node (sequenced ordering) ------------------------------------------------
#
# Every request says the epoch of the projection that its sender has: in an older one than the unit's, and in one that
# the unit has not been sealed for, it is refused by StaleEpoch (R-SEQ-5). Without a lease the node answers NoLease,
# except to a seal.


class WriteUnit(Message, frozen=True):
    """Payload: one batch, placed and signed by the client; its own epoch is that in which its positions were given.
    Answered by Done once it is durable here, also where the very same batch is there already. AlreadyWritten, Trimmed:
    it can never be here.

    `within_ms` (0: not named): how long the client waits for this answer, from when the request was sent. A write that would be
    durable later than that may be refused instead (Overloaded), before anything of it is on disk. Named only in the first try
    at the head of a chain: what any unit may have is carried down the chain, however late (law 8).
    """

    log_stream: LogStreamID
    epoch: Epoch
    within_ms: int = 0


class FillUnit(Message, frozen=True):
    """Junk at LLSNs [llsn, llsn + count), written like data (R-SEQ-7)."""

    log_stream: LogStreamID
    epoch: Epoch
    llsn: LLSN
    count: int = 1


class ReadUnit(Message, frozen=True):
    """What is at one LLSN: NotWritten, Trimmed, or ReadUnitReply."""

    log_stream: LogStreamID
    epoch: Epoch
    llsn: LLSN
    whole: bool = False


class ReadUnitReply(Message, frozen=True):
    """Payload: a batch with the one entry; with `whole` the batch that has it, as it was written. May be junk."""


class FetchUnit(Message, frozen=True):
    """Whole batches from `llsn` on without a gap; waits up to `wait_s` for the first. Answered by FetchUnitReply."""

    log_stream: LogStreamID
    epoch: Epoch
    llsn: LLSN
    bytes_max: int = 0
    wait_s: float = 0.0


class FetchUnitReply(Message, frozen=True):
    """Payload: batches back to back, in the order of their LLSNs, without a gap; the first may begin before the LLSN
    asked for. No payload: `next_llsn` is not written; if `newest` is above it, it is a hole."""

    next_llsn: LLSN
    newest: LLSN
    low: LLSN


class MeasureUnit(Message, frozen=True):
    """How the entries with LLSNs in [begin, end) lie on disk. Answered by MeasureRangeReply; `complete`: none of them
    is a hole."""

    log_stream: LogStreamID
    epoch: Epoch
    begin: LLSN
    end: LLSN
    points_max: int = 256


class FindUnitTime(Message, frozen=True):
    """The first entry appended at or after `time_us`, as FindTime. Answered by FindTimeReply, without a GLSN."""

    log_stream: LogStreamID
    epoch: Epoch
    time_us: int


class SealUnit(Message, frozen=True):
    """R-SEQ-9: from now on the unit accepts nothing of an older epoch than `epoch`; requests of older epochs in
    progress are cancelled. Answered by SealUnitReply when that is durable, also if it is in this epoch already;
    StaleEpoch if it is in a newer one."""

    log_stream: LogStreamID
    epoch: Epoch


class SealUnitReply(Message, frozen=True):
    """`newest`, `dense_end` and `unverified` as in UnitStatus. `trouble`: why this unit had better not serve in the next
    projection. `went_back`: what was restored is of an older epoch than the one that this seal ends, although every member of a
    chain keeps its epoch on disk before the projection holds."""

    log_stream: LogStreamID
    epoch: Epoch
    newest: LLSN
    dense_end: LLSN
    trouble: str = ""
    unverified: bool = False
    went_back: bool = False


class ListUnit(Message, frozen=True):
    """Which batches a unit has, from `llsn` on: to a node that others are filled from. In any epoch. Answered by ListUnitReply."""

    log_stream: LogStreamID
    llsn: LLSN


class ListUnitReply(Message, frozen=True):
    """`pages` are (first LLSN, count, checksum of the header) by LLSN; the next ones from `next_llsn` on. `newest`,
    `low`: the unit's."""

    pages: tuple[tuple[LLSN, int, int], ...]
    next_llsn: LLSN
    newest: LLSN
    low: LLSN
    epoch: Epoch


class CopyUnit(Message, frozen=True):
    """Whole batches with an LLSN from `llsn` on and below `end`, holes passed over: about `bytes_max` of them. In any epoch.
    Answered by CopyUnitReply."""

    log_stream: LogStreamID
    llsn: LLSN
    end: LLSN
    bytes_max: int = 0


class CopyUnitReply(Message, frozen=True):
    """Payload: batches back to back, in the order of their LLSNs. Continue at `next_llsn`."""

    next_llsn: LLSN


class SyncUnit(Message, frozen=True):
    """Fill this unit from the one at `source` (R-SEQ-14), while it is in use. Answered immediately by SyncReply; asked
    again, it reports the progress. COMPLETE: it has exactly what the source had in `epoch`, if that is given, else
    recently. With `rebuild` in the answer it has something that the source does not have: it must be recreated first.

    `at` (0: any): StaleEpoch in a newer epoch than this, in which the caller saw that the unit does not serve. A request that
    comes late would else copy into a chain.

    `backfill`: the unit serves, and what it has that the source has not is as good: only what is missing here is copied. That
    proves that a unit which was restored from its disk has all that its chain acknowledged, unless not `proves`: then it is
    compared with others as well, and the last of these requests says so.
    """

    log_stream: LogStreamID
    source: ReplicaAddress
    epoch: Epoch = Epoch(0)
    max_epoch: Epoch = Epoch(0)
    backfill: bool = False
    proves: bool = True
