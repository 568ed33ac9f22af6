"""O2: one slow disk does not slow down the other streams of a topic.

A disk that was 20 to 100 ms slower reduced a topic of four streams to a quarter or a fifteenth: batches went to the
streams in turn, and the slow one occupied both in-flight places of the client.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from tests.client.fakes import FakeCluster, run
from tests.manager.sim_cluster import SimCluster
from varlog.model.batch import parse_header
from varlog.model.cluster import LogStream, StreamState
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.rpc.messages import Append
from varlog.rpc.transport import Call
from varlog.runtime.metrics import TrafficMeter
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time

if TYPE_CHECKING:
    from varlog.manager.committed.rules import SlowPrimaries

QUICK_S = 0.002
SLOW = LogStreamID(2)


class SlowCluster(FakeCluster):
    """Each stream replies after a time of its own, one batch after the other, as a disk does."""

    def __init__(self, slow_s: float) -> None:
        super().__init__(nodes=4, streams=4)
        self.seconds = {log_stream: slow_s if log_stream == SLOW else QUICK_S for log_stream in self.streams}
        self.free_at = dict.fromkeys(self.streams, 0.0)
        self.appended: Counter[LogStreamID] = Counter()

    def _append(self, call: Call, message: Append, payload: bytearray) -> None:
        loop, log_stream = asyncio.get_running_loop(), message.log_stream
        at = max(loop.time(), self.free_at[log_stream]) + self.seconds[log_stream]
        self.free_at[log_stream] = at
        loop.call_at(at, self._ordered, call, log_stream, payload)

    def _ordered(self, call: Call, log_stream: LogStreamID, payload: bytearray) -> None:
        before = self.tail
        call.reply(self.order(log_stream, payload))
        self.appended[log_stream] += self.tail - before


def appended(slow_s: float, *, batched: bool, appenders: int, seconds: float = 20.0) -> Counter[LogStreamID]:
    """By stream, what closed-loop appenders got into the log in this many virtual seconds."""

    async def body() -> Counter[LogStreamID]:
        cluster = SlowCluster(slow_s)
        await cluster.start()
        async with await cluster.connect() as log:
            loop: Any = asyncio.get_running_loop()
            end = loop.time() + seconds

            async def again() -> None:
                while loop.time() < end:
                    await (log.append_batch([b"x"]) if batched else log.append(b"x"))

            await asyncio.gather(*(again() for _ in range(appenders)))
        return cluster.appended

    return run(body())


@pytest.mark.parametrize("batched", [False, True], ids=["gathered", "batches"])
@pytest.mark.parametrize("slow_s", [0.02, 0.1])
def test_the_other_streams_lose_less_than_a_tenth_by_one_slow_disk(slow_s: float, batched: bool) -> None:
    appenders = 8 if batched else 32
    before = appended(QUICK_S, batched=batched, appenders=appenders)
    after = appended(slow_s, batched=batched, appenders=appenders)
    others = sum(count for log_stream, count in after.items() if log_stream != SLOW)
    fair = 0.75 * before.total()
    assert others >= 0.9 * fair
    # It is not forgotten: it is probed now and then.
    assert after[SLOW] > 0


class HangingCluster(SlowCluster):
    """Four times of five the slow stream replies quickly; then it takes three seconds."""

    def __init__(self) -> None:
        super().__init__(QUICK_S)
        self.sizes: list[int] = []  # of the batches that took long
        self._batches = 0

    def _append(self, call: Call, message: Append, payload: bytearray) -> None:
        if message.log_stream == SLOW:
            self._batches += 1
            hangs = self._batches % 5 == 0
            self.seconds[SLOW] = 3.0 if hangs else QUICK_S
            if hangs:
                self.sizes.append(parse_header(payload, signed=False).count)
        super()._append(call, message, payload)


def test_a_stream_that_was_slow_is_probed_with_one_append_at_a_time_and_nothing_waits_for_it() -> None:
    """Whole batches went there as soon as its slow replies were forgotten, and each caller in them waited for three
    seconds."""

    async def body() -> tuple[list[int], list[float]]:
        cluster, waits = HangingCluster(), []
        await cluster.start()
        async with await cluster.connect() as log:
            loop: Any = asyncio.get_running_loop()
            end = loop.time() + 60.0

            async def again() -> None:
                while (began := loop.time()) < end:
                    at = await log.append(b"x")
                    if at.log_stream != SLOW:
                        waits.append(loop.time() - began)
                    await asyncio.sleep(0.25)

            await asyncio.gather(*(again() for _ in range(6)))
        return cluster.sizes, waits

    sizes, waits = run(body())
    # The first one is unavoidable.
    assert len(sizes) > 3
    assert set(sizes[1:]) == {1}
    # Appends to the others wait for at most one batch ahead of them.
    assert max(waits) < 0.1


def streams(count: int) -> list[LogStream]:
    return [LogStream(LogStreamID(n), TopicID(1), (NodeID(n),)) for n in range(1, count + 1)]


def test_a_stream_that_became_quick_again_gets_its_share() -> None:
    from varlog.client.committed.stream_costs import StreamCosts

    costs, now, known = StreamCosts(), 0.0, streams(2)
    for _ in range(10):
        for stream, seconds in zip(known, (0.1, 0.002), strict=True):
            costs.sent(stream.log_stream, now)
            costs.ended(stream.log_stream, now, now + seconds, answered=True)
        now += 0.1
    assert costs.slow(known, now) == [1]
    assert {costs.cheapest(known, turn, now).log_stream for turn in range(4)} == {2}
    chosen: Counter[LogStreamID] = Counter()
    for turn in range(20_000):
        picked = costs.cheapest(known, turn, now).log_stream
        chosen[picked] += 1
        costs.sent(picked, now)
        costs.ended(picked, now, now + 0.002, answered=True)
        now += 0.002
    assert costs.slow(known, now) == []
    assert min(chosen.values()) > 5_000


def test_what_is_in_flight_for_long_makes_its_stream_slow_before_it_is_answered() -> None:
    from varlog.client.committed.stream_costs import StreamCosts

    costs, known = StreamCosts(), streams(3)
    for stream in known:
        costs.sent(stream.log_stream, 0.0)
        costs.ended(stream.log_stream, 0.0, 0.002, answered=True)
    costs.sent(LogStreamID(3), 1.0)
    assert costs.slow(known, 1.001) == []
    assert costs.slow(known, 1.05) == [3]
    assert costs.cheapest(known, 2, 1.05).log_stream != 3


def test_a_stream_that_was_slow_has_one_probe_at_a_time_until_it_was_quick_several_times() -> None:
    from varlog.client.committed.stream_costs import PROBES, StreamCosts

    costs, known, now = StreamCosts(), streams(2), 0.0
    one, two = (stream.log_stream for stream in known)

    def answer(log_stream: LogStreamID, seconds: float) -> None:
        nonlocal now
        costs.sent(log_stream, now)
        costs.ended(log_stream, now, now + seconds, answered=True)
        now += seconds

    for _ in range(8):
        answer(one, 0.002)
        answer(two, 0.002)
    assert not costs.suspects
    answer(one, 3.0)
    assert list(costs.suspects) == [one]
    now += 60.0  # forgotten
    for _ in range(PROBES):
        assert one in costs.suspects
        assert {costs.cheapest(known, turn, now).log_stream for turn in range(4)} == {one, two}
        costs.sent(one, now)
        assert costs.slow(known, now) == [one], "nobody waits for it"
        assert {costs.cheapest(known, turn, now).log_stream for turn in range(4)} == {two}
        costs.ended(one, now, now + 0.002, answered=True)
        now += 0.002
        answer(two, 0.002)
    assert not costs.suspects


def test_streams_that_are_all_probed_are_not_all_slow() -> None:
    from varlog.client.committed.stream_costs import StreamCosts

    costs, known = StreamCosts(), streams(2)
    for stream in known:
        costs.sent(stream.log_stream, 0.0)
        costs.ended(stream.log_stream, 0.0, 3.0, answered=False)
        costs.sent(stream.log_stream, 60.0)
    assert list(costs.suspects) == [1, 2]
    assert costs.slow(known, 60.0) == []
    assert {costs.cheapest(known, turn, 60.0).log_stream for turn in range(2)} == {1, 2}


def test_equal_streams_are_used_alike() -> None:
    from varlog.client.committed.stream_costs import StreamCosts

    costs, known, chosen = StreamCosts(), streams(4), Counter[LogStreamID]()
    for turn in range(400):
        stream = costs.cheapest(known, turn, 0.0).log_stream
        chosen[stream] += 1
        costs.sent(stream, 0.0)
    assert set(chosen.values()) == {100}


# --- the node of the slow disk loses its primaries ----------------------------------------------------------------------


def stream_of_three(primary: int = 1) -> LogStream:
    others = [node for node in (1, 2, 3) if node != primary]
    replicas = (NodeID(primary), *map(NodeID, others))
    return LogStream(LogStreamID(7), TopicID(1), replicas, state=StreamState.RUNNING)


def stream_after_polls(
    slow: SlowPrimaries, seconds: dict[int, float], begin: float, end: float
) -> LogStream | None:
    """The stream with its primary on node 1 after a move, if the manager polls every half second; None without one."""
    now = begin
    while now < end:
        slow.update({NodeID(node): write_s for node, write_s in seconds.items()}, now)
        if slow.primary_for(stream_of_three(), now) is not None:
            return stream_of_three(int(slow.primary_for(stream_of_three(), now) or 0))
        now += 0.5
    return None


def test_a_primary_moves_once_its_disk_was_slow_for_long_enough() -> None:
    from varlog.manager.committed.rules import SlowPrimaries

    slow = SlowPrimaries(10.0)
    assert stream_after_polls(slow, {1: 0.1, 2: 0.002, 3: 0.002}, 0.0, 9.9) is None
    # An interruption: from here it counts from the beginning.
    assert stream_after_polls(slow, {1: 0.002, 2: 0.002, 3: 0.002}, 10.0, 11.0) is None
    assert stream_after_polls(slow, {1: 0.1, 2: 0.002, 3: 0.002}, 11.0, 20.9) is None
    moved = stream_after_polls(slow, {1: 0.1, 2: 0.002, 3: 0.002}, 21.0, 22.0)
    assert moved is not None
    assert moved.primary == 2
    # And not again for a while, whichever disk is slow now.
    for half in range(80, 280):
        slow.update({NodeID(1): 0.002, NodeID(2): 0.1, NodeID(3): 0.002}, half / 2)
        assert slow.primary_for(moved, half / 2) is None
    slow.update({NodeID(1): 0.002, NodeID(2): 0.1, NodeID(3): 0.002}, 150.0)
    assert slow.primary_for(moved, 150.0) == 1


def test_a_disk_that_hangs_now_and_then_is_slow_all_the_same() -> None:
    """While a write hangs too few end to measure how long they take: that was mistaken for a disk that is quick
    again."""
    from varlog.manager.committed.rules import SlowPrimaries

    slow, hangs = SlowPrimaries(10.0), {1: 0.0, 2: 0.002, 3: 0.002}
    assert stream_after_polls(slow, {1: 0.1, 2: 0.002, 3: 0.002}, 0.0, 7.0) is None
    # Missing data move nothing, and if they last longer they do not count towards a later move.
    assert stream_after_polls(slow, hangs, 7.0, 12.0) is None
    moved = stream_after_polls(slow, {1: 0.1, 2: 0.002, 3: 0.002}, 12.0, 13.0)
    assert moved is not None
    assert moved.primary == 2
    idle = SlowPrimaries(10.0)
    assert stream_after_polls(idle, {1: 0.1, 2: 0.002, 3: 0.002}, 0.0, 7.0) is None
    assert stream_after_polls(idle, hangs, 7.0, 30.0) is None
    assert stream_after_polls(idle, {1: 0.1, 2: 0.002, 3: 0.002}, 30.0, 39.0) is None


def test_few_writes_that_take_long_are_reported() -> None:
    now = 0.0
    meter = TrafficMeter(lambda: now)
    for seconds in (0.001, 0.001, 0.001):
        meter.wrote(seconds)
    assert meter.snapshot().write_s == 0.0
    for _ in range(3):
        now += 5.0
        assert meter.snapshot().write_s == 0.0
    for seconds in (0.4, 0.5, 0.6):
        meter.wrote(seconds)
    assert meter.snapshot().write_s == pytest.approx(0.5)


@pytest.mark.parametrize(
    "seconds",
    [
        {1: 0.1, 2: 0.1, 3: 0.1},
        {1: 0.1, 2: 0.05, 3: 0.04},
        {1: 0.015, 2: 0.001, 3: 0.001},
        {1: 0.1},
        {1: 0.1, 2: 0.0},
    ],
    ids=["all are slow", "all are rather slow", "quick enough", "alone", "nothing known of the others"],
)
def test_no_primary_moves_where_it_does_not_help(seconds: dict[int, float]) -> None:
    from varlog.manager.committed.rules import SlowPrimaries

    assert stream_after_polls(SlowPrimaries(1.0), seconds, 0.0, 60.0) is None


def test_a_primary_moves_past_another_slow_node() -> None:
    from varlog.manager.committed.rules import SlowPrimaries

    moved = stream_after_polls(SlowPrimaries(1.0), {1: 0.3, 2: 0.2, 3: 0.001, 4: 0.001, 5: 0.001}, 0.0, 60.0)
    assert moved is not None
    assert moved.primary == 3


def test_the_primary_leaves_a_slow_disk_and_nothing_is_lost() -> None:
    """In virtual time, on real nodes, a real repository and a real manager."""

    async def story() -> None:
        cluster = SimCluster(nodes=3, replicas=3)
        cluster.start()
        log = await cluster.log(create=True)
        await cluster.wait_whole()
        before = (await cluster.view()).streams[0]
        cluster.nodes[before.primary].slowness = 100.0
        loop = asyncio.get_running_loop()
        positions: list[int] = []

        async def append_until(end: float) -> None:
            while loop.time() < end:
                positions.append((await log.append(b"%d" % len(positions))).glsn)

        end = loop.time() + 120.0
        while (moved := (await cluster.view()).streams[0]).primary == before.primary:
            assert loop.time() < end, "the primary stays on the slow disk"
            await append_until(loop.time() + 1.0)
        await append_until(loop.time() + 60.0)
        await cluster.wait_whole()
        after = (await cluster.view()).streams[0]
        # It was moved once, with a seal and a new order of the replicas, and never again.
        assert (after.epoch, after.replicas) == (moved.epoch, moved.replicas)
        assert set(after.replicas) == set(before.replicas)
        found = [entry.data async for entry in log.subscribe(positions[0], positions[-1] + 1)]
        assert found == [b"%d" % n for n in range(len(positions))]
        await log.close()

    run_in_virtual_time(story())
