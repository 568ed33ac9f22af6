"""Named readers and writers in the metadata repository: durable before acknowledged, kept over restarts, and no new view."""

from __future__ import annotations

import asyncio

import pytest

from tests.metarepo.helpers import run, settle, until, world
from tests.metarepo.test_leader_terms import Group
from varlog.metarepo.membership import named_service
from varlog.model.cluster import NamedReader, NamedWriter
from varlog.model.errors import InvalidRequest, PreconditionFailed, ReaderBehind, TrimBeyondTail, UnknownTopic
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN
from varlog.rpc import messages as m
from varlog.testing.sim.core.loop import run_simulated as run_virtual

ORDERS = TopicID(1)
STREAM = (LogStreamID(1),)


def begin(batch: int, name: str = "job") -> m.BeginWrite:
    return m.BeginWrite(ORDERS, name, batch, STREAM, True, 7)


def at(position: int, name: str = "nightly") -> m.SetReader:
    return m.SetReader(ORDERS, name, GLSN(position), 7)


def test_readers_and_writers_survive_a_restart_and_make_no_new_view() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            w.nodes[1].report(1, 6)
            await until(lambda: w.nodes[1].replica(1).committed_end == 6)
            revision = (await w.view()).revision
            reader = NamedReader(ORDERS, "nightly", GLSN(4), 7)
            writer = NamedWriter(ORDERS, "job", 2, GLSN(5), STREAM, False, True, 7)
            assert (await w.ask(at(4), m.GetReadersReply)).readers == (reader,)
            assert (await w.ask(begin(2), m.WriterReply)).writer == writer
            await w.stop_repository()
            await w.start_repository()
            assert (await w.ask(m.GetReaders(), m.GetReadersReply)) == m.GetReadersReply((reader,))
            assert (await w.ask(begin(2), m.WriterReply)).writer == writer
            ended = (await w.ask(m.EndWrite(ORDERS, "job", 2, 9), m.WriterReply)).writer
            assert (ended.finished, ended.updated_us) == (True, 9)
            assert (await w.ask(m.GetWriters(ORDERS), m.GetWritersReply)).writers == (ended,)
            assert (await w.view()).revision == revision
            await w.ask(m.ForgetReader(ORDERS, "nightly"), m.Done)
            await w.ask(m.ForgetWriter(ORDERS, "job"), m.Done)
            await w.stop_repository()
            await w.start_repository()
            assert (await w.ask(m.GetReaders(ORDERS), m.GetReadersReply)).readers == ()
            assert (await w.ask(m.GetWriters(), m.GetWritersReply)).writers == ()
            assert not [key for key in w.metadata.items if key.startswith(("reader/", "writer/"))]

    run(body())


def test_a_batch_is_begun_durably_before_its_position_is_returned() -> None:
    """Two tasks ask at once. Neither has an answer while the store has not taken it, and then both have the same."""

    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            held = asyncio.Event()

            async def hold() -> None:
                await held.wait()

            w.hold = hold
            asked = [asyncio.ensure_future(w.ask(begin(0), m.WriterReply)) for _ in range(2)]
            await settle()
            assert not any(one.done() for one in asked)
            assert not [key for key in w.metadata.items if key.startswith("writer/")]
            held.set()
            one, two = await asyncio.gather(*asked)
            assert one == two
            assert [key for key in w.metadata.items if key.startswith("writer/")] == ["writer/0000000001/job"]

    run(body())


def test_beginning_a_batch_again_costs_no_commit() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await w.ask(begin(0), m.WriterReply)
            commits = w.commits
            for _ in range(20):
                await w.ask(begin(0), m.WriterReply)
            assert w.commits == commits

    run(body())


def test_a_trim_that_respects_readers_is_decided_with_them() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            w.nodes[1].report(1, 11)
            await until(lambda: w.nodes[1].replica(1).committed_end == 11)
            await w.ask(at(4), m.GetReadersReply)
            await w.ask(at(6, "slower"), m.GetReadersReply)
            with pytest.raises(ReaderBehind, match="reader 'nightly' has read up to 4"):
                await w.ask(m.TrimTopic(ORDERS, GLSN(5), True), m.Done)
            assert (await w.view()).topics[0].trimmed == 0
            # Asked in one breath: the trim sees the reader as it is then.
            moved = asyncio.ensure_future(w.ask(at(9), m.GetReadersReply))
            trimmed = asyncio.ensure_future(w.ask(m.TrimTopic(ORDERS, GLSN(6), True), m.Done))
            await asyncio.gather(moved, trimmed)
            assert (await w.view()).topics[0].trimmed == 6
            await w.ask(m.TrimTopic(ORDERS, GLSN(8)), m.Done)
            with pytest.raises(TrimBeyondTail):
                await w.ask(m.TrimTopic(ORDERS, GLSN(99)), m.Done)

    run(body())


def test_readers_of_many_topics_come_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_service, "PAGE_BYTES_MAX", 3 * 150)

    async def body() -> None:
        async with world() as w:
            wanted = []
            for topic in ("orders", "bills"):
                made = (await w.ask(m.RegisterTopic(topic), m.TopicReply)).topic
                for number in range(4):
                    wanted.append((made.topic, f"reader {number}"))
                    await w.ask(m.SetReader(*wanted[-1], GLSN(0)), m.GetReadersReply)
            found: list[tuple[TopicID, str]] = []
            pages = 0
            more = True
            while more:
                answer = await w.ask(
                    m.GetReaders(after=found[-1] if found else (TopicID(0), "")), m.GetReadersReply
                )
                found += [(reader.topic, reader.name) for reader in answer.readers]
                pages, more = pages + 1, answer.more
            assert found == wanted and pages > 2

    run(body())


