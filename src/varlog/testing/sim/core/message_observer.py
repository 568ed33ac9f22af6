"""MessageObserver: records what servers answered, in either ordering."""

from __future__ import annotations

from collections.abc import Callable

from varlog.model.cluster import LogStream
from varlog.model.projection import Projection
from varlog.rpc import messages as m
from varlog.rpc.messages import Commits, GetViewReply, Message, StreamReply
from varlog.testing.sim.core.loop import Process
from varlog.testing.sim.core.network import SimConnection
from varlog.verify.history import History, ObservedGrant


class MessageObserver:
    """What a message has published must stay true, whichever repository leads later (law 3, 6)."""

    def __init__(
        self,
        history: History,
        is_sequenced: Callable[[int], bool] = lambda topic: False,
        *,
        rewound: bool = False,
    ) -> None:
        self._history = history
        # The store may go back in time: what reached no node did not happen.
        self._rewound = rewound
        self._is_sequenced = is_sequenced
        self._revisions: dict[Process, int] = {}

    def observe(self, sender: Process, message: Message) -> None:
        kind = type(message)
        if kind is Commits:
            if not self._rewound:
                self._check_order(sender, message)  # type: ignore[arg-type]
        elif kind is StreamReply:
            self._check_stream(message.stream)  # type: ignore[attr-defined]
        elif kind is GetViewReply:
            view = message.view  # type: ignore[attr-defined]
            if self._revisions.get(sender) != view.revision:
                self._revisions[sender] = view.revision
                for stream in view.streams:
                    self._check_stream(stream)

    def applied(self, sender: Process, message: Commits, committed_end: Callable[[int], int]) -> None:
        """A storage node has acted on it; `committed_end`: of its replica of a log stream, as it is now."""
        self._check_order(sender, message, committed_end)

    def _check_order(
        self,
        sender: Process,
        message: Commits,
        committed_end: Callable[[int], int] | None = None,
    ) -> None:
        for log_stream, rows in message.rows:
            for row in rows:
                if committed_end is not None and row.llsn_begin + row.count > committed_end(log_stream):
                    continue
                self._history.record_order(
                    log_stream, row.llsn_begin, row.glsn_begin, row.count, row.epoch, sender.name
                )

    def _check_stream(self, stream: LogStream) -> None:
        if not self._rewound and not self._is_sequenced(stream.topic):  # its epochs are a projection's
            self._history.record_seal(stream.log_stream, stream.epoch, stream.sealed_end)


# SequencedObserver: observes messages about sequenced topics: projections, positions given, seals, answers that came late.

# Writes. What was read is true whenever the answer comes; what was written must be counted in the answer to a seal.
_FENCED = (m.WriteUnit, m.FillUnit)
_ANSWERS = (m.Done,)


class SequencedObserver:
    """What a message has published must stay true, whichever process is asked later."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._facts = history.sequenced_facts
        self._revisions: dict[object, int] = {}
        self._asked: dict[tuple[SimConnection, int], Message] = {}
        self._sealed: dict[tuple[str, int], int] = {}  # by host and log stream: the newest epoch it sent

    def is_sequenced(self, topic: int) -> bool:
        return topic in self._facts.names

    def observe(self, connection: SimConnection, message: Message) -> None:
        """Before it is on its way."""
        if isinstance(message, m.GetViewReply):
            self._check_view(connection, message)
        elif isinstance(message, m.TopicReply):
            if message.topic.sequenced:
                self._facts.names[message.topic.topic] = message.topic.name
        elif isinstance(message, m.ProposeProjectionReply):
            self._check_projection(message.projection)
        elif isinstance(message, m.SealUnitReply):
            key = connection.process.host, message.log_stream
            self._sealed[key] = max(self._sealed.get(key, 0), message.epoch)
        elif isinstance(message, (*_FENCED, m.NextTokens)):
            if not connection.accepting:
                self._asked[connection, connection.posted] = message
        elif isinstance(message, (*_ANSWERS, m.NextTokensReply)) and connection.accepting:
            request = self._asked.pop((connection.other, connection.posted), None)
            if isinstance(request, _FENCED):
                self._check_answer(connection, request, message)
            elif (
                isinstance(request, m.NextTokens) and isinstance(message, m.NextTokensReply) and request.count
            ):
                begin, end = message.first - message.skipped, message.first + request.count
                who = connection.process.name
                self._facts.tokens.append(ObservedGrant(request.topic, request.epoch, begin, end, who))

    def _check_view(self, connection: SimConnection, message: m.GetViewReply) -> None:
        view = message.view
        if self._revisions.get(connection.process) == view.revision:
            return
        self._revisions[connection.process] = view.revision
        for topic in view.topics:
            if topic.sequenced:
                self._facts.names[topic.topic] = topic.name
        for projection in view.projections:
            self._check_projection(projection)

    def _check_projection(self, projection: Projection) -> None:
        known = self._facts.projections.setdefault(projection.topic, {})
        first = known.setdefault(projection.epoch, projection)
        if first != projection:
            self._facts.contradictions.append(
                f"topic {projection.topic} has two projections of epoch {projection.epoch}: {first} and {projection}"
            )

    def _check_answer(self, connection: SimConnection, request: Message, answer: Message) -> None:
        log_stream, epoch = request.log_stream, request.epoch  # type: ignore[attr-defined]
        sealed = self._sealed.get((connection.process.host, log_stream), 0)
        if epoch < sealed:
            self._facts.stale_answers.append(
                f"{connection.process.name} sent epoch {sealed} of its log stream {log_stream}, and then answered "
                f"{request} by {type(answer).__name__}"
            )
