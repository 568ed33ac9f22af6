"""BlockingConnector: what an engine needs of a blocking log.

As Connector, without async; and the means to run async code in the log's loop, for recipes that are built on the async Log.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from varlog.client.chunk import FetchPoint, Part
from varlog.client.log import Log
from varlog.client.loop_bridge import LoopBridge
from varlog.model.cluster import ClusterView, NamedWriter
from varlog.model.commit import TopicMark
from varlog.model.entry import Position, StreamRange
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")


class BlockingConnector:
    """Of one blocking log: `log.connector`. Safe to use from several threads. It keeps the log's loop alive."""

    def __init__(self, bridge: LoopBridge, log: Log) -> None:
        self._bridge = bridge
        self._log = log
        self._connector = log.connector

    # --- Reading --------------------------------------------------------------------------------------------------------

    def chunks(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[FetchPoint] = (),
        timeout_s: float | None = None,
    ) -> Generator[Part, None, None]:
        """Whole batches of one stream, checked end to end: rows (llsn, glsn, count) that are exactly [llsn_begin, llsn_end), and
        the chunk that they are in."""
        return self.iterate(
            self._connector.chunks(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        )

    def range(
        self,
        log_stream: LogStreamID | int,
        llsn_begin: LLSN | int,
        llsn_end: LLSN | int,
        *,
        cuts: Sequence[FetchPoint] = (),
        timeout_s: float | None = None,
    ) -> Generator[pa.RecordBatch, None, None]:
        """As `chunks`, as record batches of about 1 MiB with the columns of `Log.arrow`."""
        return self.iterate(
            self._connector.range(log_stream, llsn_begin, llsn_end, cuts=cuts, timeout_s=timeout_s)
        )

    def mark(self, *, timeout_s: float | None = None) -> TopicMark:
        """Newest and newest trimmed position, in one request."""
        return self.run(self._connector.mark(timeout_s=timeout_s))

    def measure(
        self,
        log_stream: LogStreamID | int,
        begin: GLSN | int,
        end: GLSN | int,
        points_max: int = 256,
        *,
        timeout_s: float | None = None,
    ) -> StreamRange:
        """The LLSNs of those entries of a stream whose position is in [begin, end), their bytes, and LLSNs that cut these bytes
        into about equal pieces. Trimmed if `begin` is trimmed. `end` may not be beyond the tail + 1."""
        return self.run(self._connector.measure(log_stream, begin, end, points_max, timeout_s=timeout_s))

    def find_time(
        self, log_stream: LogStreamID | int, time_us: int, *, timeout_s: float | None = None
    ) -> Position:
        """Where the first entry of a stream is that was appended at or after a time, in microseconds since 1970 UTC; as exact as
        the appenders' clocks agree. One past the newest entry of the stream, and of the topic, if there is none."""
        return self.run(self._connector.find_time(log_stream, time_us, timeout_s=timeout_s))

    # --- Writing --------------------------------------------------------------------------------------------------------

    def begin_write(
        self,
        name: str,
        batch: int,
        streams: Iterable[LogStreamID | int] | None = None,
        *,
        kept: bool = False,
        timeout_s: float | None = None,
    ) -> NamedWriter:
        """Begin batch number `batch` of a writer that consists of many tasks, or learn how it was begun: the first call fixes the
        streams (None: those that run now) and where in the log it begins, and every later call gets the same. PreconditionFailed
        if the writer is at a later batch. `kept`: remembered when finished, until it is forgotten; else among the newest only."""
        return self.run(self._connector.begin_write(name, batch, streams, kept=kept, timeout_s=timeout_s))

    def end_write(self, name: str, batch: int, *, timeout_s: float | None = None) -> NamedWriter:
        """Record that everything of this batch is in the log: `begin_write` then says that it is finished."""
        return self.run(self._connector.end_write(name, batch, timeout_s=timeout_s))

    def writers(self, *, timeout_s: float | None = None) -> tuple[NamedWriter, ...]:
        """The topic's named writers, each with its newest batch."""
        return self.run(self._connector.writers(timeout_s=timeout_s))

    def forget_writer(self, name: str, *, timeout_s: float | None = None) -> None:
        """A job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
        self.run(self._connector.forget_writer(name, timeout_s=timeout_s))

    # --- About the log --------------------------------------------------------------------------------------------------

    def view(self, *, timeout_s: float | None = None) -> ClusterView:
        """A fresh view of the cluster."""
        return self.run(self._connector.view(timeout_s=timeout_s))

    @property
    def asynchronous(self) -> Log:
        """The async log beneath; it is used in its own loop only."""
        return self._log

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which runs in the log's loop."""
        return self._bridge.run(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """The items of `source`, which runs in the log's loop; it is closed there at the end."""
        return self._bridge.iterate(source)
