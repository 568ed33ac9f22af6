"""[A4] PURE. Whether a batch of a chain is taken: behind its predecessor only, and never twice (R-USE-4, R-ORD-7).

Each batch of a chain names its predecessor by sequence and body checksum. So whoever sends the same chain, however often and from
wherever, can only extend it, or be told that what he sends is there already, or that the chain goes on in another way. What he
sends before he knows the answers must follow his own batches: two orders of the same rows may have one of them in the same place.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from varlog.model.ids import ProducerID
from varlog.model.lsn import LLSN, NO_LLSN


class Link(NamedTuple):
    """A batch as one link of its producer's chain. `attempt`: who sent it; 0 where that is not remembered."""

    producer: ProducerID
    sequence: int
    llsn: LLSN
    body_crc: int
    attempt: int = 0


class Sent(NamedTuple):
    """A batch that is to extend a chain, and what its sender says of the chain: see Append."""

    sequence: int
    body_crc: int
    previous_crc: int
    attempt: int = 0
    known: int = 0


class SequenceDecision(Enum):
    """What becomes of a batch that was sent as part of a chain."""

    TAKE = "it goes on where the chain ends"
    SAME = "the chain has this very batch"
    BROKEN = "the chain goes on in another way, or is not so long yet"


def decide(newest: Link | None, sent: Sent) -> SequenceDecision:
    """What becomes of a batch, where `newest` is the last one of its chain (None: there is none yet)."""
    last = newest if newest is not None else Link(ProducerID(0), 0, NO_LLSN, 0)
    if sent.sequence == last.sequence + 1 and sent.previous_crc == last.body_crc:
        follows = sent.attempt in (0, last.attempt) or sent.known == last.sequence
        return SequenceDecision.TAKE if follows else SequenceDecision.BROKEN
    if newest is not None and (sent.sequence, sent.body_crc) == (last.sequence, last.body_crc):
        return SequenceDecision.SAME
    return SequenceDecision.BROKEN


def link_of(links: Sequence[Link], sequence: int, body_crc: int) -> Link | None:
    """That batch among those of its chain that are under way: whoever sends the chain again joins them one by one."""
    return next((link for link in links if (link.sequence, link.body_crc) == (sequence, body_crc)), None)
