"""ReaderMark: tells the log how far a named reader is, for `varlog status` and for trims that respect it.

Nothing depends on it in time: a position that nobody takes now is told with the next one, and the query goes on.
"""

from __future__ import annotations

import asyncio

from varlog.client.log import Log
from varlog.model.errors import VarlogError
from varlog.runtime.logs import get_logger, logfmt
from varlog.spark.link import Link
from varlog.spark.stream.offsets import Offset, Place

# So long one telling may take, and after one that failed it is not tried again for so long.
TELL_S = 3.0
AGAIN_S = 5.0

logger = get_logger("spark")


class ReaderMark:
    """The reader named `reader`, in all topics of one query; "" tells nothing."""

    def __init__(self, link: Link, reader: str) -> None:
        self._link = link
        self._reader = reader
        self._told: dict[str, Place] = {}
        self._again_at_s = 0.0

    def move(self, offset: Offset) -> None:
        """Everything before `offset` is done with."""
        news = {name: place for name, place in offset.places.items() if self._told.get(name) != place}
        if news and self._reader:
            self._link.run(self._tell([(self._link.log(name), name, place) for name, place in news.items()]))

    async def _tell(self, news: list[tuple[Log, str, Place]]) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() < self._again_at_s:
            return
        for log, name, place in news:
            try:
                await log.set_reader(self._reader, place.glsn - 1, timeout_s=TELL_S)
                self._told[name] = place
            except VarlogError as error:
                self._again_at_s = loop.time() + AGAIN_S
                logger.warning(
                    logfmt("could not tell how far it is", topic=name, reader=self._reader, error=error)
                )
