"""Messages from a primary to its backups, and a replica's address."""

from __future__ import annotations

from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages.base import Message


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


class ReplicaAddress(Message, frozen=True):
    node: NodeID
    address: str
