"""CommitRow, Report, TopicMark, OrderAdoption: the vocabulary of ordering.

Ranges are half-open (R-CTX-1, R-CTX-2).
"""

from __future__ import annotations

import msgspec

from varlog.model.epoch import NO_EPOCH, Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN


class CommitRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A commit context: entry `llsn_begin + i` is ordered at `glsn_begin + i`, for 0 <= i < count.

    `version` is the cut that ordered it; `high_watermark` the topic's newest position after that cut and
    `previous_high_watermark` the one before it. `epoch` is the stream's epoch in which it was ordered.
    """

    version: int
    high_watermark: GLSN
    previous_high_watermark: GLSN
    glsn_begin: GLSN
    llsn_begin: LLSN
    count: int
    epoch: Epoch

    def __post_init__(self) -> None:
        if self.count <= 0 or self.glsn_begin < 1 or self.llsn_begin < 1:
            raise ValueError(f"a commit row is never empty and positions start at 1: {self}")

    @property
    def llsn_end(self) -> LLSN:
        return LLSN(self.llsn_begin + self.count)

    @property
    def glsn_end(self) -> GLSN:
        return GLSN(self.glsn_begin + self.count)

    def rest(self, known: int) -> CommitRow:
        """This run without its first `known` entries."""
        return CommitRow(
            self.version,
            self.high_watermark,
            self.previous_high_watermark,
            GLSN(self.glsn_begin + known),
            LLSN(self.llsn_begin + known),
            self.count - known,
            self.epoch,
        )

    def head(self, count: int) -> CommitRow:
        """The first `count` entries of this run."""
        return CommitRow(
            self.version,
            self.high_watermark,
            self.previous_high_watermark,
            self.glsn_begin,
            self.llsn_begin,
            count,
            self.epoch,
        )

    def follows(self, earlier: CommitRow) -> bool:
        """True if this run continues exactly where the earlier one ended, in both orders and in one epoch."""
        return (
            self.glsn_begin == earlier.glsn_end
            and self.llsn_begin == earlier.llsn_end
            and self.epoch == earlier.epoch
        )

    def merged(self, later: CommitRow) -> CommitRow:
        """This run and the one that follows it, as one."""
        return CommitRow(
            later.version,
            later.high_watermark,
            self.previous_high_watermark,
            self.glsn_begin,
            self.llsn_begin,
            self.count + later.count,
            later.epoch,
        )


class Report(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one replica reports to the metadata repository: how far it is durable, and how far its commit rows are.

    `durable_end` is one past the newest LLSN that survives a power loss here (law 1). Entries below `rows_synced_end` are
    covered by commit rows that survive one too: the repository may forget the rows below the smallest of these.
    """

    log_stream: LogStreamID
    epoch: Epoch
    durable_end: LLSN
    rows_synced_end: LLSN


class TopicMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A topic's newest ordered position, and the newest trimmed one."""

    topic: TopicID
    high_watermark: GLSN
    trimmed: GLSN


class OrderAdoption(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What storage nodes know of a stopped topic that the repository does not: positions [begin, end). `taken`: (node,
    log stream, first position, end, first LLSN). `missing`: ranges of positions that no node reports. `conflicts`,
    `silent` (nodes that did not answer): why it may not be done. `raised`: log streams that are sealed in a new epoch
    by it. `adopted`: it is done.

    Of a sequenced topic: `projection` (0: none is taken) is the epoch of the projection that `source` keeps, `lost` the
    epoch that the repository has. `trimmed`: up to where it is trimmed then. `needed`: nodes that must answer to prove
    that no newer projection exists.
    """

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
