"""Every request, reply and one-way message, grouped by service, and its number on the wire.

A message is small and is encoded by msgspec as a MessagePack array: fields may only be added at the end, with a
default, and a number is never used again. Bulk bytes (batches) travel behind it as the payload, untouched.

This file is past 800 lines because it is the list of all of them: whoever wants to know what is said on the wire reads one file.
"""

from __future__ import annotations

from typing import Any

import msgspec

from varlog.model.cluster import (
    ClusterView,
    Grouping,
    LogStream,
    NamedReader,
    NamedWriter,
    NodeStatus,
    Ordering,
    ReplicaState,
    SyncStatus,
    Topic,
)
from varlog.model.commit import CommitRow, Report, TopicMark
from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import NO_UUID, ClusterUUID, LogStreamID, NodeID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, Proposal, SequencerID


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all messages."""


class Done(Message, frozen=True):
    """The answer when there is nothing to say but yes."""


class Failure(Message, frozen=True):
    """The answer when it failed: an error of the tree, by its code and facts (see error_codes.py)."""

    code: int
    facts: tuple[Any, ...]


# --- Log service: clients -> storage node -------------------------------------------------------------------


class Append(Message, frozen=True):
    """Payload: one packed batch. To the primary of `log_stream`, which refuses it in another epoch than `epoch` (0: any): a
    request that was delayed can then not arrive in a later one.

    `is_retry`: the same batch (producer and sequence) was sent before in the same epoch, and may be there. If it is, its LLSN is
    above `min_llsn`, and its GLSN above `after`.

    `idempotent`: the producer's batches in this stream form a chain, whose sequences are 1, 2, 3 …; several processes may extend
    it,
    and all of it is above `after`. This one is taken only behind the batch with the sequence before its own and the body checksum
    `previous_crc` (0 before the first). If it is there already, with the same checksum, its position is the answer; else
    SequenceConflict. May be sent as often as one likes, in any epoch.

    `writer_attempt` (0: not told) names whoever extends the chain, anew each time he has looked at it, and `known_sequence` is the
    sequence up to
    which he has: a batch behind that is taken only if its predecessor is of the same attempt. Else two orders of the same rows that
    have one row in the same place would meet there, and go on with rows that the chain has further up.

    `at` (0: anywhere): taken only if its first entry gets this LLSN; else PositionConflict.

    `within_ms` (0: not told): for how long somebody waits for the answer, from when this was sent. What would be ordered later
    than that may be refused instead (Overloaded), before it gets an LLSN.
    """

    log_stream: LogStreamID
    epoch: Epoch = Epoch(0)
    is_retry: bool = False
    min_llsn: LLSN = LLSN(0)
    min_glsn: GLSN = GLSN(0)
    idempotent: bool = False
    previous_crc: int = 0
    expected_llsn: LLSN = LLSN(0)
    writer_attempt: int = 0
    known_sequence: int = 0
    within_ms: int = 0


class AppendReply(Message, frozen=True):
    """Ordered: the batch's first entry is at `glsn` and `llsn`, the others follow without a gap."""

    glsn: GLSN
    llsn: LLSN


class FindAppend(Message, frozen=True):
    """What became of a batch that was sent in `epoch`, if it is there then above `min_llsn` and `after`. To any replica; answered
    by FindAppendReply once that epoch is over here and its end is held, until then by Unavailable."""

    log_stream: LogStreamID
    epoch: Epoch
    producer: ProducerID
    sequence: int
    min_llsn: LLSN
    min_glsn: GLSN = GLSN(0)


class FindAppendReply(Message, frozen=True):
    """`found` is false where the batch is certainly not in the log and can no longer get there."""

    found: bool
    glsn: GLSN = GLSN(0)
    llsn: LLSN = LLSN(0)


class ListIdempotentBatches(Message, frozen=True):
    """The batches of a chain (see Append) that are ordered here, those with an LLSN above `min_llsn` and a GLSN above `after`; ask
    the
    primary. Answered by ListIdempotentBatchesReply."""

    log_stream: LogStreamID
    producer: ProducerID
    min_llsn: LLSN = LLSN(0)
    min_glsn: GLSN = GLSN(0)


class ListIdempotentBatchesReply(Message, frozen=True):
    """`batches` are (sequence, first LLSN, count, body checksum), in order. `more`: ask again with the last one's LLSN as floor."""

    batches: tuple[tuple[int, LLSN, int, int], ...]
    more: bool = False


class MeasureRange(Message, frozen=True):
    """How the entries of a stream with a GLSN in [begin, end) lie on disk. To any replica. Answered by MeasureRangeReply."""

    log_stream: LogStreamID
    begin: GLSN
    end: GLSN
    points_max: int = 256


