"""Messages from clients to storage nodes, committed ordering."""

from __future__ import annotations

from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages.base import Message


class Append(Message, frozen=True):
    """Order one packed batch (the payload) anywhere in `log_stream`. Sent to the primary; answered by AppendReply.

    `epoch` (0: any): the primary refuses the batch in any other epoch (StaleEpoch), so a delayed request cannot take
    effect in a later one.

    `is_retry`: the same batch (producer and sequence) was sent before in this epoch and may be in the log. If it is,
    its LLSN is above `min_llsn` and its GLSN above `min_glsn`, and its position is the answer.

    `within_ms` (0: unlimited): how long the caller waits for the answer, counted from sending. A batch that would be
    ordered later is refused (Overloaded) before it gets an LLSN.
    """

    log_stream: LogStreamID
    epoch: Epoch = Epoch(0)
    is_retry: bool = False
    min_llsn: LLSN = LLSN(0)
    min_glsn: GLSN = GLSN(0)
    within_ms: int = 0


class AppendIdempotent(Message, frozen=True):
    """Order one packed batch (the payload) as the next one of its producer's sequence. Sent to the primary; answered by
    AppendReply.

    A producer's batches in a log stream are numbered 1, 2, 3 … and all lie above `min_glsn`; several processes may
    extend the sequence. The batch is accepted only directly behind the batch that has the preceding number and the body
    checksum `previous_crc` (0 for the first batch). If the log already has this batch, with the same checksum, its
    position is the answer. Otherwise: SequenceConflict. The request may be repeated any number of times, in any epoch.
    `epoch` is as in Append.

    `writer_attempt` (0: not given) identifies one attempt of one process at extending the sequence; the writer draws
    another one each time it has listed the sequence, and `known_sequence` is the number up to which it has. A batch
    behind `known_sequence` is accepted only if its predecessor is of the same attempt. Otherwise two orderings of the
    same rows that have one row at the same number would meet there and continue with rows that the sequence already has
    further up.
    """

    log_stream: LogStreamID
    epoch: Epoch = Epoch(0)
    previous_crc: int = 0
    writer_attempt: int = 0
    known_sequence: int = 0
    min_glsn: GLSN = GLSN(0)


class AppendAt(Message, frozen=True):
    """Order one packed batch (the payload) at `expected_llsn`. Sent to the primary; answered by AppendReply.

    Accepted only if the batch's first entry gets that LLSN; otherwise: PositionConflict. `epoch` is as in Append.
    """

    log_stream: LogStreamID
    expected_llsn: LLSN
    epoch: Epoch = Epoch(0)


class AppendReply(Message, frozen=True):
    """The batch is ordered: its first entry is at `glsn` and `llsn`, and the others follow without a gap."""

    glsn: GLSN
    llsn: LLSN


class FindAppend(Message, frozen=True):
    """Whether a batch that was sent in `epoch` is in the log; if it is, then above `min_llsn` and `min_glsn`. Sent to
    any replica.

    Answered by FindAppendReply once that epoch has ended at the replica and everything up to its end is stored there;
    until then by Unavailable.
    """

    log_stream: LogStreamID
    epoch: Epoch
    producer: ProducerID
    sequence: int
    min_llsn: LLSN
    min_glsn: GLSN = GLSN(0)


class FindAppendReply(Message, frozen=True):
    """`found` is false if the batch is certainly not in the log and can no longer be ordered."""

    found: bool
    glsn: GLSN = GLSN(0)
    llsn: LLSN = LLSN(0)


class ListIdempotentBatches(Message, frozen=True):
    """List the ordered batches of a producer's sequence (see AppendIdempotent) that lie above `min_llsn` and
    `min_glsn`. Sent to the primary; answered by ListIdempotentBatchesReply."""

    log_stream: LogStreamID
    producer: ProducerID
    min_llsn: LLSN = LLSN(0)
    min_glsn: GLSN = GLSN(0)


class ListIdempotentBatchesReply(Message, frozen=True):
    """`batches` are (sequence, first LLSN, count, body checksum), in order. `more`: ask again with the last batch's LLSN as
    `min_llsn`."""

    batches: tuple[tuple[int, LLSN, int, int], ...]
    more: bool = False


class MeasureRange(Message, frozen=True):
    """How the entries of a stream with a GLSN in [begin, end) lie on disk. Sent to any replica; answered by MeasureRangeReply."""

    log_stream: LogStreamID
    begin: GLSN
    end: GLSN
    points_max: int = 256


class MeasureRangeReply(Message, frozen=True):
    """LLSNs [begin, end) and their approximate bytes on disk. `points` are (LLSN, bytes before it in the range),
    ascending, strictly inside the range, and spaced about evenly in bytes. `complete`: this replica has everything up
    to the range's end."""

    begin: LLSN
    end: LLSN
    bytes: int
    points: tuple[tuple[LLSN, int], ...]
    complete: bool


class FindTime(Message, frozen=True):
    """The first entry of a stream appended at or after `time_us`, found by bisection; as exact as the appenders' clocks
    agree. Sent to any replica; answered by FindTimeReply."""

    log_stream: LogStreamID
    time_us: int


class FindTimeReply(Message, frozen=True):
    """If no entry is that late, `llsn` is the stream's committed end and `glsn` the topic's newest position plus one."""

    llsn: LLSN
    glsn: GLSN


class CheckEntries(Message, frozen=True):
    """A reader received damaged bytes for LLSNs [begin, end): check them on disk. Answered by Done before they are checked."""

    log_stream: LogStreamID
    begin: LLSN
    end: LLSN


class ReadAt(Message, frozen=True):
    """Read one position of a topic from those of its streams that the node has; or, with `log_stream` and `llsn`
    instead of `glsn`, one position of a stream. With `wait_s` the answer waits until the position is ordered at the
    node."""

    topic: TopicID
    glsn: GLSN = GLSN(0)
    log_stream: LogStreamID = LogStreamID(0)
    llsn: LLSN = LLSN(0)
    wait_s: float = 0.0


class ReadAtReply(Message, frozen=True):
    """Payload: a batch with the one entry. `found` is false if the position is ordered in a stream that the node does not have."""

    found: bool
    log_stream: LogStreamID = LogStreamID(0)
    glsn: GLSN = GLSN(0)


class Fetch(Message, frozen=True):
    """Read whole batches of a stream from `llsn`, or (`llsn` 0) from the stream's first entry at or after `glsn`; at
    least one batch if any exists. Waits up to `wait_s` for the first. A subscription repeats it: the client pulls, so
    that a slow client occupies no memory at the node."""

    log_stream: LogStreamID
    llsn: LLSN
    glsn: GLSN = GLSN(0)
    bytes_max: int = 0
    wait_s: float = 0.0


class FetchReply(Message, frozen=True):
    """Payload: placed batches back to back; none: nothing is ordered from `next_llsn` on yet.

    `rows` are (llsn_begin, glsn_begin, count), in order, contiguous in LLSN, beginning with the LLSN asked for; they order the
    entries. The first batch may begin before the LLSN asked for, since a batch is never cut. `next_llsn` is where to continue.
    `high_watermark` is the topic's newest position known to the node: every entry of this stream up to it is ordered below
    `committed_end`. `low_watermark` is the topic's newest trimmed position known to the node.
    """

    rows: tuple[tuple[LLSN, GLSN, int], ...]
    next_llsn: LLSN
    committed_end: LLSN
    high_watermark: GLSN
    low_watermark: GLSN