def test_an_unknown_topic_has_no_readers_and_writers() -> None:
    async def body() -> None:
        async with world() as w:
            for request in (
                m.GetReaders(TopicID(9)),
                m.GetWriters(TopicID(9)),
                m.SetReader(TopicID(9), "nightly", GLSN(0)),
                m.BeginWrite(TopicID(9), "job", 0, STREAM),
                m.EndWrite(TopicID(9), "job", 0),
            ):
                with pytest.raises(UnknownTopic):
                    await w.ask(request, m.Message)

    run(body())


def test_a_topic_that_is_deleted_forgets_them_and_one_of_its_name_has_none() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.add_stream(1)
            await w.ask(at(0), m.GetReadersReply)
            await w.ask(begin(0), m.WriterReply)
            await w.ask(m.UnregisterTopic(ORDERS), m.Done)
            await w.add_stream(1)
            assert (await w.ask(m.GetReaders(), m.GetReadersReply)).readers == ()
            assert (await w.ask(m.GetWriters(), m.GetWritersReply)).writers == ()
            await w.stop_repository()
            await w.start_repository()
            assert (await w.ask(m.GetWriters(), m.GetWritersReply)).writers == ()

    run(body())


def test_the_next_leader_knows_what_was_begun_and_read() -> None:
    async def body() -> None:
        group = Group()
        await group.start_all()
        await group.ask("mr1", m.RegisterTopic("orders", first=GLSN(50)))
        await group.ask("mr1", at(49))
        await group.repositories["mr1"].stop()
        leader = await group.leader()
        assert leader != "mr1"
        assert await group.ask(leader, m.GetReaders()) == m.GetReadersReply(
            (NamedReader(ORDERS, "nightly", GLSN(49), 7),)
        )
        assert await group.ask(leader, m.GetTail(ORDERS)) == m.GetTailReply(GLSN(49), GLSN(49))
        del group.repositories["mr1"]
        await group.stop_all()

    run_virtual(body())


# --- The first position of a topic -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", ["never", "before the first cut", "after it", "both"])
def test_a_topic_begins_at_its_first_position_over_restarts(restart: str) -> None:
    async def body() -> None:
        async with world(1) as w:
            made = (await w.ask(m.RegisterTopic("orders", first=GLSN(1000)), m.TopicReply)).topic
            assert (made.first, made.trimmed) == (1000, 999)
            with pytest.raises(PreconditionFailed, match="its first position is 1000, not 1"):
                await w.ask(m.RegisterTopic("orders"), m.TopicReply)
            log_stream = (await w.ask(m.NewLogStreamID(), m.NewLogStreamIDReply)).log_stream
            node = w.nodes[1]
            node.replica(log_stream)
            await w.ask(m.RegisterLogStream(made.topic, log_stream, (node.node,)), m.StreamReply)
            stream = (
                await w.ask(m.UnsealStream(log_stream, node.replica(log_stream).epoch), m.StreamReply)
            ).stream
            if restart in ("before the first cut", "both"):
                await w.stop_repository()
                await w.start_repository()
                await until(lambda: node.in_session and bool(node.commits))
            assert await w.tail() == 999
            assert (
                await w.ask(m.BeginWrite(made.topic, "job", 0, (log_stream,)), m.WriterReply)
            ).writer.begin == 999
            node.report(log_stream, 4)
            await until(lambda: node.replica(log_stream).committed_end == 4)
            if restart in ("after it", "both"):
                await w.stop_repository()
                await w.start_repository()
                await until(lambda: node.in_session and bool(node.commits))
            node.report(log_stream, 6)
            await until(lambda: node.replica(log_stream).committed_end == 6)
            rows = [(row.llsn_begin, row.glsn_begin, row.count) for row in node.replica(log_stream).rows]
            assert (rows, stream.topic) == ([(1, 1000, 3), (4, 1003, 2)], made.topic)
            assert await w.tail() == 1004
            await w.ask(m.TrimTopic(made.topic, GLSN(1001)), m.Done)
            assert (await w.view()).topics[0].first == 1000

    run(body())


def test_a_repository_starts_on_cuts_of_a_topic_that_came_and_left_since_the_base() -> None:
    """Where the topic began is said nowhere any more but in its rows."""

    async def body() -> None:
        async with world(1) as w:
            await w.ask(m.RegisterTopic("orders", first=GLSN(1000)), m.TopicReply)
            log_stream = (await w.ask(m.NewLogStreamID(), m.NewLogStreamIDReply)).log_stream
            node = w.nodes[1]
            await w.ask(m.RegisterLogStream(ORDERS, log_stream, (node.node,)), m.StreamReply)
            await w.ask(m.UnsealStream(log_stream, node.replica(log_stream).epoch), m.StreamReply)
            node.report(log_stream, 3)
            await until(lambda: node.replica(log_stream).committed_end == 3)
            node.report(log_stream, 5)
            await until(lambda: node.replica(log_stream).committed_end == 5)
            await w.ask(m.UnregisterTopic(ORDERS), m.Done)
            await w.stop_repository()
            await w.start_repository()
            assert (await w.view()).topics == ()
            made = (await w.ask(m.RegisterTopic("orders"), m.TopicReply)).topic
            assert await w.tail(made.topic) == 0

    run(body())


@pytest.mark.parametrize("first", [0, -5, 2**62])
def test_a_first_position_that_no_log_could_have_is_refused(first: int) -> None:
    async def body() -> None:
        async with world() as w:
            with pytest.raises(InvalidRequest, match="the first position of a topic is between 1 and"):
                await w.ask(m.RegisterTopic("orders", first=GLSN(first)), m.TopicReply)

    run(body())
