"""NamedService: the RPC of the repository for named readers and writers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from varlog.metarepo.membership import named_rules
from varlog.metarepo.membership.named import Named
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_loop import Decide, Facts, newest_position
from varlog.metarepo.state import RepositoryState
from varlog.model.cluster import NamedReader, NamedWriter
from varlog.model.errors import UnknownTopic
from varlog.model.ids import TopicID
from varlog.rpc import messages as m
from varlog.rpc.dispatch import Dispatcher
from varlog.rpc.messages import Message
from varlog.rpc.transport import Call

# The approximate size of one page: a message is bounded, and the next page is one request away.
PAGE_BYTES_MAX: Final = 256 * 1024
# Upper bounds of the size of one record without its name and streams, and per stream.
RECORD_BYTES, STREAM_BYTES = 128, 5

T = TypeVar("T", bound=NamedReader | NamedWriter)


class NamedService:
    """A part of RepositoryService: `submit` has a change decided and made durable, `expected` raises if the term answers no
    more."""

    def __init__(
        self,
        state: RepositoryState,
        submit: Callable[[Call | None, Decide], None],
        expected: Callable[[Call | None], Call],
    ) -> None:
        self._state = state
        self._submit = submit
        self._expected = expected

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.on(m.SetReader, self._set_reader)
        dispatcher.on(m.ForgetReader, self._forget_reader)
        dispatcher.on(m.GetReaders, self._get_readers)
        dispatcher.on(m.BeginWrite, self._begin_write)
        dispatcher.on(m.EndWrite, self._end_write)
        dispatcher.on(m.ForgetWriter, self._forget_writer)
        dispatcher.on(m.GetWriters, self._get_writers)

    # --- readers -------------------------------------------------------------------------------------------------------

    def _set_reader(self, call: Call | None, request: m.SetReader, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            members, reader = named_rules.set_reader(
                members,
                request.topic,
                request.name,
                request.position,
                newest_position(members, facts, request.topic),
                time_us=request.time_us,
                back=request.back,
            )
            return members, m.GetReadersReply((reader,))

        self._submit(call, decide)

    def _forget_reader(self, call: Call | None, request: m.ForgetReader, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return named_rules.forget_reader(members, request.topic, request.name), m.Done()

        self._submit(call, decide)

    def _get_readers(self, call: Call | None, request: m.GetReaders, payload: bytearray) -> None:
        call = self._expected(call)
        self._check_topic(request.topic)
        page, more = _page(self._state.members.readers, request.topic, request.after)
        call.reply(m.GetReadersReply(page, more))

    # --- writers -------------------------------------------------------------------------------------------------------

    def _begin_write(self, call: Call | None, request: m.BeginWrite, payload: bytearray) -> None:
        """Durable before it is answered: tasks that ask later must get the same answer, no matter which repository leads then."""

        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            members, writer = named_rules.begin_write(
                members,
                request.topic,
                request.name,
                request.batch,
                request.streams,
                newest_position(members, facts, request.topic),
                kept=request.kept,
                time_us=request.time_us,
            )
            return members, m.WriterReply(writer)

        self._submit(call, decide)

    def _end_write(self, call: Call | None, request: m.EndWrite, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            topic, name, batch = request.topic, request.name, request.batch
            members, writer = named_rules.end_write(members, topic, name, batch, time_us=request.time_us)
            return members, m.WriterReply(writer)

        self._submit(call, decide)

    def _forget_writer(self, call: Call | None, request: m.ForgetWriter, payload: bytearray) -> None:
        def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
            return named_rules.forget_writer(members, request.topic, request.name), m.Done()

        self._submit(call, decide)

    def _get_writers(self, call: Call | None, request: m.GetWriters, payload: bytearray) -> None:
        call = self._expected(call)
        self._check_topic(request.topic)
        page, more = _page(self._state.members.writers, request.topic, request.after)
        call.reply(m.GetWritersReply(page, more))

    def _check_topic(self, topic: TopicID) -> None:
        if topic and topic not in self._state.topics:
            raise UnknownTopic(str(topic))


def _page(named: Named[T], topic: TopicID, after: tuple[TopicID, str]) -> tuple[tuple[T, ...], bool]:
    """The entries after `after` that fit into one answer, and whether there are more."""
    page: list[T] = []
    size = 0
    for value in named.of(topic):
        if (value.topic, value.name) <= after:
            continue
        size += _size(value)
        if page and size > PAGE_BYTES_MAX:
            return tuple(page), True
        page.append(value)
    return tuple(page), False


def _size(value: NamedReader | NamedWriter) -> int:
    streams = len(value.streams) if isinstance(value, NamedWriter) else 0
    return RECORD_BYTES + len(value.name.encode()) + STREAM_BYTES * streams
