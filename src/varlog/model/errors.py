"""The error tree: what is known of the log, the facts as fields, one remedy.

    VarlogError
    ├── Rejected                certainly not in the log: safe to try again, elsewhere or later
    │   ├── InvalidRequest      … EmptyBatch, EntryTooLarge, BatchTooLarge, UnknownTopic, UnknownLogStream, NotInCluster
    │   ├── Sealed              the log stream takes no appends now: another one may
    │   ├── NotPrimary          the replica asked is not the stream's primary
    │   ├── SequenceConflict    a conditional append: the producer's sequence continues differently
    │   ├── PositionConflict    a conditional append: the stream's next position is another one
    │   ├── StaleEpoch          the caller does not know of a newer epoch
    │   ├── TopicStopped        a storage node knows the topic's order better than the repository: an operator must act
    │   ├── AlreadyWritten      another value has the position (sequenced ordering): take a new one
    │   └── NotAccepted         no replica took the request before its deadline
    │       └── Overloaded      more waits than can be served before the deadline: refused immediately
    ├── OutcomeUnknown          sent, and never answered: it may be in the log, or may still get there
    ├── Unavailable             a read or an administrative call that could not be answered now
    │   ├── NotLeader           this metadata repository does not lead: ask the one that does
    │   ├── NotSequencing       this sequencer does not give positions of that topic in that epoch
    │   └── NoLease             a node or sequencer without a recent lease from the repository, and so does not answer
    ├── NotWritten              nothing has this position yet
    ├── Trimmed                 the position was there, and was trimmed
    ├── JunkPosition            the position was given up by its appender: it holds nothing, forever
    ├── CorruptBatch            bytes that do not match their checksum; never served
    ├── PreconditionFailed      an administrative call that the present state does not allow
    │   ├── ReaderBehind        a named reader has not read what was to be trimmed
    │   ├── TrimBeyondTail      only what is in the log can be trimmed
    │   ├── StaleTerm           a metadata repository whose term is over, or that shares its term with another one
    │   ├── ProjectionConflict  a projection of another epoch than the next one was proposed
    │   └── AlreadySyncing      the replica is being filled from another source
    ├── CorruptReplica          a replica's files contradict what it once acknowledged: kept as they are
    └── StartupError            a process that must not start: wrong volume, foreign directory, port in use

The arguments of an error are its facts, in order: they travel over the wire and rebuild the same error there.
"""

from __future__ import annotations

from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN


class VarlogError(Exception):
    """Everything that varlog raises on purpose."""

    def __init__(self, *facts: object) -> None:
        super().__init__(*facts)

    def __str__(self) -> str:
        return self.message() if type(self).message is not VarlogError.message else Exception.__str__(self)

    def message(self) -> str:
        """One sentence: what is known, and the remedy."""
        return Exception.__str__(self)


class Rejected(VarlogError):
    """Certainly not in the log."""


class InvalidRequest(Rejected):
    """The request itself is wrong: trying again will not help."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class EmptyBatch(InvalidRequest):
    """A batch without entries has no position."""

    def __init__(self, what: str = "a batch must have at least one entry") -> None:
        super().__init__(what)


class EntryTooLarge(InvalidRequest):
    """One entry is over the limit."""

    def __init__(self, size: int, limit: int) -> None:
        Rejected.__init__(self, size, limit)
        self.size = size
        self.limit = limit

    def message(self) -> str:
        return f"an entry of {self.size} bytes is over the limit of {self.limit}: split it, or append only its address"


class BatchTooLarge(InvalidRequest):
    """One batch is over the limit of bytes or entries."""

    def __init__(self, unit: str, size: int, limit: int) -> None:
        Rejected.__init__(self, unit, size, limit)
        self.unit = unit
        self.size = size
        self.limit = limit

    def message(self) -> str:
        return f"a batch of {self.size} {self.unit} is over the limit of {self.limit}: append it in several batches"


class UnknownTopic(InvalidRequest):
    """No topic has this name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def message(self) -> str:
        return f"there is no topic {self.name!r}: make it with `varlog topic create {self.name}`, or see `varlog topic list`"


class UnknownLogStream(InvalidRequest):
    """The topic, or the node that was asked, has no such log stream."""

    def __init__(self, log_stream: LogStreamID) -> None:
        Rejected.__init__(self, log_stream)
        self.log_stream = log_stream

    def message(self) -> str:
        return f"log stream {self.log_stream} is not here: see `varlog status`"


class NotInCluster(InvalidRequest):
    """A request of one cluster reached a node of another."""

    def __init__(self, asked: ClusterID, here: ClusterID) -> None:
        Rejected.__init__(self, asked, here)
        self.asked = asked
        self.here = here

    def message(self) -> str:
        return f"this node is of cluster {self.here}, the request of cluster {self.asked}: check address and cluster id"


