"""Messages from clients to a sequencer."""

from __future__ import annotations

from varlog.model.epoch import Epoch
from varlog.model.ids import TopicID
from varlog.model.lsn import GLSN
from varlog.model.projection import SequencerID
from varlog.rpc.messages.base import Message


class NextTokens(Message, frozen=True):
    """`count` consecutive positions of a topic that go to one log stream (R-SEQ-1); 0: only report the next one, and
    grant none.

    `within_ms` (0: not named): how long the client waits until its batch is written, counted from sending. A batch that
    would be written later is refused (Overloaded), and gets no position. `written`: the first positions of earlier
    batches of this client that are on every node since its last request, each with the microseconds that it took from
    its own request on; `given_up`: of those that never will be.
    """

    topic: TopicID
    epoch: Epoch
    count: int = 1
    within_ms: int = 0
    written: tuple[tuple[GLSN, int], ...] = ()
    given_up: tuple[GLSN, ...] = ()


class NextTokensReply(Message, frozen=True):
    """Positions from `first` on are the asker's, and so are `skipped` ones before it, which it fills with junk: a batch
    that does not fit in what is left of a stripe's turn begins in the next one's."""

    first: GLSN
    skipped: int = 0


class GetSequencer(Message, frozen=True):
    """The identity of the sequencer."""


class GetSequencerReply(Message, frozen=True):
    """`leased`: it may answer now."""

    sequencer: SequencerID
    leased: bool
