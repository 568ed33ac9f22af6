"""[R2 Q4] RangePieces: fetches a range of one log stream in overlapping pieces.

Both orderings read ranges through it. The caller gets the parts in order, however the fetches overlap.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from itertools import pairwise
from typing import Final, Protocol

from varlog.client.chunk import Chunk, FetchPoint, Part
from varlog.client.merge_rules import Row
from varlog.model.ids import LogStreamID
from varlog.model.limits import FETCH_BYTES_MAX, MIB
from varlog.model.lsn import LLSN
from varlog.runtime.tasks import Tasks

# The size of one fetch. The commit rows of single appends to several streams must fit into the same response.
FETCH_BYTES: Final = 2 * MIB
# How many pieces are fetched concurrently, and how many chunks of each wait for the caller.
PIECES_AHEAD: Final = 3
CHUNKS_AHEAD: Final = 2

_Lane = asyncio.Queue[Part | Exception | None]


class RangeSource(Protocol):
    """How one ordering reads a range."""

    async def open(self) -> None:
        """Raises UnknownLogStream if the topic has no stream of this id."""
        ...

    async def fetch(self, begin: LLSN, end: LLSN, size: int) -> tuple[Sequence[tuple[Row, ...]], Chunk]:
        """One fetch of about `size` bytes, retried until a deadline. Returns rows from `begin` on, in pieces without a gap, and the
        chunk that holds them."""
        ...


class RangePieces:
    """One reading of LLSNs [begin, end). `cuts`, if known, are LLSNs in the range at which a batch begins, each with the
    approximate number of bytes up to the next one; one concurrent fetch is made for each."""

    def __init__(
        self, source: RangeSource, log_stream: LogStreamID, begin: LLSN, end: LLSN, cuts: Sequence[FetchPoint]
    ) -> None:
        self._source = source
        self._log_stream = log_stream
        inside = [(LLSN(llsn), size) for llsn, size in cuts if begin <= llsn < end]
        begun = [] if inside and inside[0][0] == begin else [(begin, FETCH_BYTES)]
        self._pieces = deque(pairwise([*begun, *inside, (end, 0)]))
        self._tasks = Tasks("range", lambda name, error: None)

    async def parts(self) -> AsyncGenerator[Part, None]:
        """Yields the content of the range, in order. Raises Trimmed if it was trimmed meanwhile, NotWritten if it is not written
        yet."""
        await self._source.open()
        lanes: deque[_Lane] = deque()
        try:
            while lanes or self._pieces:
                while self._pieces and len(lanes) < PIECES_AHEAD:
                    (first, size), (stop, _) = self._pieces.popleft()
                    lanes.append(self._start(first, stop, size))
                part = await lanes[0].get()
                if isinstance(part, Exception):
                    raise part
                if part is None:
                    lanes.popleft()
                else:
                    yield part
        finally:
            await self._tasks.close()

    def _start(self, begin: LLSN, end: LLSN, size: int) -> _Lane:
        lane: _Lane = asyncio.Queue(CHUNKS_AHEAD)
        _ = self._tasks.spawn(f"fetch/ls={self._log_stream}", self._fill(lane, begin, end, size))
        return lane

    async def _fill(self, lane: _Lane, begin: LLSN, end: LLSN, size: int) -> None:
        """Fetch one piece: in one fetch if it is about `size` bytes, in several fetches of that size if it is longer."""
        left = size
        try:
            while begin < end:
                pieces, chunk = await self._source.fetch(begin, end, min(left, FETCH_BYTES_MAX))
                begin, left = chunk.end_llsn, left - len(chunk.payload)
                if left <= 0:
                    left = size
                for rows in pieces:
                    await lane.put((rows, chunk))
            await lane.put(None)
        except Exception as error:  # noqa: BLE001 - raised where the parts are read
            await lane.put(error)
