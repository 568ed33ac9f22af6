"""Projection: where the positions of a sequenced topic are (R-SEQ-3).

It says which log stream has a position, and which nodes, in which order, hold that stream.

A topic's positions are cut into ranges, oldest first, the last one without an end; all of them are kept, so that every
old position stays where it is. Inside a range the log streams (stripes) take turns, `stripe_size` consecutive positions
each:

    stripes A, B, size 2     GLSN  1 2 3 4 5 6 7 8 …
                             A     1 2     3 4           (LLSNs)
                             B         1 2     3 4

So a position and its place follow from each other by arithmetic, and are not stored per entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import FIRST_LLSN, GLSN, LLSN, LSN_MAX

# How many consecutive positions one stripe takes, unless the topic says otherwise; also the entries of a batch, which
# is never cut.
STRIPE_SIZE = 4096


class SequencerID(msgspec.Struct, frozen=True):
    """One start of a sequencer. One that was started again has counted nothing yet: it is another one."""

    address: str
    incarnation: int


class Stripe(msgspec.Struct, frozen=True):
    """A log stream's share of a range: its positions there have the LLSNs from `base` on."""

    log_stream: LogStreamID
    base: LLSN = FIRST_LLSN


class Range(msgspec.Struct, frozen=True):
    """Positions from `begin` up to where the next range begins."""

    begin: GLSN
    stripes: tuple[Stripe, ...]
    stripe_size: int = STRIPE_SIZE

    def __post_init__(self) -> None:
        if not self.stripes or self.stripe_size < 1 or self.begin < 1:
            raise ValueError(f"a range has stripes, a stripe size and a first position: {self}")


class Chain(msgspec.Struct, frozen=True):
    """The nodes of a log stream, head first: written in this order, read from the last. `out_of_sync` are
    members that are neither written nor read until they have been filled and a later projection includes them."""

    log_stream: LogStreamID
    nodes: tuple[NodeID, ...]
    out_of_sync: tuple[NodeID, ...] = ()

    def __post_init__(self) -> None:
        members = (*self.nodes, *self.out_of_sync)
        if not self.nodes or len(dict.fromkeys(members)) != len(members):
            raise ValueError(f"a chain has at least one node, and none twice: {self}")

    @property
    def head(self) -> NodeID:
        return self.nodes[0]

    @property
    def tail(self) -> NodeID:
        return self.nodes[-1]

    @property
    def members(self) -> tuple[NodeID, ...]:
        return (*self.nodes, *self.out_of_sync)

    @property
    def has_one_copy(self) -> bool:
        """It had more once: what it holds exists nowhere else now."""
        return len(self.nodes) == 1 and bool(self.out_of_sync)


class StripePosition(NamedTuple):
    """Where a position is. The `run` positions from it on are consecutive in the log stream, too."""

    log_stream: LogStreamID
    llsn: LLSN
    run: int


