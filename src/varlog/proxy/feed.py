"""Feed, Followers: the newest entries of a topic, read once for all subscribers

One subscription follows the end of the log and puts what comes on a shelf. A follower takes frames from there; what it needs and
is not there any more is read as a page, which also goes on the shelf. So a thousand followers at the end cost one subscription,
one that is behind costs a page at a time, and one that takes nothing costs nothing: it holds no more than its position.
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

# What is kept of a topic while somebody follows it.
SHELF_BYTES: Final = 32 * MIB
# One page covers so many positions at most, and so many pages of a topic are read at a time: each holds a fetch in memory.
PAGE_ENTRIES: Final = 4096
PAGES_AT_ONCE: Final = 8
# A page that does not come for so long is asked for anew, if anyone still wants it.
PAGE_S: Final = 10.0

logger = get_logger("proxy")


class Feed:
    """One topic, followed. Every position below `next` is in the log; `news` is done when there is more, or when it has ended."""

    def __init__(self, log: Log, next_position: int, shelf_bytes: int = SHELF_BYTES) -> None:
        self.log = log
        self.topic = log.topic.name
        self.next = next_position
        self.failure: VarlogError | None = None
        self.news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._shelf = FrameCache(shelf_bytes)
        self._pages: dict[int, asyncio.Task[None]] = {}
        self._page_turn = asyncio.Semaphore(PAGES_AT_ONCE)
        self._tasks = Tasks(f"feed/{self.topic}", self._task_failed)
        _ = self._tasks.spawn("follow", self._follow())

    def take(self, position: int) -> list[EntryFrame]:
        """What can be sent at once from a position on. Empty: wait for `more(position)`."""
        return self._shelf.take(position)

    def more(self, position: int) -> asyncio.Future[None]:
        """Done when `take(position)` is worth trying again. An error in it (Trimmed, say) is for whoever wants this position."""
        if position >= self.next:
            return self.news
        page = self._pages.get(position)
        if page is None:
            page = self._tasks.spawn(f"page/{position}", self._read_page(position))
            self._pages[position] = page
            page.add_done_callback(lambda _: self._pages.pop(position, None))
        return page

    def forget_frames(self) -> None:
        """What is kept has to be read again."""
        self._shelf.clear()

    async def close(self) -> None:
        """Whoever still follows hears that it has ended."""
        await self._tasks.close()
        self._end(Unavailable("the proxy follows this topic no more"))

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
                # Trimmed before we had read it. Who follows hears of it by the page that cannot be read.
                self._publish(trimmed.oldest, [])

    def _publish(self, next_position: int, frames: list[EntryFrame]) -> None:
        for frame in frames:
            self._shelf.put(frame)
        self.next = next_position
        self._wake()

    def _wake(self) -> None:
        news, self.news = self.news, asyncio.get_running_loop().create_future()
        if not news.done():
            news.set_result(None)

    async def _read_page(self, position: int) -> None:
        """Read what is at a position and some of what is behind it, up to what was ordered when it was asked for."""
        end = min(self.next, position + PAGE_ENTRIES)
        try:
            async with self._page_turn, asyncio.timeout(PAGE_S):
                entries = await self._first_list(position, end)
        except TimeoutError:
            logger.warning(logfmt("a page does not come", topic=self.topic, position=position))
            return
        # A page that was cut short goes on where its last entry ends; one without entries is all of positions given up.
        frames = list(frames_of(position, entries[-1].glsn + 1 if entries else end, entries))
        # The first one last: if they are too large to be kept together, the one that was asked for stays.
        for frame in reversed(frames):
            self._shelf.put(frame)

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
            told_error = error if isinstance(error, VarlogError) else Unavailable("reading the topic failed")
            self.failure = told_error
        self._wake()


# Followers: who follows which topic, by server-sent events or a WebSocket: one Feed a topic, for as long as somebody follows it.
#
# A follower is no more than a position and the feed that it takes from; how its entries leave, and what becomes of one that does
# not
# take them, is for whoever sends (backpressure_sender.py).


@dataclass(slots=True, eq=False)
class _SharedFeed:
    topic: str
    feed: Feed
    users: int = 0


class Followers:
    """Everybody who follows a topic of one proxy."""

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
        """A new follower, to be closed by who asked. TooBusy: there are enough. Trimmed: where it would start is gone, and it does
        not want to pass over that."""
        # Before anything is waited for: those who wait count, too.
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
    ) -> list[EntryFrame]:
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