class Sealed(Rejected):
    """The log stream takes no appends now. `why` says what keeps it, where the replica knows (a full disk, say)."""

    def __init__(self, log_stream: LogStreamID, why: str = "") -> None:
        super().__init__(log_stream, why)
        self.log_stream = log_stream
        self.why = why

    def message(self) -> str:
        sealed = f"log stream {self.log_stream} is sealed and takes no appends until it is unsealed"
        return f"{sealed}: {self.why}" if self.why else sealed


class NotPrimary(Rejected):
    """Appends go to the primary."""

    def __init__(self, log_stream: LogStreamID) -> None:
        super().__init__(log_stream)
        self.log_stream = log_stream

    def message(self) -> str:
        return f"this replica of log stream {self.log_stream} is not its primary"


class StaleEpoch(Rejected):
    """The caller speaks for an epoch that is over (law 7)."""

    def __init__(self, log_stream: LogStreamID, asked: Epoch, here: Epoch) -> None:
        super().__init__(log_stream, asked, here)
        self.log_stream = log_stream
        self.asked = asked
        self.here = here

    def message(self) -> str:
        return f"log stream {self.log_stream} is in epoch {self.here}; epoch {self.asked} is over"


class TopicStopped(Rejected):
    """Nothing is appended to the topic: a storage node contradicts the metadata repository, which must not give
    positions twice."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name = name
        self.why = why

    def message(self) -> str:
        return f"topic {self.name!r} is STOPPED: {self.why}; run `varlog topic adopt-order {self.name}`"


class AlreadyWritten(Rejected):
    """Some of the positions of this batch hold something else, forever (law 8)."""

    def __init__(self, log_stream: LogStreamID, llsn: LLSN) -> None:
        super().__init__(log_stream, llsn)
        self.log_stream = log_stream
        self.llsn = llsn

    def message(self) -> str:
        return f"LLSN {self.llsn} of log stream {self.log_stream} is written already: take a new position"


class SequenceConflict(Rejected):
    """A batch that does not continue its producer's sequence; `newest` is the number of the last batch, 0 if there is none."""

    def __init__(self, log_stream: LogStreamID, sequence: int, newest: int) -> None:
        super().__init__(log_stream, sequence, newest)
        self.log_stream = log_stream
        self.sequence = sequence
        self.newest = newest

    def message(self) -> str:
        return (
            f"batch {self.sequence} does not continue the sequence of its producer in log stream "
            f"{self.log_stream}, which ends at batch {self.newest}: list the sequence, and continue behind it"
        )


class PositionConflict(Rejected):
    """The entry cannot get the position it was sent for: the stream's next one is `next`."""

    def __init__(self, log_stream: LogStreamID, asked: LLSN, next: LLSN) -> None:
        super().__init__(log_stream, asked, next)
        self.log_stream = log_stream
        self.asked = asked
        self.next = next

    def message(self) -> str:
        return f"LLSN {self.asked} of log stream {self.log_stream} cannot be written now: the next one is {self.next}"


class NotAccepted(Rejected):
    """No replica took the request before its deadline; nothing of it was stored."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"nothing was appended: {self.why}"


class Overloaded(NotAccepted):
    """More appends wait than can be served before the deadline of this one, so it was refused without waiting.
    `waiting` appends are served at about `rate` per second (0: not known); one that comes after `retry_after_s` has a
    chance."""

    def __init__(self, waiting: int, rate: float, retry_after_s: float) -> None:
        # The sentence is built only when it is read: an overloaded client does little else than refuse.
        Rejected.__init__(self, waiting, rate, retry_after_s)
        self.waiting = waiting
        self.rate = rate
        self.retry_after_s = retry_after_s

    @property
    def why(self) -> str:  # type: ignore[override]  # read only, where others keep theirs
        served = f", served at {self.rate:.3g}/s" if self.rate else ""
        return f"overloaded: about {self.waiting} appends are waiting{served}; retry after {self.retry_after_s:.2g} s"


class OutcomeUnknown(VarlogError):
    """Sent, and never answered: only the caller knows whether doing it twice is harmless (law 10)."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"it is not known whether this was appended: {self.why}"