class MeasureRangeReply(Message, frozen=True):
    """LLSNs [begin, end) and their bytes on disk, about. `points` are (LLSN, bytes before it in the range), rising, strictly inside
    the range, about evenly spaced in bytes. `complete`: this replica has everything up to the range's end."""

    begin: LLSN
    end: LLSN
    bytes: int
    points: tuple[tuple[LLSN, int], ...]
    complete: bool


class FindTime(Message, frozen=True):
    """The first entry of a stream appended at or after `time_us`, found by bisection: as good as the appenders' clocks agree. To
    any replica. Answered by FindTimeReply."""

    log_stream: LogStreamID
    time_us: int


class FindTimeReply(Message, frozen=True):
    """`llsn` is the stream's committed end, and `glsn` the topic's newest position plus one, where no entry is so late."""

    llsn: LLSN
    glsn: GLSN


class CheckEntries(Message, frozen=True):
    """A reader got damaged bytes for LLSNs [begin, end): look at them on disk. Answered by Done, before they are looked at."""

    log_stream: LogStreamID
    begin: LLSN
    end: LLSN


class ReadAt(Message, frozen=True):
    """One position of a topic, asked of a node for those of the topic's streams that it holds. With `wait_s` the
    answer waits until the position is ordered here. Or, with `log_stream` and `llsn` instead of `glsn`, one position
    of a stream."""

    topic: TopicID
    glsn: GLSN = GLSN(0)
    log_stream: LogStreamID = LogStreamID(0)
    llsn: LLSN = LLSN(0)
    wait_s: float = 0.0


class ReadAtReply(Message, frozen=True):
    """Payload: a batch with the one entry. `found` is false where the position is ordered in a stream not held here."""

    found: bool
    log_stream: LogStreamID = LogStreamID(0)
    glsn: GLSN = GLSN(0)


class Fetch(Message, frozen=True):
    """Whole batches of a stream from `llsn` on, or (llsn 0) from the stream's first entry at or after `glsn` on; at
    least one batch if there is any. Waits up to `wait_s` for the first. Asked again and again, it is a subscription:
    the client pulls, so a slow one holds no memory here."""

    log_stream: LogStreamID
    llsn: LLSN
    glsn: GLSN = GLSN(0)
    bytes_max: int = 0
    wait_s: float = 0.0


class FetchReply(Message, frozen=True):
    """Payload: placed batches back to back. Those entries with an LLSN in `rows` are ordered as the rows say; the first
    batch may begin before the LLSN asked for (a batch is never cut). No payload: nothing from `next_llsn` on yet.

    `rows` are (llsn_begin, glsn_begin, count), in order, back to back in LLSN, starting at the LLSN asked for;
    `next_llsn` is where to go on.
    `high_watermark` is the topic's newest position known here: every entry of this stream up to it is ordered below
    `committed_end`. `low_watermark`: the newest trimmed position of the topic, as known here.
    """

    rows: tuple[tuple[LLSN, GLSN, int], ...]
    next_llsn: LLSN
    committed_end: LLSN
    high_watermark: GLSN
    low_watermark: GLSN


# --- Replica service: primary -> backup ---------------------------------------------------------------------


class ReplicaOpen(Message, frozen=True):
    """First on a primary's connection to a backup: from now on Replicate follows for this stream and epoch."""

    log_stream: LogStreamID
    epoch: Epoch
    next_llsn: LLSN


class Replicate(Message, frozen=True):
    """One way. Payload: placed batches back to back. The backup answers by its report to the repository alone."""

    log_stream: LogStreamID
    epoch: Epoch


class CopyFrom(Message, frozen=True):
    """A replica that is being synced asks a sealed one (R-SYNC-2) for whole batches and commit rows from `llsn` on; 0: from the
    oldest there is. Refused unless the replica asked is SEALED in `epoch`."""

    log_stream: LogStreamID
    epoch: Epoch
    llsn: LLSN
    bytes_max: int = 0


class CopyFromReply(Message, frozen=True):
    """Payload: placed batches back to back, ordered by `rows`, which cover exactly them. No payload: there is nothing from
    `next_llsn` on. `trimmed` and `low_llsn` are the source's: what is below must not come back (law 9)."""

    rows: tuple[CommitRow, ...]
    next_llsn: LLSN
    sealed_end: LLSN
    trimmed: GLSN
    low_llsn: LLSN


# --- Log unit service: clients -> storage node (sequenced ordering) ------------------------------------------------
#
# Every request says the epoch of the projection that its sender has: in an older one than the unit's, and in one that the unit has
# not been sealed for, it is refused by StaleEpoch (R-SEQ-5). Without a lease the node answers NoLease, except to a seal.


