"""Named readers and writers, and a topic's first position, through the client.

Over restarts and a kill -9 of the repository.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import varlog
from varlog import aio
from varlog.localcluster.supervisor import Supervisor
from varlog.localcluster.wait import ensure_topic
from varlog.model.errors import ReaderBehind
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.tcp_cluster import WAIT_S, running

FIRST = 1_000


def test_a_topic_that_begins_later_is_used_like_any_other(tmp_path: Path) -> None:
    """Over a restart of every node, and with a stream that is added in between."""
    with (
        running(tmp_path) as (cluster, thread),
        varlog.admin(cluster.repository.address, timeout_s=WAIT_S) as admin,
    ):
        assert admin.create_topic("copy", streams=2, first=FIRST).trimmed == FIRST - 1
        with varlog.connect(cluster.repository.address, "copy", timeout_s=WAIT_S) as log:
            assert (log.tail(), log.trimmed()) == (FIRST - 1, FIRST - 1)
            appended = [log.append(b"%d" % number).glsn for number in range(5)]
            for index in range(3):
                thread.run(cluster.restart_node(index))
            thread.run(cluster.wait_nodes())
            admin.add_stream("copy")
            for stream in admin.streams("copy"):
                run = log.append_batch([b"a", b"b"], log_stream=stream.log_stream)
                appended += [run.first.glsn, run.last.glsn]
            assert appended == list(range(FIRST, FIRST + 11))
            assert [entry.glsn for entry in log.subscribe(None, FIRST + 11)] == appended
            assert [log.read(glsn).glsn for glsn in appended] == appended
            for begin in (1, FIRST - 1):
                with pytest.raises(varlog.Trimmed) as trimmed:
                    next(log.subscribe(begin))
                assert trimmed.value.oldest == FIRST
        with pytest.raises(varlog.PreconditionFailed, match="its first position is 1000, not 1"):
            admin.create_topic("copy", streams=3)


def test_tasks_of_a_writer_agree_and_readers_hold_a_trim_back(tmp_path: Path) -> None:
    with (
        running(tmp_path) as (cluster, _),
        varlog.admin(cluster.repository.address, timeout_s=WAIT_S) as admin,
    ):
        address = cluster.repository.address
        admin.create_topic("orders", streams=2)
        with (
            varlog.connect(address, "orders", timeout_s=WAIT_S) as one,
            varlog.connect(address, "orders", timeout_s=WAIT_S) as two,
        ):
            sealed, running_stream = (stream.log_stream for stream in admin.streams("orders"))
            tail = one.append_batch([b"a", b"b", b"c"]).last.glsn
            admin.seal_stream(sealed)
            begun = one.connector.begin_write("job", 0)
            assert (begun.begin, begun.streams) == (tail, (running_stream,))
            admin.unseal_stream(sealed)
            two.append(b"d")
            assert two.connector.begin_write("job", 0, [sealed]) == begun
            assert one.connector.end_write("job", 0).finished
            assert two.connector.begin_write("job", 0).finished
            one.connector.begin_write("job", 2)
            with pytest.raises(varlog.PreconditionFailed, match="is at batch 2: batch 1 is over"):
                two.connector.begin_write("job", 1)
            one.set_reader("slow", 1)
            assert one.set_reader("quick", 4).position == 4
            with pytest.raises(varlog.ReaderBehind) as behind:
                two.trim(3, respect_readers=True)
            assert (behind.value.reader, behind.value.position, behind.value.asked) == ("slow", 1, 3)
            assert one.set_reader("quick", 2, back=True).position == 2
            one.forget_reader("slow")
            two.trim(2, respect_readers=True)
            assert [reader.name for reader in admin.readers()] == ["quick"] and two.trimmed() == 2
            one.connector.forget_writer("job")
            assert admin.writers("orders") == ()


@pytest.mark.process
def test_readers_writers_and_beginnings_survive_a_kill_of_the_repository(tmp_path: Path) -> None:
    """`copy` has its first entry before the kill, `late` after it: both begin at their first position."""

    async def body() -> None:
        supervisor = Supervisor(plan_for(tmp_path))
        await supervisor.start()
        try:
            await story(supervisor)
        finally:
            await supervisor.stop()

    async def story(supervisor: Supervisor) -> None:
        await ensure_topic(supervisor.plan, "any", say=lambda _: None)  # which waits until every node is up
        async with aio.admin(supervisor.address, timeout_s=WAIT_S) as admin:
            for topic in ("copy", "late"):
                await admin.create_topic(topic, streams=1, first=FIRST)
        async with (
            aio.connect(supervisor.address, "copy", timeout_s=60.0) as log,
            aio.connect(supervisor.address, "late", timeout_s=60.0) as late,
        ):
            assert (await log.append(b"one")).glsn == FIRST
            reader = await log.set_reader("nightly", FIRST)
            writer = await log.connector.begin_write("job", 3, kept=True)
            await log.connector.begin_write("done", 0)
            done = await log.connector.end_write("done", 0)
            assert (reader.position, writer.begin, done.finished) == (FIRST, FIRST, True)
            supervisor.kill("vmr")
            await supervisor.wait_restarted("vmr")
            assert await log.readers() == (reader,)
            assert await log.connector.writers() == (done, writer)
            assert await log.connector.begin_write("job", 3) == writer
            assert (await log.append(b"two")).glsn == FIRST + 1
            with pytest.raises(ReaderBehind):
                await log.trim(FIRST + 1, respect_readers=True)
            assert (await late.append(b"one")).glsn == FIRST

    asyncio.run(body())
