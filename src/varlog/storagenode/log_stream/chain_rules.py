"""[A4] PURE. Whether a batch of a chain is taken: behind its predecessor only, and never twice (R-USE-4, R-ORD-7).

Each batch of a chain names its predecessor by sequence and body checksum. So whoever sends the same chain, however often and from
wherever, can only extend it, or be told that what he sends is there already, or that the chain goes on in another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from varlog.model.ids import ProducerID
from varlog.model.lsn import LLSN


class Link(NamedTuple):
    """A batch as one link of its producer's chain."""

    producer: ProducerID
    sequence: int
    llsn: LLSN
    body_crc: int


class Judgement(Enum):
    """What becomes of a batch that was sent as part of a chain."""

    TAKE = "it goes on where the chain ends"
    SAME = "the chain has this very batch"
    BROKEN = "the chain goes on in another way, or is not so long yet"


def judge(newest: Link | None, sequence: int, body_crc: int, previous_crc: int) -> Judgement:
    """What becomes of a batch, where `newest` is the last one of its chain (None: there is none yet)."""
    last_sequence, last_crc = (newest.sequence, newest.body_crc) if newest is not None else (0, 0)
    if sequence == last_sequence + 1 and previous_crc == last_crc:
        return Judgement.TAKE
    if newest is not None and sequence == last_sequence and body_crc == last_crc:
        return Judgement.SAME
    return Judgement.BROKEN


def link_of(links: Sequence[Link], sequence: int, body_crc: int) -> Link | None:
    """That batch among those of its chain that are under way: whoever sends the chain again joins them one by one."""
    return next((link for link in links if (link.sequence, link.body_crc) == (sequence, body_crc)), None)