class WriteUnit(Message, frozen=True):
    """Payload: one batch, placed and signed by the client; its own epoch is that in which its positions were given. Answered by
    Done once it is durable here, also where the very same batch is there already. AlreadyWritten, Trimmed: it can never be here.

    `within_ms` (0: not named): how long the client waits for this answer, from when the request was sent. A write that would be
    durable later than that may be refused instead (Overloaded), before anything of it is on disk. Named only in the first try
    at the head of a chain: what any unit may have is carried down the chain, however late (law 8)."""

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
    """Payload: batches back to back, in the order of their LLSNs, without a gap; the first may begin before the LLSN asked for. No
    payload: `next_llsn` is not written; if `newest` is above it, it is a hole."""

    next_llsn: LLSN
    newest: LLSN
    low: LLSN


class MeasureUnit(Message, frozen=True):
    """How the entries with LLSNs in [begin, end) lie on disk. Answered by MeasureRangeReply; `complete`: none of them is a hole."""

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
    """R-SEQ-9: from now on nothing of an older epoch than `epoch` is taken here; what is under way with one is cancelled. Answered
    by SealUnitReply when that is durable, also if it is in this epoch already; StaleEpoch if it is in a newer one."""

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
    """Payload: batches back to back, in the order of their LLSNs. Go on at `next_llsn`."""

    next_llsn: LLSN


class SyncUnit(Message, frozen=True):
    """Fill this unit from the one at `source` (R-SEQ-14), whatever goes on meanwhile. Answered at once by SyncReply; asked again it
    tells the progress. COMPLETE: it has exactly what the source had in `epoch`, if that is given, else lately. With `rebuild` in
    the answer it holds something that the source has not: it must be made anew first.

    `at` (0: any): StaleEpoch in a newer epoch than this, in which whoever asks saw that the unit does not serve. A request that
    comes late would else copy into a chain.

    `backfill`: the unit serves, and what it has that the source has not is as good: only what is missing here is copied. That
    proves that a unit which was restored from its disk has all that its chain acknowledged, unless not `proves`: then it is
    compared with others as well, and the last of these requests says so."""

    log_stream: LogStreamID
    source: ReplicaAddress
    epoch: Epoch = Epoch(0)
    max_epoch: Epoch = Epoch(0)
    backfill: bool = False
    proves: bool = True


# --- Leases: node <-> repository, one way both, over the session; sequencer -> repository ------------------------------


class UnitOrder(Message, frozen=True):
    """The unit is in no older epoch than `epoch`, and has nothing below `low`. `alone`: it is the only one of its chain, so there
    is no other to compare it with."""

    log_stream: LogStreamID
    epoch: Epoch
    low: LLSN
    alone: bool = False


class RequestLease(Message, frozen=True):
    """One way, node -> repository. `stamp`: the node's own clock when it asked, in microseconds, to be echoed. `units`: how far
    it has done what it was ordered to."""

    stamp: int
    units: tuple[UnitOrder, ...] = ()


class LeaseReply(Message, frozen=True):
    """One way, repository -> node, or the answer to a sequencer: it may answer for `lease_s` seconds of its own clock from `stamp`
    on; 0: it may not. `orders`: of the node's units. `topics`, to a sequencer: in which epoch every sequenced topic is now; in an
    older one it must not answer from now on. To a node: the same of the topics of its units, to be remembered."""

    stamp: int
    lease_s: float
    orders: tuple[UnitOrder, ...] = ()
    topics: tuple[tuple[TopicID, Epoch], ...] = ()


# --- Sequencer: clients -> sequencer ------------------------------------------------------------------------------------


class NextTokens(Message, frozen=True):
    """`count` consecutive positions of a topic that go to one log stream (R-SEQ-1); 0: only the next one is told, and not given.

    `within_ms` (0: not named): how long the client waits until its batch is written, from when this was sent. What would be written
    later than that may be refused instead (Overloaded), and gets no position. `written`: the first positions of earlier batches
    of this client that are on every node since its last request, each with the microseconds that it took from its own request
    on; `given_up`: of those that never will be."""

    topic: TopicID
    epoch: Epoch
    count: int = 1
    within_ms: int = 0
    written: tuple[tuple[GLSN, int], ...] = ()
    given_up: tuple[GLSN, ...] = ()


class NextTokensReply(Message, frozen=True):
    """Positions from `first` on are the asker's, and so are `skipped` ones before it, which it fills with junk: a batch that does
    not fit in what is left of a stripe's turn begins in the next one's."""

    first: GLSN
    skipped: int = 0


class GetSequencer(Message, frozen=True):
    """Who are you."""


class GetSequencerReply(Message, frozen=True):
    """`leased`: it may answer now."""

    sequencer: SequencerID
    leased: bool


