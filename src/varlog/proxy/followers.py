"""Followers: who follows which topic, by server-sent events or a WebSocket: one Feed a topic, for as long as somebody follows it.

A follower is no more than a position and the feed that it takes from; how its entries leave, and what becomes of one that does not
take them, is for whoever sends (backpressure_sender.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from varlog.client.log import Log
from varlog.model.errors import Trimmed
from varlog.proxy.admission import Admission
from varlog.proxy.feed import Feed
from varlog.proxy.frame_rules import Frame
from varlog.proxy.gateway import Gateway
from varlog.proxy.start_rules import Start


@dataclass(slots=True, eq=False)
class _SharedFeed:
    topic: str
    feed: Feed
    users: int = 0


class Followers:
    """Everybody who follows a topic of one proxy."""

    def __init__(self, gateway: Gateway, admission: Admission) -> None:
        self._gateway = gateway
        self._admission = admission
        self._shared: dict[str, _SharedFeed] = {}

    @property
    def feeds(self) -> int:
        """How many topics are followed."""
        return len(self._shared)

    async def follow(
        self, topic: str, start: Start, kind: str, client: str, *, skip_trimmed: bool = False
    ) -> Follower:
        """A new follower, to be closed by who asked. TooBusy: there are enough. Trimmed: where it would start is gone, and it does
        not want to pass over that."""
        # Before anything is waited for: those who wait count, too.
        release = self._admission.subscribe(kind, client)
        try:
            log = await self._gateway.log(topic)
            mark = await log.mark()
            begin = start.position(oldest=mark.trimmed + 1, newest=mark.high_watermark)
            if begin <= mark.trimmed and not skip_trimmed:
                raise Trimmed(begin, mark.trimmed + 1)
            return Follower(self, self._feed_of(topic, log, mark.high_watermark + 1), begin, release)
        except BaseException:
            release()
            raise

    def forget_frames(self, topic: str) -> None:
        """Read anew what anyone wants of this topic: what is kept of it may have been trimmed meanwhile."""
        if (shared := self._shared.get(topic)) is not None:
            shared.feed.forget_frames()

    async def close(self) -> None:
        """Stop following; whoever is still there hears of it."""
        for shared in list(self._shared.values()):
            await shared.feed.close()
        self._shared.clear()

    async def left(self, shared: _SharedFeed) -> None:
        """One who followed is gone; with the last one the feed ends."""
        shared.users -= 1
        if shared.users == 0:
            if self._shared.get(shared.topic) is shared:
                del self._shared[shared.topic]
            await shared.feed.close()

    def _feed_of(self, topic: str, log: Log, next_position: int) -> _SharedFeed:
        shared = self._shared.get(topic)
        if shared is None or shared.feed.failure is not None or shared.feed.log is not log:
            shared = self._shared[topic] = _SharedFeed(topic, Feed(log, next_position))
        shared.users += 1
        return shared


class Follower:
    """One reading of a topic: `position` is the next one that it wants."""

    def __init__(
        self, followers: Followers, shared: _SharedFeed, position: int, release: Callable[[], None]
    ) -> None:
        self.position = position
        self._followers = followers
        self._shared = shared
        self._release = release
        self._closed = False

    async def wait_frames(
        self, gone: asyncio.Future[str], timeout_s: float, until: int | None = None
    ) -> list[Frame]:
        """What is next, before `until`, and the position moves behind it. Empty: nothing came in time, or `gone` is done. Raises
        what ended it."""
        loop = asyncio.get_running_loop()
        feed, deadline = self._shared.feed, loop.time() + timeout_s
        while not (frames := feed.take(self.position)):
            if feed.failure is not None:
                raise feed.failure
            left_s = deadline - loop.time()
            if left_s <= 0 or gone.done():
                return []
            more = feed.more(self.position)
            _ = await asyncio.wait((more, gone), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            if more.done() and not more.cancelled() and (error := more.exception()) is not None:
                raise error
        if until is not None and frames[-1].end > until:
            frames = [frame.before(until) for frame in frames if frame.begin < until]
        self.position = frames[-1].end
        return frames

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()
            await self._followers.left(self._shared)
