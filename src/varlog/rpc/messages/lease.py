"""Messages of leases: storage node or sequencer <-> metadata repository."""

from __future__ import annotations

from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import LLSN
from varlog.model.projection import SequencerID
from varlog.rpc.messages.base import Message


class UnitOrder(Message, frozen=True):
    """The unit is in no older epoch than `epoch`, and has nothing below `low`. `alone`: it is the only one of its
    chain, so there is no other to compare it with."""

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
    """One way, repository -> node, or the answer to a sequencer: it may answer for `lease_s` seconds of its own clock
    from `stamp` on; 0: it may not. `orders`: of the node's units. `topics`, to a sequencer: the present epoch of every
    sequenced topic; in an older one it must not answer from now on. To a node: the same of the topics of its units, to
    be remembered."""

    stamp: int
    lease_s: float
    orders: tuple[UnitOrder, ...] = ()
    topics: tuple[tuple[TopicID, Epoch], ...] = ()


class RenewSequencer(Message, frozen=True):
    """A sequencer registers itself and asks for a lease. Answered by LeaseReply."""

    sequencer: SequencerID
    stamp: int