# --- Commit service: metadata repository -> storage node, one session a node --------------------------------


class OpenSession(Message, frozen=True):
    """First on the repository's connection to a node. An older term than one seen before is refused, and another opening of the
    store (`nonce`, drawn for each; 0: not told) in the same term (law 7): StaleTerm; and so is another cluster than the one that
    the node is bound to. `registered`: the streams that the view has on this node, of either ordering; those that belong to no
    cluster yet belong to this one from now on."""

    term: int
    cluster_uuid: ClusterUUID = NO_UUID
    registered: tuple[LogStreamID, ...] = ()
    nonce: int = 0


class ReplicaPoint(Message, frozen=True):
    """Where one replica stands when a session opens. `last_glsn`: the position of its last ordered entry (-1: not told)."""

    log_stream: LogStreamID
    epoch: Epoch
    state: ReplicaState
    committed_end: LLSN
    durable_end: LLSN
    rows_synced_end: LLSN
    last_glsn: GLSN = GLSN(-1)
    topic: TopicID = TopicID(0)


class UnitPoint(Message, frozen=True):
    """What a node says of a log unit at the start of a session: it is in this epoch, and has nothing below `low`."""

    log_stream: LogStreamID
    topic: TopicID
    epoch: Epoch
    low: LLSN


class OpenSessionReply(Message, frozen=True):
    """The node's replicas. The repository answers with the rows each lacks. `largest_topic`, `largest_log_stream`: as of
    NodeStatus; new ids are above them. `view_revision`: of the copy of the view that the node keeps.

    The node is a witness of the order. `marks`: the newest position and trim that it knows of, for every topic of which it holds a
    replica. `epochs`: for the sequenced topics of its log units, the epoch of the newest projection that it knows to exist.
    `units`: of its log units, which know what was trimmed. `copied`: (topic, epoch, term) of each projection in its copy of the
    view, and the term of the repository that sent the copy."""

    node: NodeID
    replicas: tuple[ReplicaPoint, ...]
    largest_topic: TopicID = TopicID(0)
    largest_log_stream: LogStreamID = LogStreamID(0)
    view_revision: int = 0
    marks: tuple[TopicMark, ...] = ()
    epochs: tuple[tuple[TopicID, Epoch], ...] = ()
    units: tuple[UnitPoint, ...] = ()
    copied: tuple[tuple[TopicID, Epoch, int], ...] = ()


class ListRows(Message, frozen=True):
    """Repository -> node: the commit rows that a replica has, from the one that orders `llsn` on, in whatever state it is. Answered
    by ListRowsReply."""

    log_stream: LogStreamID
    llsn: LLSN


class ListRowsReply(Message, frozen=True):
    """`rows` lie back to back in LLSN. Go on at `next_llsn`, unless that is `committed_end`."""

    rows: tuple[CommitRow, ...]
    next_llsn: LLSN
    committed_end: LLSN


class Reports(Message, frozen=True):
    """One way, node -> repository: newest report of each replica that has something new to say."""

    reports: tuple[Report, ...]
    marks_applied: int = 0


class Commits(Message, frozen=True):
    """One way, repository -> node: rows of the node's own streams, in version order, and the marks of their topics.

    `serial` counts the Commits of one session; the node says in Reports.marks_applied which one it has applied
    (trims wait for it).
    """

    serial: int
    version: int
    marks: tuple[TopicMark, ...]
    rows: tuple[tuple[LogStreamID, tuple[CommitRow, ...]], ...]


class KeepView(Message, frozen=True):
    """One way, repository -> node. Payload: a copy of the view of this revision (storage/view_copy.py), to be kept on disk."""

    revision: int


class KeepProjection(Message, frozen=True):
    """Repository -> node, in session: the next projection of a sequenced topic, which is made once a node of each of its chains has
    it on its disk. Answered by Done then; Unavailable: no disk takes it."""

    proposal: Proposal


# --- Node administration: manager -> storage node -----------------------------------------------------------


class GetNodeStatus(Message, frozen=True):
    """Who are you, and how are your replicas."""


class GetNodeStatusReply(Message, frozen=True):
    status: NodeStatus


class AddLogStream(Message, frozen=True):
    """Make a replica, on `volume` or on the emptiest one. It starts SEALING, in epoch 0. Of a sequenced topic: a log unit, empty,
    in epoch 0."""

    topic: TopicID
    log_stream: LogStreamID
    volume: str = ""
    ordering: Ordering = Ordering.COMMITTED
    cluster_uuid: ClusterUUID = NO_UUID


class ReplicaAddress(Message, frozen=True):
    node: NodeID
    address: str


