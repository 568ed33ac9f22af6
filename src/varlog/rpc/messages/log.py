"""Log service: clients -> storage node (committed ordering)"""

from __future__ import annotations

from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages.base import Message

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