class Projection(msgspec.Struct, frozen=True):
    """One epoch of a sequenced topic. `begin`: nothing at or above it was written before this epoch, and a sequencer
    that is new in this epoch counts from there. Positions below `begin` that nobody wrote are holes, to be filled."""

    topic: TopicID
    epoch: Epoch
    begin: GLSN
    ranges: tuple[Range, ...]
    chains: tuple[Chain, ...]
    sequencer: SequencerID | None = None

    def __post_init__(self) -> None:
        begins = [found.begin for found in self.ranges]
        if not begins or begins != sorted(set(begins)):
            raise ValueError(f"ranges follow each other: {begins}")
        striped = {stripe.log_stream for found in self.ranges for stripe in found.stripes}
        if striped != {chain.log_stream for chain in self.chains} or len(striped) != len(self.chains):
            raise ValueError(f"each log stream of a range has one chain, and no other has: {self}")

    @property
    def first(self) -> GLSN:
        """The topic's first position."""
        return self.ranges[0].begin

    @property
    def newest_range(self) -> Range:
        return self.ranges[-1]

    def chain(self, log_stream: LogStreamID) -> Chain:
        """KeyError: it is no log stream of this projection."""
        for chain in self.chains:
            if chain.log_stream == log_stream:
                return chain
        raise KeyError(log_stream)

    # --- Positions ------------------------------------------------------------------------------------------------------

    def locate(self, glsn: GLSN) -> StripePosition:
        """Where `glsn` is. ValueError below the topic's first position."""
        number = bisect_right(self.ranges, glsn, key=_begin) - 1
        if number < 0:
            raise ValueError(f"position {glsn} is before the topic's first, {self.first}")
        found = self.ranges[number]
        offset, size, stripes = glsn - found.begin, found.stripe_size, len(found.stripes)
        end = self.ranges[number + 1].begin if number + 1 < len(self.ranges) else LSN_MAX
        if stripes == 1:
            stripe = found.stripes[0]
            return StripePosition(stripe.log_stream, LLSN(stripe.base + offset), end - glsn)
        turn, inside = divmod(offset, size)
        lap, index = divmod(turn, stripes)
        stripe = found.stripes[index]
        return StripePosition(
            stripe.log_stream, LLSN(stripe.base + lap * size + inside), min(size - inside, end - glsn)
        )

    def position(self, log_stream: LogStreamID, llsn: LLSN) -> tuple[GLSN, int]:
        """Which position this entry of a stream has, and how many from it on are consecutive. ValueError: the stream has none."""
        for number in range(len(self.ranges) - 1, -1, -1):
            found = self.ranges[number]
            for index, stripe in enumerate(found.stripes):
                if stripe.log_stream == log_stream and stripe.base <= llsn:
                    offset, stripes = llsn - stripe.base, len(found.stripes)
                    if stripes > 1:
                        lap, inside = divmod(offset, found.stripe_size)
                        offset = (lap * stripes + index) * found.stripe_size + inside
                    glsn = GLSN(found.begin + offset)
                    return glsn, self.locate(glsn).run
        raise ValueError(f"log stream {log_stream} has no entry {llsn}")

    def llsn_from(self, log_stream: LogStreamID, glsn: GLSN) -> LLSN:
        """The first LLSN of a stream whose position is at least `glsn`, written or not."""
        low: LLSN | None = None
        for number in range(len(self.ranges) - 1, -1, -1):
            found = self.ranges[number]
            for index, stripe in enumerate(found.stripes):
                if stripe.log_stream != log_stream:
                    continue
                if found.begin <= glsn:
                    inside = LLSN(
                        stripe.base
                        + _before(glsn - found.begin, index, len(found.stripes), found.stripe_size)
                    )
                    # Beyond the range's end the stream continues where the next range that has it begins.
                    return inside if low is None else min(low, inside)
                low = stripe.base
        if low is None:
            raise ValueError(f"log stream {log_stream} is none of this projection")
        return low

    def rows(self, log_stream: LogStreamID, begin: LLSN, end: LLSN) -> Iterator[tuple[LLSN, GLSN, int]]:
        """(LLSN, GLSN, count) of the entries [begin, end) of a stream, each as long as both are consecutive."""
        while begin < end:
            glsn, run = self.position(log_stream, begin)
            count = min(run, end - begin)
            yield begin, glsn, count
            begin = LLSN(begin + count)

    def run_from(self, glsn: GLSN, count: int) -> GLSN:
        """The first position at or after `glsn` from which `count` are consecutive on one stream: a batch is never cut."""
        run = self.locate(glsn).run
        if run >= count:
            return glsn
        if count > self.run_max:
            raise ValueError(
                f"no run of this projection has {count} positions: the stripe size is {self.run_max}"
            )
        return self.run_from(GLSN(glsn + run), count)

    @property
    def run_max(self) -> int:
        """The most positions that are consecutive anywhere in the newest range."""
        newest = self.newest_range
        return newest.stripe_size if len(newest.stripes) > 1 else LSN_MAX


def _begin(found: Range) -> GLSN:
    return found.begin


def _before(offset: int, index: int, stripes: int, stripe_size: int) -> int:
    """How many of the first `offset` positions of a range are stripe number `index`'s."""
    lap, rest = divmod(offset, stripe_size * stripes)
    return lap * stripe_size + min(max(rest - index * stripe_size, 0), stripe_size)


class Proposal(msgspec.Struct, frozen=True):
    """A projection that the repository of `term` is about to make, as a node of its chains keeps it. Of two for one
    epoch and term only the one with the larger `serial` can have been made: the repository proposes one at a time."""

    term: int
    serial: int
    projection: Projection


# Keys of earlier formats on disk, and their present names: the stripe size of topics and ranges in format 1; in formats 1 and 2 the
# mark of a log stream that an operator sealed, and the members that a chain is without.
_PRESENT_KEYS: Final = {"unit": "stripe_size", "held": "sealed_by_admin", "away": "out_of_sync"}


def with_present_keys(fields: Any) -> Any:
    """Decoded topics, log streams and projections of an earlier format, under the keys of the present one."""
    if isinstance(fields, dict):
        return {_PRESENT_KEYS.get(key, key): with_present_keys(value) for key, value in fields.items()}
    return [with_present_keys(value) for value in fields] if isinstance(fields, list) else fields