class RemoveLogStream(Message, frozen=True):
    """Delete a replica and its data. With `epoch` (-1: whatever it is) only if the replica is still in that epoch: one that was
    taken into a stream since it was looked at stays. Refused if its directory belongs to another cluster than `cluster_uuid`. One
    that is evidence against the repository stays as well, unless an operator has decided otherwise (`forced`)."""

    log_stream: LogStreamID
    epoch: int = -1
    cluster_uuid: ClusterUUID = NO_UUID
    forced: bool = False


class RebuildReplica(Message, frozen=True):
    """Set a replica that cannot go on (damaged, frozen, too far behind) aside, and make an empty one in its place, as AddLogStream
    does. Refused if the replica can go on in `epoch`, or knows a newer one, or belongs to another cluster than `cluster_uuid`, or
    has ordered entries at or above `sealed_end` (0: not told): they are evidence."""

    topic: TopicID
    log_stream: LogStreamID
    epoch: Epoch
    cluster_uuid: ClusterUUID = NO_UUID
    sealed_end: LLSN = LLSN(0)


class SyncReplica(Message, frozen=True):
    """R-SYNC-1: fill this SEALING replica up to its sealed end from the SEALED one at `source`. Answered at once by SyncReply;
    asked
    again it tells the progress. AlreadySyncing while it is filled from another source."""

    log_stream: LogStreamID
    epoch: Epoch
    source: ReplicaAddress


class SyncReply(Message, frozen=True):
    sync: SyncStatus


class RepairReplica(Message, frozen=True):
    """Put the damaged entries of a replica right with the bytes of the others, in place, whatever state it is in. Answered by Done
    when it has begun; ReplicaStatus.damage tells what is left."""

    log_stream: LogStreamID
    sources: tuple[ReplicaAddress, ...]


class SealReplica(Message, frozen=True):
    """R-SEAL-4: nothing at or above `committed_end` is in the log; everything below is."""

    log_stream: LogStreamID
    epoch: Epoch
    committed_end: LLSN


class ReplicaStateReply(Message, frozen=True):
    state: ReplicaState
    committed_end: LLSN


class UnsealReplica(Message, frozen=True):
    """R-UNSEAL-1. The first of `replicas` is the primary."""

    log_stream: LogStreamID
    epoch: Epoch
    replicas: tuple[ReplicaAddress, ...]


class GetNodeFacts(Message, frozen=True):
    """What this node has seen of the repository's work, for rebuilding one. Answered by GetNodeFactsReply."""


class GetNodeFactsReply(Message, frozen=True):
    """Payload: the copy of the view that the node keeps, if it has one. `term`: the newest it has seen. `in_session`: a repository
    has a session with it now. `marks`: the newest position and trim of each topic of its replicas that it has heard of. `epochs`:
    of the newest projections of the topics of its units that it was told of. `proposed`: projections that were about to be made."""

    term: int
    in_session: bool
    marks: tuple[TopicMark, ...] = ()
    epochs: tuple[tuple[TopicID, Epoch], ...] = ()
    proposed: tuple[Proposal, ...] = ()


# --- Metadata repository: clients and manager -> repository -------------------------------------------------


class GetView(Message, frozen=True):
    """The whole view; with `newer_than` it waits up to `wait_s` for a newer revision than that."""

    newer_than: int = 0
    wait_s: float = 0.0


class GetViewReply(Message, frozen=True):
    """`suspects`: nodes that clients could not use lately (R-FAIL-2). Others had better ask them last, until they are heard of.

    Log stream ids below `next_log_stream` were given out here; those in `unused` were never registered, and those in `foreign`
    (ranges [begin, end)) are other clusters' or lost ones, which nodes have shown. `complaints`: what is wrong with the
    repository's own files, in words: a copy that was found bad, a mirror that failed. `corrupt_frames`: those that came to the
    repository with a wrong checksum since it started.
    """

    view: ClusterView
    suspects: tuple[NodeID, ...] = ()
    next_log_stream: LogStreamID = LogStreamID(0)
    unused: tuple[LogStreamID, ...] = ()
    foreign: tuple[tuple[LogStreamID, LogStreamID], ...] = ()
    complaints: tuple[str, ...] = ()
    corrupt_frames: int = 0


class GetBackup(Message, frozen=True):
    """A consistent copy of all that the repository knows, piece by piece: with `offset` 0 it is made, with the `stamp` of the
    answer it goes on. Answered by GetBackupReply."""

    offset: int = 0
    stamp: int = 0


class GetBackupReply(Message, frozen=True):
    """Payload: the bytes from the asked offset on, of `bytes_total`: a MessagePack map from key to value, as a store holds them."""

    stamp: int
    bytes_total: int
    term: int


class GetTail(Message, frozen=True):
    topic: TopicID


class GetTailReply(Message, frozen=True):
    """Newest ordered position and newest trimmed one."""

    high_watermark: GLSN
    trimmed: GLSN


