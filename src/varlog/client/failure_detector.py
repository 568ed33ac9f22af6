"""[A2 R2] FailureDetector: which nodes and streams to try last (R-FAIL-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar

from varlog.model.cluster import LogStream
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, NodeID

# Report a node to the repository at most once in this interval: it has shared the suspicion already.
SUSPECT_AGAIN_S = 1.0


class FailureDetector:
    """The recent failures of nodes and streams. `report` shares a suspicion with the repository."""

    def __init__(self, report: Callable[[NodeID, str], None]) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._nodes: DenyList[NodeID] = DenyList()
        # Keyed by epoch: a stream that was sealed and runs again starts with a clean record.
        self._streams: DenyList[tuple[LogStreamID, Epoch]] = DenyList()
        self._suspects: dict[NodeID, float] = {}
        self._reported: dict[NodeID, float] = {}
        # Whether any failure is recent. It is nearly always False, and then nothing needs to be checked.
        self.has_suspects = False

    def node_failed(self, node: NodeID, why: str, *, refused: bool = False) -> None:
        """Record that a node did not answer, or that its connection broke; `refused`: no process listens there, which is proof
        enough."""
        now, self.has_suspects = self._loop.time(), True
        self._nodes.failed(node, now, surely=refused)
        if now >= self._reported.get(node, now):
            self._reported[node] = now + SUSPECT_AGAIN_S
            self._report(node, why)

    def node_erred(self, node: NodeID) -> None:
        """Record that a node answered with an error: ask others first, but do not suspect it."""
        self.has_suspects = True
        self._nodes.failed(node, self._loop.time())

    def node_answered(self, node: NodeID) -> None:
        if self.has_suspects:
            self._nodes.succeeded(node)
            self._settle()

    def stream_failed(self, stream: LogStream, *, surely: bool) -> None:
        """Record that an append to the stream failed; `surely`: its primary reported that it accepts none."""
        self.has_suspects = True
        self._streams.failed((stream.log_stream, stream.epoch), self._loop.time(), surely=surely)

    def stream_succeeded(self, stream: LogStream) -> None:
        if self.has_suspects:
            self._streams.succeeded((stream.log_stream, stream.epoch))
            self._settle()

    def suspected(self, nodes: Sequence[NodeID]) -> bool:
        """Set the nodes that the repository lists as suspected. Returns True if the list has changed."""
        if tuple(self._suspects) == tuple(nodes):
            return False
        self._suspects = dict.fromkeys(nodes, 0.0)
        self._settle()
        return True

    def stream_reopened(self, stream: LogStream) -> None:
        """Record that the stream was opened in a new epoch: its replicas work again."""
        for node in stream.replicas:
            self._nodes.succeeded(node)
        self._settle()

    def _settle(self) -> None:
        self.has_suspects = bool(self._suspects or self._nodes or self._streams)

    def avoided(self) -> dict[NodeID, float]:
        """The nodes to ask last, each with the time until which that holds."""
        if not (self._nodes or self._suspects):
            return {}
        return self._nodes.denied(self._loop.time()) | self._suspects

    def is_suspect(self) -> Callable[[LogStream], bool]:
        """Returns a predicate: whether to prefer other streams for an append."""
        nodes = self.avoided()
        streams = self._streams.denied(self._loop.time())
        self._settle()
        return lambda stream: stream.primary in nodes or (stream.log_stream, stream.epoch) in streams


K = TypeVar("K", bound=Hashable)

THRESHOLD: Final = 2
WINDOW_S: Final = 10.0
DENIED_S_FIRST: Final = 1.0
DENIED_S_MAX: Final = 8.0


class _Record:
    __slots__ = ("denied_until", "failures", "last_failure", "next_denial_s")

    def __init__(self) -> None:
        self.failures = 0
        self.last_failure = 0.0
        self.denied_until = 0.0
        self.next_denial_s = DENIED_S_FIRST


class DenyList(Generic[K]):
    """PURE. Ranks keys (nodes or streams) that failed recently last, until they succeed or their denial expires (R-FAIL-2). The
    caller passes the time, which must not decrease. Falsy while the list is empty.

    Failures are counted within a window; at the threshold the key is denied. A key that fails again after its denial expired is
    denied for twice as long, up to a bound; its first success clears the record. A denied key is meant to be tried last, not never;
    the caller decides."""

    def __init__(self, threshold: int = THRESHOLD) -> None:
        self._threshold = threshold
        self._records: dict[K, _Record] = {}

    def __bool__(self) -> bool:
        return bool(self._records)

    def failed(self, key: K, now: float, *, surely: bool = False) -> None:
        """Count a failure; `surely`: one conclusive failure is enough to deny the key."""
        self._forget_old(now)
        record = self._records.setdefault(key, _Record())
        record.failures += self._threshold if surely else 1
        record.last_failure = now
        # Requests in flight during a denial fail as well: they are the same failure, seen again.
        if record.failures >= self._threshold and now >= record.denied_until:
            record.denied_until = now + record.next_denial_s
            record.next_denial_s = min(2 * record.next_denial_s, DENIED_S_MAX)

    def succeeded(self, key: K) -> None:
        self._records.pop(key, None)

    def denied(self, now: float) -> dict[K, float]:
        """The keys that are denied now, each with the end of its denial."""
        self._forget_old(now)
        return {
            key: record.denied_until for key, record in self._records.items() if now < record.denied_until
        }

    def _forget_old(self, now: float) -> None:
        old = [
            key
            for key, record in self._records.items()
            if now >= max(record.denied_until, record.last_failure) + WINDOW_S
        ]
        for key in old:
            del self._records[key]
