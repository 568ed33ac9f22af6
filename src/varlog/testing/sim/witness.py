"""Witness: hears every message of the repositories and writes down what they told: where epochs end, and which order was given."""

from __future__ import annotations

from collections.abc import Callable

from varlog.model.cluster import LogStream
from varlog.rpc.messages import Commits, GetViewReply, Message, StreamReply
from varlog.testing.history import History
from varlog.testing.sim.process import Process


class Witness:
    """Told is told: what anybody can have heard must stay true, whoever leads later (law 3, 6)."""

    def __init__(
        self,
        history: History,
        is_sequenced: Callable[[int], bool] = lambda topic: False,
        *,
        rewound: bool = False,
    ) -> None:
        self._history = history
        # The store may go back in time: what no node has heard of did not happen.
        self._rewound = rewound
        self._is_sequenced = is_sequenced
        self._revisions: dict[Process, int] = {}

    def hear(self, sender: Process, message: Message) -> None:
        kind = type(message)
        if kind is Commits:
            if not self._rewound:
                self._hear_order(sender, message)  # type: ignore[arg-type]
        elif kind is StreamReply:
            self._hear_stream(message.stream)  # type: ignore[attr-defined]
        elif kind is GetViewReply:
            view = message.view  # type: ignore[attr-defined]
            if self._revisions.get(sender) != view.revision:
                self._revisions[sender] = view.revision
                for stream in view.streams:
                    self._hear_stream(stream)

    def applied(self, sender: Process, message: Commits, committed_end: Callable[[int], int]) -> None:
        """A storage node has acted on it; `committed_end`: of its replica of a log stream, as it is now."""
        self._hear_order(sender, message, committed_end)

    def _hear_order(
        self,
        sender: Process,
        message: Commits,
        committed_end: Callable[[int], int] | None = None,
    ) -> None:
        for log_stream, rows in message.rows:
            for row in rows:
                if committed_end is not None and row.llsn_begin + row.count > committed_end(log_stream):
                    continue
                self._history.tell_order(
                    log_stream, row.llsn_begin, row.glsn_begin, row.count, row.epoch, sender.name
                )

    def _hear_stream(self, stream: LogStream) -> None:
        if not self._rewound and not self._is_sequenced(stream.topic):  # its epochs are a projection's
            self._history.tell_seal(stream.log_stream, stream.epoch, stream.sealed_end)