class TrimTopic(Message, frozen=True):
    """Delete everything at or below `glsn`. Answered once it is durable here and applied by every node in session.
    `respect_readers`: ReaderBehind if a named reader of the topic has not read so far."""

    topic: TopicID
    glsn: GLSN
    respect_readers: bool = False


class SetReader(Message, frozen=True):
    """A named reader of a topic has finished everything up to `position`. A position never falls, unless `back` allows it. Answered
    by GetReadersReply, with this one."""

    topic: TopicID
    name: str
    position: GLSN
    time_us: int = 0
    back: bool = False


class ForgetReader(Message, frozen=True):
    topic: TopicID
    name: str


class GetReaders(Message, frozen=True):
    """The named readers of a topic (0: of all), by topic and name, those behind `after`."""

    topic: TopicID = TopicID(0)
    after: tuple[TopicID, str] = (TopicID(0), "")


class GetReadersReply(Message, frozen=True):
    """`more`: ask again, after the last one."""

    readers: tuple[NamedReader, ...]
    more: bool = False


class BeginWrite(Message, frozen=True):
    """A writer that is made of many tasks begins batch number `batch`, or one of its tasks asks where it began. Answered by
    WriterReply: the first to ask fixes `streams` (those it writes to) and where in the log it began; everyone after gets the same.
    Refused if the writer is at a later batch. `kept`: the writer is remembered after its end, until ForgetWriter; else among the
    newest ones only."""

    topic: TopicID
    name: str
    batch: int
    streams: tuple[LogStreamID, ...]
    kept: bool = False
    time_us: int = 0


class WriterReply(Message, frozen=True):
    writer: NamedWriter


class EndWrite(Message, frozen=True):
    """Everything of this batch is in the log: who asks for it again is told that it is finished. Answered by WriterReply."""

    topic: TopicID
    name: str
    batch: int
    time_us: int = 0


class ForgetWriter(Message, frozen=True):
    topic: TopicID
    name: str


class GetWriters(Message, frozen=True):
    """The named writers of a topic (0: of all), by topic and name, those behind `after`."""

    topic: TopicID = TopicID(0)
    after: tuple[TopicID, str] = (TopicID(0), "")


class GetWritersReply(Message, frozen=True):
    """`more`: ask again, after the last one."""

    writers: tuple[NamedWriter, ...]
    more: bool = False


class RegisterNode(Message, frozen=True):
    """`cluster_uuid`: the cluster that the node is bound to; another one than the repository's is refused. The ids are the
    largest that the node knows of: new ones are above them."""

    node: NodeID
    address: str
    volumes: tuple[str, ...]
    cluster_uuid: ClusterUUID = NO_UUID
    largest_topic: TopicID = TopicID(0)
    largest_log_stream: LogStreamID = LogStreamID(0)


class UnregisterNode(Message, frozen=True):
    node: NodeID


class RegisterTopic(Message, frozen=True):
    """Answered by TopicReply; a topic of that name that is there already is returned if it has the same ordering and first
    position."""

    name: str
    ordering: Ordering = Ordering.COMMITTED
    first: GLSN = GLSN(1)
    stripe_size: int = 0
    grouping: Grouping = Grouping.STREAM


class TopicReply(Message, frozen=True):
    topic: Topic


class UnregisterTopic(Message, frozen=True):
    """The topic and its streams leave the view; the replicas' data stays until it is removed (R-REG-5). A stopped one only if that
    is `forced`."""

    topic: TopicID
    forced: bool = False


class AdoptOrder(Message, frozen=True):
    """Take the order of a stopped topic from the nodes, or (`dry_run`) say what would be taken. Answered by AdoptOrderReply."""

    topic: TopicID
    dry_run: bool = True


class AdoptOrderReply(Message, frozen=True):
    """What the nodes know of a topic that the repository does not: positions from `begin` on, up to and without `end`. `taken`:
    (node, log stream, first position, end, first LLSN). `missing`: ranges of positions that no node tells. `conflicts`, `silent`
    (nodes that were not heard): why it may not be done. `raised`: log streams that are sealed in a new epoch by it. `adopted`: it
    is done.

    Of a sequenced topic: `projection` (0: none is taken) is the epoch of the projection that `source` keeps, `lost` the epoch that
    the repository has. `trimmed`: up to where it is trimmed then. `needed`: nodes that must be heard to prove that no newer
    projection exists."""

    topic: TopicID
    begin: GLSN
    end: GLSN
    taken: tuple[tuple[NodeID, LogStreamID, GLSN, GLSN, LLSN], ...]
    missing: tuple[tuple[GLSN, GLSN], ...]
    conflicts: tuple[str, ...]
    silent: tuple[NodeID, ...] = ()
    raised: tuple[LogStreamID, ...] = ()
    trimmed: GLSN = GLSN(0)
    adopted: bool = False
    stopped: str = ""
    projection: Epoch = NO_EPOCH
    source: NodeID = NodeID(0)
    lost: Epoch = NO_EPOCH
    needed: tuple[NodeID, ...] = ()


