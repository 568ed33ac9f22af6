"""Source 004, "Storage Node": every diagram is a test that follows the messages drawn.

Three replicas, a chain SN1->SN2->SN3 that the client writes itself. In the transcripts below a reconfiguration asks the sequencer
who it is (`who`), at the same time as it seals: the diagrams take it for granted, and one that is gone has to be noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tests.paper.wokl import Wokl, run_story
from varlog.client.log import Log

APPEND = ["CL -> SQ next e1 ok", "CL -> SN1 write e1 ok", "CL -> SN2 write e1 ok", "CL -> SN3 write e1 ok"]


async def contents(log: Log) -> list[tuple[int, bytes]]:
    return [(entry.glsn, entry.data) async for entry in log.subscribe(1, await log.tail() + 1)]


def test_append_takes_four_round_trips() -> None:
    """004, "Append", R-SEQ-4: next, then write:ok from the head to the tail. Each is answered before the next one is sent."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl = await wokl.client("CL")
        for glsn in (1, 2):
            assert (await cl.do(cl.log.append(b"entry"))).glsn == glsn
            assert all(line.alone for line in wokl.transcript.lines)
            assert wokl.transcript.take() == APPEND
        assert [wokl.units(f"SN{n}")[0].newest for n in (1, 2, 3)] == [2, 2, 2]

    run_story(story)


def test_a_batch_of_many_entries_takes_the_same_four_round_trips() -> None:
    """003, "Sequencer": one or more positions are asked for at once (R-SEQ-1)."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl = await wokl.client("CL")
        run = await cl.do(cl.log.append_batch([b"%d" % number for number in range(100)]))
        assert (run.first.glsn, run.last.glsn) == (1, 100)
        assert wokl.transcript.take() == APPEND

    run_story(story)


def test_read_takes_one_round_trip_to_the_tail() -> None:
    """004, "Read", R-SEQ-6."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl, other = await wokl.client("CL"), await wokl.client("CL2")
        at = await cl.do(cl.log.append(b"entry"))
        wokl.transcript.take()
        for client in (cl, other):
            assert (await client.do(client.log.read(at.glsn))).data == b"entry"
            assert wokl.transcript.take() == [f"{client.name} -> SN3 read e1 ok"]

    run_story(story)


@pytest.fixture(params=["killed", "silent"])
def fail(request: pytest.FixtureRequest) -> Callable[[Wokl, str], None]:
    """A storage node that refuses connections, and one that does not reply: then the client decides after a while
    ("duration to decide if SN1 fails")."""
    return Wokl.fail if request.param == "killed" else Wokl.cut


