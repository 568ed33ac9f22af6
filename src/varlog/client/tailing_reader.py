"""[R1] TailingReader: a subscription that tells up to which position everything was seen, entries or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing

from varlog.client.chunk import CUT_ENTRIES, Chunk
from varlog.client.merge_rules import Stretch
from varlog.client.ordering import Subscribed
from varlog.model.entry import Entry
from varlog.model.lsn import GLSN, LLSN


class TailingReader:
    """One reading of a topic, for ever. Some positions of a sequenced topic hold no entry (JunkPosition): who waits for the entry
    at the
    tail may wait for one that never comes, and asks `position` instead."""

    def __init__(self, subscription: Subscribed) -> None:
        self._subscription = subscription

    @property
    def position(self) -> GLSN:
        """Everything up to here is in the lists given so far, as of the list given last."""
        return GLSN(self._subscription.next - 1)

    def expect(self, glsn: GLSN) -> None:
        """Somebody waits for everything up to `glsn`, which the log's tail has reached: a position whose appender is gone is then
        filled, although nothing follows it."""
        self._subscription.expect(glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        """Whatever has arrived, in order; an empty list where only positions without an entry were passed."""
        async with aclosing(self._subscription.stretches(empty=True)) as stretches:
            async for taken in stretches:
                yield entries_of(taken)


def entries_of(taken: list[Stretch]) -> list[Entry]:
    """The entries of some stretches."""
    entries: list[Entry] = []
    for log_stream, glsn, llsn, length, source, _ in taken:
        if isinstance(source, Chunk):
            entries += source.entries(log_stream, glsn, llsn, length)
    return entries


def lists_of(taken: list[Stretch]) -> Iterator[list[Entry]]:
    """The same in lists that are as long as is quick to make: see Chunk."""
    entries: list[Entry] = []
    for log_stream, glsn, llsn, length, source, _ in taken:
        if isinstance(source, Chunk):
            begin = 0
            while begin < length:
                count = min(length - begin, CUT_ENTRIES - len(entries))
                entries += source.entries(log_stream, GLSN(glsn + begin), LLSN(llsn + begin), count)
                begin += count
                if len(entries) == CUT_ENTRIES:
                    yield entries
                    entries = []
    if entries:
        yield entries