class NewLogStreamID(Message, frozen=True):
    """A log stream id that was never given before, even if nothing comes of it."""


class NewLogStreamIDReply(Message, frozen=True):
    log_stream: LogStreamID


class RegisterLogStream(Message, frozen=True):
    """A new stream starts sealed, empty, in epoch 1: the manager unseals it like any other. Refused where the topic has
    `streams_max` of them already (0: no limit)."""

    topic: TopicID
    log_stream: LogStreamID
    replicas: tuple[NodeID, ...]
    streams_max: int = 0


class SealStream(Message, frozen=True):
    """R-SEAL-3: what was reported before is ordered, what is reported later is not. Answered by StreamReply."""

    log_stream: LogStreamID


class UnsealStream(Message, frozen=True):
    """The replicas run again in `epoch`; the repository orders again."""

    log_stream: LogStreamID
    epoch: Epoch


class StreamReply(Message, frozen=True):
    stream: LogStream


class HoldStream(Message, frozen=True):
    """Keep a stream sealed (an operator asked for it), or let it run again. Answered by StreamReply."""

    log_stream: LogStreamID
    held: bool


class SetReplicas(Message, frozen=True):
    """R-REG-6: a sealed stream, in `epoch`, gets other replicas, and a new epoch with them. At least one old replica stays, unless
    the stream is empty. Answered by StreamReply; asked again with the same replicas it is done already."""

    log_stream: LogStreamID
    epoch: Epoch
    replicas: tuple[NodeID, ...]


class Suspect(Message, frozen=True):
    """R-FAIL-2: a client could not use this node. The other clients and the manager hear of it; nothing else follows."""

    node: NodeID
    why: str


class SetManager(Message, frozen=True):
    """Where operators and clients find the manager."""

    address: str
    auto_create_topics: bool = False


class ProposeProjection(Message, frozen=True):
    """The next projection of a sequenced topic (R-SEQ-3): its epoch is the present one plus one, else ProjectionConflict. `sealed`:
    for each log stream the nodes that have answered a seal with that epoch; only they can be in its chain. Answered by
    ProposeProjectionReply
    once it is durable: where a former member has not been sealed, or a sequencer is replaced, not before their leases are over
    (R-SEQ-13)."""

    projection: Projection
    sealed: tuple[tuple[LogStreamID, tuple[NodeID, ...]], ...]


class ProposeProjectionReply(Message, frozen=True):
    projection: Projection


class RenewSequencer(Message, frozen=True):
    """A sequencer says that it is there, and asks for a lease. Answered by LeaseReply."""

    sequencer: SequencerID
    stamp: int


# --- Manager: operators and clients -> manager --------------------------------------------------------------
#
# `within_ms`: for how long the caller waits (0: it does not say). What has not begun by then is not begun any more.


class AddNode(Message, frozen=True):
    """Ask the node at `address` who it is, and register it."""

    address: str


class RemoveNode(Message, frozen=True):
    node: NodeID
    within_ms: int = 0


class CreateTopic(Message, frozen=True):
    """A topic with `streams` running log streams of `replicas` replicas each (0: the manager's default), whose first entry gets
    position `first`. A sequenced one: in stripes of `stripe_size` positions (0: the default), with replica groups by `grouping`."""

    name: str
    streams: int = 0
    replicas: int = 0
    ordering: Ordering = Ordering.COMMITTED
    first: GLSN = GLSN(1)
    stripe_size: int = 0
    grouping: Grouping = Grouping.STREAM
    within_ms: int = 0


class DeleteTopic(Message, frozen=True):
    """A stopped topic only if that is `forced`: what its nodes hold is all there is of its order."""

    name: str
    forced: bool = False
    within_ms: int = 0


class AddStream(Message, frozen=True):
    """One more log stream for a topic."""

    topic: str
    replicas: int = 0
    within_ms: int = 0


class AdminSealStream(Message, frozen=True):
    """Seal a stream by hand, and keep it sealed until it is unsealed by hand."""

    log_stream: LogStreamID
    within_ms: int = 0


class AdminUnsealStream(Message, frozen=True):
    log_stream: LogStreamID
    within_ms: int = 0


class AdminReplaceReplica(Message, frozen=True):
    """Move a replica of a stream from node `old` to node `new` (0: the one with the most room)."""

    log_stream: LogStreamID
    old: NodeID
    new: NodeID = NodeID(0)
    within_ms: int = 0


