"""[R1] TailingReader: an endless subscription that reports how far it has read.

Some positions of a sequenced topic hold no entry (JunkPosition). A caller that waited for the entry at the tail could wait for
one that never comes; it compares `position` with the tail instead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from varlog.client.chunk import entries_in
from varlog.client.ordering import TopicSubscription
from varlog.model.entry import Entry
from varlog.model.lsn import GLSN


class TailingReader:
    """One endless reading of a topic. Made by `Connector.follow`."""

    def __init__(self, subscription: TopicSubscription) -> None:
        self._subscription = subscription

    @property
    def position(self) -> GLSN:
        """Everything up to here is in the lists returned so far, the last one included."""
        return GLSN(self._subscription.next - 1)

    def expect(self, glsn: GLSN) -> None:
        """The caller waits for everything up to `glsn`, which the log's tail has reached: a position whose appender is gone is
        then filled, although nothing follows it."""
        self._subscription.expect(glsn)

    async def lists(self) -> AsyncGenerator[list[Entry], None]:
        """What has arrived, in order; an empty list where only positions without an entry were passed."""
        async with aclosing(self._subscription.stretches(empty=True)) as stretches:
            async for arrived in stretches:
                yield entries_in(arrived)