def test_the_head_of_the_chain_fails_twice_down_to_one_node(
    fail: Callable[[Wokl, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """004, "Chain의 Head가 Fail한 경우", R-SEQ-10. (a): SN1 fails, and the same append continues with SN2->SN3. (b): SN2
    fails. (c): one replica is left, and that is logged as a warning. SN1, which is not in the chain any more in (b), is
    not asked again."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl = await wokl.client("CL")
        assert (wokl.chain(), wokl.epochs("SN1", "SN2", "SN3")) == ("SN1->SN2->SN3", [1, 1, 1])

        fail(wokl, "SN1")
        assert (await cl.do(cl.log.append(b"a"))).glsn == 1
        assert wokl.transcript.take() == [
            "CL -> SQ next e1 ok",
            "CL -> SN1 write e1 ×",
            "CL -> SQ who ok",
            "CL -> SN1 seal e2 ×",
            "CL -> SN2 seal e2 ok",
            "CL -> SN3 seal e2 ok",
            "CL -> MR propose e2 ok",
            "CL -> SN2 write e2 ok",
            "CL -> SN3 write e2 ok",
        ]
        assert (wokl.chain(), wokl.epoch, wokl.epochs("SN2", "SN3")) == ("SN2->SN3", 2, [2, 2])
        assert "NO REDUNDANCY" not in caplog.text

        fail(wokl, "SN2")
        assert (await cl.do(cl.log.append(b"b"))).glsn == 2
        assert wokl.transcript.take() == [
            "CL -> SQ next e2 ok",
            "CL -> SN2 write e2 ×",
            "CL -> SQ who ok",
            "CL -> SN2 seal e3 ×",
            "CL -> SN3 seal e3 ok",
            "CL -> MR propose e3 ok",
            "CL -> SN3 write e3 ok",
        ]
        assert (wokl.chain(), wokl.epoch, wokl.epochs("SN3")) == ("SN3", 3, [3])
        assert "NO REDUNDANCY" in caplog.text

        assert (await cl.do(cl.log.append(b"c"))).glsn == 3
        assert (await cl.do(cl.log.read(1))).data == b"a"
        assert wokl.transcript.take() == [
            "CL -> SQ next e3 ok",
            "CL -> SN3 write e3 ok",
            "CL -> SN3 read e3 ok",
        ]
        assert await cl.do(contents(cl.log)) == [(1, b"a"), (2, b"b"), (3, b"c")]

    with caplog.at_level(logging.WARNING, "varlog"):
        run_story(story)


def test_the_tail_of_the_chain_fails_and_the_append_is_resumed(fail: Callable[[Wokl, str], None]) -> None:
    """004, "Chain Tail이 Fail한 경우": SN1 and SN2 have the entry. After the reconfiguration the same bytes are written
    along the new chain again, at the same position: a node that has them replies so immediately (R-SEQ-10)."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl = await wokl.client("CL")
        fail(wokl, "SN3")
        assert (await cl.do(cl.log.append(b"a"))).glsn == 1
        assert wokl.transcript.take() == [
            "CL -> SQ next e1 ok",
            "CL -> SN1 write e1 ok",
            "CL -> SN2 write e1 ok",
            "CL -> SN3 write e1 ×",
            "CL -> SQ who ok",
            "CL -> SN1 seal e2 ok",
            "CL -> SN2 seal e2 ok",
            "CL -> SN3 seal e2 ×",
            "CL -> MR propose e2 ok",
            "CL -> SN1 write e2 ok",
            "CL -> SN2 write e2 ok",
        ]
        assert (wokl.chain(), wokl.epoch, wokl.epochs("SN1", "SN2")) == ("SN1->SN2", 2, [2, 2])
        assert [wokl.units(name)[0].newest for name in ("SN1", "SN2")] == [1, 1]
        assert (await cl.do(cl.log.read(1))).data == b"a"
        assert wokl.transcript.take() == ["CL -> SN2 read e2 ok"]
        assert await cl.do(contents(cl.log)) == [(1, b"a")]

    run_story(story)


def test_the_middle_of_the_chain_fails_and_the_append_is_resumed(fail: Callable[[Wokl, str], None]) -> None:
    """Not drawn, and no different."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl = await wokl.client("CL")
        fail(wokl, "SN2")
        assert (await cl.do(cl.log.append(b"a"))).glsn == 1
        assert wokl.transcript.take() == [
            "CL -> SQ next e1 ok",
            "CL -> SN1 write e1 ok",
            "CL -> SN2 write e1 ×",
            "CL -> SQ who ok",
            "CL -> SN1 seal e2 ok",
            "CL -> SN2 seal e2 ×",
            "CL -> SN3 seal e2 ok",
            "CL -> MR propose e2 ok",
            "CL -> SN1 write e2 ok",
            "CL -> SN3 write e2 ok",
        ]
        assert (wokl.chain(), wokl.epoch) == ("SN1->SN3", 2)

    run_story(story)


def test_a_read_reconfigures_a_complete_chain_whose_tail_is_down(
    fail: Callable[[Wokl, str], None],
) -> None:
    """Two storage nodes may fail; reads continue with the present tail."""

    async def story() -> None:
        wokl = await Wokl(3).drawn()
        cl = await wokl.client("CL")
        await cl.do(cl.log.append(b"a"))
        wokl.transcript.take()
        fail(wokl, "SN3")
        assert (await cl.do(cl.log.read(1))).data == b"a"
        assert wokl.transcript.take() == [
            "CL -> SN3 read e1 ×",
            "CL -> SQ who ok",
            "CL -> SN1 seal e2 ok",
            "CL -> SN2 seal e2 ok",
            "CL -> SN3 seal e2 ×",
            "CL -> MR propose e2 ok",
            "CL -> SN2 read e2 ok",
        ]
        fail(wokl, "SN2")
        assert (await cl.do(cl.log.read(1))).data == b"a"
        assert wokl.transcript.take()[-1] == "CL -> SN1 read e3 ok"

    run_story(story)