class AdminSyncReplica(Message, frozen=True):
    """Fill the replica on `node` from a sealed one now, and tell how far that is. Answered by SyncReply."""

    log_stream: LogStreamID
    node: NodeID
    within_ms: int = 0


class GetClusterStatus(Message, frozen=True):
    """The view, and what each node said last."""


class NodeHealth(Message, frozen=True):
    """`away_s`: for how long the manager has had no answer from it, or none that counts; `why`: what became of the question."""

    node: NodeID
    alive: bool
    status: NodeStatus | None
    away_s: float = 0.0
    why: str = ""


class ManagerEvent(Message, frozen=True):
    """Something the manager did or saw, in words, at a time of day."""

    time_us: int
    what: str
    log_stream: LogStreamID = LogStreamID(0)


class GetClusterStatusReply(Message, frozen=True):
    """`waits`: for each stream that does not run, what the manager does or waits for. `events`: its newest, oldest first.
    `readers`:
    the first ones by topic and name, if there are very many. `complaints`, `repository_corrupt_frames`: see GetViewReply."""

    view: ClusterView
    nodes: tuple[NodeHealth, ...]
    tails: tuple[TopicMark, ...]
    waits: tuple[tuple[LogStreamID, str], ...] = ()
    events: tuple[ManagerEvent, ...] = ()
    suspects: tuple[NodeID, ...] = ()
    readers: tuple[NamedReader, ...] = ()
    complaints: tuple[str, ...] = ()
    repository_corrupt_frames: int = 0
    manager_corrupt_frames: int = 0


# The number of each message on the wire. Only add; a number once given is never given again.
NUMBERS: dict[int, type[Message]] = {
    1: Done, 2: Failure,
    10: Append, 11: AppendReply, 12: ReadAt, 13: ReadAtReply, 14: Fetch, 15: FetchReply,
    16: FindAppend, 17: FindAppendReply, 18: CheckEntries, 19: ListIdempotentBatches, 110: ListIdempotentBatchesReply,
    111: MeasureRange, 112: MeasureRangeReply,
    113: FindTime, 114: FindTimeReply,
    20: ReplicaOpen, 21: Replicate, 22: CopyFrom, 23: CopyFromReply,
    30: OpenSession, 31: OpenSessionReply, 32: Reports, 33: Commits, 34: ListRows, 35: ListRowsReply, 36: KeepView,
    37: KeepProjection,
    40: GetNodeStatus, 41: GetNodeStatusReply, 42: AddLogStream, 43: RemoveLogStream, 44: SealReplica, 45: ReplicaStateReply,
    46: UnsealReplica, 47: RebuildReplica, 48: SyncReplica, 49: SyncReply, 50: RepairReplica, 51: GetNodeFacts,
    52: GetNodeFactsReply,
    60: GetView, 61: GetViewReply, 62: GetTail, 63: GetTailReply, 64: TrimTopic, 65: RegisterNode, 66: UnregisterNode,
    67: RegisterTopic, 68: TopicReply, 69: UnregisterTopic, 70: NewLogStreamID, 71: NewLogStreamIDReply, 72: RegisterLogStream,
    73: SealStream, 74: UnsealStream, 75: StreamReply, 76: SetManager, 77: HoldStream, 78: SetReplicas,
    79: Suspect, 80: SetReader, 81: ForgetReader, 82: GetReaders, 83: GetReadersReply, 84: BeginWrite, 85: WriterReply,
    86: EndWrite,
    87: ForgetWriter, 88: GetWriters, 89: GetWritersReply, 160: GetBackup, 161: GetBackupReply,
    90: AddNode, 91: RemoveNode, 92: CreateTopic, 93: DeleteTopic, 94: AddStream, 95: AdminSealStream, 96: AdminUnsealStream,
    97: GetClusterStatus, 98: GetClusterStatusReply, 99: AdminReplaceReplica, 100: AdminSyncReplica, 101: AdoptOrder,
    102: AdoptOrderReply,
    120: WriteUnit, 121: FillUnit, 122: ReadUnit, 123: ReadUnitReply, 124: FetchUnit, 125: FetchUnitReply, 126: MeasureUnit,
    127: FindUnitTime, 128: SealUnit, 129: SealUnitReply, 130: ListUnit, 131: ListUnitReply, 132: CopyUnit, 133: CopyUnitReply,
    134: SyncUnit,
    140: NextTokens, 141: NextTokensReply, 142: GetSequencer, 143: GetSequencerReply,
    150: ProposeProjection, 151: ProposeProjectionReply, 152: RenewSequencer, 153: RequestLease, 154: LeaseReply, 155: UnitOrder,
}  # fmt: skip
