"""Feed, Followers: the newest entries of a topic, read once for all subscribers.

One subscription follows the end of the log and fills a cache of frames. A follower reads frames from the cache; what was evicted
is read as a page, which is cached as well. So a thousand followers at the end cost one subscription, one that is behind costs a
page at a time, and one that reads nothing costs nothing: all of its state is its position.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from varlog.client.log import Log
from varlog.model.entry import Entry
from varlog.model.errors import Trimmed, Unavailable, VarlogError
from varlog.model.limits import MIB
from varlog.proxy.admission import ProxyAdmission
from varlog.proxy.frame_rules import EntryFrame, FrameCache, frames_of
from varlog.proxy.gateway import Gateway
from varlog.proxy.position_rules import Start
from varlog.runtime.logging import get_logger, logfmt
from varlog.runtime.tasks import Tasks

# What is cached of a topic while it has followers.
CACHE_BYTES: Final = 32 * MIB
# Positions per page, and pages of a topic that are read at a time: each keeps a fetch in memory.
PAGE_ENTRIES: Final = 4096
PAGES_AT_ONCE: Final = 8
# A page that takes longer is requested again, if a follower still waits for it.
PAGE_S: Final = 10.0

logger = get_logger("proxy")


class Feed:
    """One topic, followed. Every position below `next` is in the log; `news` is done when there is more, or when it has ended."""

    def __init__(self, log: Log, next_position: int, cache_bytes: int = CACHE_BYTES) -> None:
        self.log = log
        self.topic = log.topic.name
        self.next = next_position
        self.failure: VarlogError | None = None
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cache = FrameCache(cache_bytes)
        self._pages: dict[int, asyncio.Task[None]] = {}
        self._page_turn = asyncio.Semaphore(PAGES_AT_ONCE)
        self._tasks = Tasks(f"feed/{self.topic}", self._task_failed)
        _ = self._tasks.spawn("follow", self._follow())

    def frames_at(self, position: int) -> list[EntryFrame]:
        """Cached frames from a position on. Empty: wait for `more(position)`."""
        return self._cache.frames_at(position)

    def more(self, position: int) -> asyncio.Future[None]:
        """Done when `frames_at(position)` is worth trying again. An error in it, such as Trimmed, concerns this position alone."""
        if position >= self.next:
            return self.news
        page = self._pages.get(position)
        if page is None:
            page = self._tasks.spawn(f"page/{position}", self._read_page(position))
            self._pages[position] = page
            page.add_done_callback(lambda _: self._pages.pop(position, None))
        return page

    def forget_frames(self) -> None:
        """Clear the cache: everything is read again."""
        self._cache.clear()

    async def close(self) -> None:
        """Stop; remaining followers get Unavailable."""
        await self._tasks.close()
        self._end(Unavailable("the proxy no longer follows this topic"))

    async def _follow(self) -> None:
        while True:
            try:
                async with aclosing(self.log.subscribe_lists(self.next)) as lists:
                    async for entries in lists:
                        if entries:
                            self._publish(
                                entries[-1].glsn + 1,
                                list(frames_of(self.next, entries[-1].glsn + 1, entries)),
                            )
            except Trimmed as trimmed:
                # Trimmed before it was read. Followers notice by the page that cannot be read.
                self._publish(trimmed.oldest, [])

    def _publish(self, next_position: int, frames: list[EntryFrame]) -> None:
        for frame in frames:
            self._cache.add(frame)
        self.next = next_position
        self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, asyncio.get_running_loop().create_future()
        if not news.done():
            news.set_result(None)

    async def _read_page(self, position: int) -> None:
        """Read a position and some of those behind it, up to what was ordered at the time of the request."""
        end = min(self.next, position + PAGE_ENTRIES)
        try:
            async with self._page_turn, asyncio.timeout(PAGE_S):
                entries = await self._first_list(position, end)
        except TimeoutError:
            logger.warning(logfmt("a page could not be read in time", topic=self.topic, position=position))
            return
        # A short page ends after its last entry; one without entries consists of junk positions alone.
        frames = list(frames_of(position, entries[-1].glsn + 1 if entries else end, entries))
        # The first one last: if they are too large to be cached together, the requested one stays.
        for frame in reversed(frames):
            self._cache.add(frame)

    async def _first_list(self, begin: int, end: int) -> list[Entry]:
        async with aclosing(self.log.subscribe_lists(begin, end)) as lists:
            async for entries in lists:
                if entries:
                    return entries
        return []

    def _task_failed(self, name: str, error: BaseException) -> None:
        if name.endswith("/follow"):
            self._end(error)
        if not isinstance(error, VarlogError):
            logger.error(logfmt("reading a topic failed", topic=self.topic, task=name, error=repr(error)))

    def _end(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = (
                error if isinstance(error, VarlogError) else Unavailable("reading the topic failed")
            )
        self._wake()


# --- followers ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _SharedFeed:
    topic: str
    feed: Feed
    users: int = 0


class Followers:
    """The followers of one proxy, by server-sent events or WebSocket: one Feed per topic while it has any.

    A follower is a position and the feed that it reads from. How its entries are sent, and what happens to a consumer that does
    not read them, is decided by backpressure_sender.py.
    """

    def __init__(self, gateway: Gateway, admission: ProxyAdmission) -> None:
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
        """A new follower, to be closed by the caller. TooBusy: there are too many. Trimmed: its start is trimmed, and
        `skip_trimmed` is not set."""
        # Before any wait: those that wait count as well.
        release = self._admission.subscribe(kind, client)
        try:
            log = await self._gateway.log(topic)
            mark = await log.connector.mark()
            begin = start.position(oldest=mark.trimmed + 1, newest=mark.high_watermark)
            if begin <= mark.trimmed and not skip_trimmed:
                raise Trimmed(begin, mark.trimmed + 1)
            return Follower(self, self._feed_of(topic, log, mark.high_watermark + 1), begin, release)
        except BaseException:
            release()
            raise

    def forget_frames(self, topic: str) -> None:
        """Read this topic again: what is cached may have been trimmed."""
        if (shared := self._shared.get(topic)) is not None:
            shared.feed.forget_frames()

    async def close(self) -> None:
        """Stop all feeds; remaining followers get Unavailable."""
        for shared in list(self._shared.values()):
            await shared.feed.close()
        self._shared.clear()

    async def left(self, shared: _SharedFeed) -> None:
        """A follower was closed; the feed ends with its last follower."""
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
    """One reader of a topic: `position` is the next one to read."""

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
    ) -> list[EntryFrame]:
        """The next frames, before `until`; the position moves behind them. Empty: nothing came in time, or `gone` is done. Raises
        the error that ended the feed."""
        loop = asyncio.get_running_loop()
        feed, deadline = self._shared.feed, loop.time() + timeout_s
        while not (frames := feed.frames_at(self.position)):
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