class Unavailable(VarlogError):
    """It could not be answered now; later it may."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class NotLeader(Unavailable):
    """This metadata repository does not lead; `leader` is the address of the one that does, "" if none is known."""

    def __init__(self, leader: str = "") -> None:
        VarlogError.__init__(self, leader)
        self.leader = leader
        self.what = self.message()

    def message(self) -> str:
        if self.leader:
            return f"this metadata repository does not lead: ask the one at {self.leader}"
        return "this metadata repository does not lead, and knows of none that does: ask again in a moment"


class NotSequencing(Unavailable):
    """The sequencer asked gives no positions of this topic in this epoch; it is at `here` (0: it never was its sequencer)."""

    def __init__(self, topic: TopicID, asked: Epoch, here: Epoch) -> None:
        VarlogError.__init__(self, topic, asked, here)
        self.topic = topic
        self.asked = asked
        self.here = here
        self.what = self.message()

    def message(self) -> str:
        return f"this sequencer gives no positions of topic {self.topic} in epoch {self.asked}: it knows epoch {self.here}"


class NoLease(Unavailable):
    """Disconnected from the metadata repository for so long that others may have taken over its role (R-SEQ-13)."""

    def __init__(self, who: str) -> None:
        VarlogError.__init__(self, who)
        self.who = who
        self.what = self.message()

    def message(self) -> str:
        return f"{self.who} has no lease from the metadata repository, and answers nothing until it gets one"


class NotWritten(VarlogError):
    """Nothing has this position yet."""

    def __init__(self, position: int, newest: int) -> None:
        super().__init__(position, newest)
        self.position = position
        self.newest = newest

    def message(self) -> str:
        return f"position {self.position} is not written yet: the newest is {self.newest}"


class Trimmed(VarlogError):
    """The position was there, and was trimmed."""

    def __init__(self, position: int, oldest: int) -> None:
        super().__init__(position, oldest)
        self.position = position
        self.oldest = oldest

    def message(self) -> str:
        return f"position {self.position} is trimmed: the oldest that can be read is {self.oldest}"


class JunkPosition(VarlogError):
    """Its appender gave this position up: it holds junk. Subscriptions skip it."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position

    def message(self) -> str:
        return f"position {self.position} holds no entry, and never will: its appender gave it up"


class CorruptBatch(VarlogError):
    """Bytes that do not match their checksum, or that no batch can have."""

    def __init__(self, what: str, at: int = 0, place: str = "") -> None:
        super().__init__(what, at, place)
        self.what = what
        self.at = at
        self.place = place

    def message(self) -> str:
        return f"damaged batch at byte {self.at}{' of ' + self.place if self.place else ''}: {self.what}"


class PreconditionFailed(VarlogError):
    """The present state does not allow it; the message says what would."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class TrimBeyondTail(PreconditionFailed):
    """Only what is in the log can be trimmed."""

    def __init__(self, position: GLSN, newest: GLSN) -> None:
        VarlogError.__init__(self, position, newest)
        self.position = position
        self.newest = newest

    def message(self) -> str:
        return f"cannot trim up to {self.position}: the newest position is {self.newest}"


class ReaderBehind(PreconditionFailed):
    """A trim that respects named readers would remove what one of them has not read."""

    def __init__(self, reader: str, position: GLSN, asked: GLSN) -> None:
        VarlogError.__init__(self, reader, position, asked)
        self.reader = reader
        self.position = position
        self.asked = asked

    def message(self) -> str:
        return (
            f"cannot trim up to {self.asked}: reader {self.reader!r} has read up to {self.position}; trim up to "
            f"there, or forget the "
            f"reader with `varlog reader forget`"
        )


class StaleTerm(PreconditionFailed):
    """A node has seen term `seen` of a metadata repository, or another opening of the store in the same term (law 7)."""

    def __init__(self, term: int, seen: int, node: int = 0) -> None:
        VarlogError.__init__(self, term, seen, node)
        self.term = term
        self.seen = seen
        self.node = node

    def message(self) -> str:
        if self.seen == self.term:
            return f"node {self.node} has seen another metadata repository in term {self.term}: this one is a copy of it"
        return (
            f"term {self.term} of the metadata repository is over: node {self.node} has seen term {self.seen}"
        )


class ProjectionConflict(PreconditionFailed):
    """Only the next epoch can be proposed: another process was faster (R-SEQ-3)."""

    def __init__(self, topic: TopicID, asked: Epoch, current: Epoch) -> None:
        VarlogError.__init__(self, topic, asked, current)
        self.topic = topic
        self.asked = asked
        self.current = current

    def message(self) -> str:
        return f"topic {self.topic} is in epoch {self.current}: epoch {self.asked} cannot be proposed any more, or not yet"


class AlreadySyncing(PreconditionFailed):
    """A replica is filled from one source at a time (R-SYNC-2)."""

    def __init__(self, log_stream: LogStreamID, source: str) -> None:
        VarlogError.__init__(self, log_stream, source)
        self.log_stream = log_stream
        self.source = source

    def message(self) -> str:
        return (
            f"log stream {self.log_stream} is being synced from {self.source} already: wait for that to end"
        )


class StartupError(VarlogError):
    """A process that must not start; names the thing and the remedy."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class CorruptReplica(VarlogError):
    """A replica's files contradict what it once acknowledged; they are kept as they are."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(path, what)
        self.path = path
        self.what = what

    def message(self) -> str:
        return (
            f"{self.path} is damaged: {self.what}. It is left as it is; the other replicas hold its entries"
        )
