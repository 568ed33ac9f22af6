"""[R1] Following: a subscription that tells up to which position everything was seen, entries or not."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from varlog.client.chunk import Chunk
from varlog.client.merge_rules import Stretch
from varlog.client.ordering import Subscribed
from varlog.model.entry import Entry
from varlog.model.lsn import GLSN


class Following:
    """One reading of a topic, for ever. Some positions of a sequenced topic hold no entry (Filled): who waits for the entry at the
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
