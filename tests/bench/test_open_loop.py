"""The open loop of `varlog bench`: what it counts as what, and that it measures at all. No speed is asserted."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from varlog.bench import open_loop as open_loop_module
from varlog.bench.context import BenchSettings, QuietDisplay
from varlog.bench.open_loop import Capacity, OpenLoop, Point, Tally, filling
from varlog.client.append_rules import InflightBatch
from varlog.client.batcher import Batcher
from varlog.model.batch import pack
from varlog.model.cluster import Ordering
from varlog.model.entry import Position
from varlog.model.errors import NotAccepted, OutcomeUnknown, Overloaded, Unavailable
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.tasks import Tasks
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time


class ThreeNodes:
    """A carrier along a chain: a node writes one batch in ten milliseconds, then the next node gets it."""

    closed = False
    stalled = 0
    gather_entries_max = 4096

    def __init__(self) -> None:
        self.on_stall: Callable[[], None] = lambda: None
        self.busy_s = 0.0
        self._nodes = [asyncio.Lock() for _ in range(3)]

    def is_probe_next(self) -> bool:
        return False

    def streams_free(self) -> int:
        return 3

    async def deliver(self, batch: InflightBatch) -> Position:
        for node in self._nodes:
            async with node:
                await asyncio.sleep(0.01)
                self.busy_s += 0.01
        return Position(GLSN(1), LLSN(1), LogStreamID(1))


def packed(entries: Sequence[bytes]) -> bytearray:
    return pack(entries, producer=ProducerID(1), sequence=1, time_us=0)


def test_each_append_is_counted_once_by_how_and_when_it_ended() -> None:
    tally = Tally()
    tally.count(None, 0.9, 1.0)
    tally.count(None, 1.1, 1.0)
    tally.count(Overloaded(5, 100.0, 0.1), 0.01, 1.0)
    tally.count(NotAccepted("its time is over"), 1.0, 1.0)
    tally.count(OutcomeUnknown("sent"), 1.0, 1.0)
    tally.count(Unavailable("no answer"), 0.01, 1.0)
    assert list(tally.in_time) == [0.9]
    assert (tally.late, tally.refused_at_once, tally.refused_later, tally.unknown) == (1, 1, 1, 2)


@pytest.mark.parametrize(("multiples", "deadline_s"), [([], 1.0), ([0.0], 1.0), ([1.0], 0.0)])
def test_a_load_that_cannot_be_offered_is_refused(
    tmp_path: Path, multiples: list[float], deadline_s: float
) -> None:
    with pytest.raises(ValueError, match=r"--offered|--deadline"):
        OpenLoop(BenchSettings(data=tmp_path), multiples, deadline_s)


@pytest.mark.parametrize("ordering", list(Ordering))
def test_every_append_that_was_offered_is_in_the_curve(tmp_path: Path, ordering: Ordering) -> None:
    settings = BenchSettings(
        data=tmp_path,
        embedded=True,
        seconds=0.2,
        warm_up_s=0.05,
        appenders=4,
        entry_bytes=100,
        ordering=ordering,
    )

    async def body() -> None:
        async with asyncio.timeout(120.0):
            curve = await OpenLoop(settings, [0.2, 1.5], 5.0).curve(QuietDisplay())
        assert [point.multiple for point in curve.points] == [0.2, 1.5]
        for point in curve.points:
            others = point.late + point.refused_at_once + point.refused_later + point.unknown
            arrived = round(point.offered_per_s * settings.seconds)
            assert round(point.in_time_per_s * settings.seconds) + others == arrived
        report = json.loads(curve.as_json())
        assert set(report["capacity"]) == {ordering.value}
        assert report["capacity"][ordering.value]["entry_bytes"] == 100
        assert curve.markdown().count("\n| ") == 4

    asyncio.run(body())


def test_entries_are_larger_where_the_driver_would_be_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(open_loop_module, "ENTRY_BYTES", (16, 4096))
    monkeypatch.setattr(open_loop_module, "ARRIVALS_PER_S_MAX", 0)
    monkeypatch.setattr(open_loop_module, "APPENDERS", (2, 4))
    monkeypatch.setattr(open_loop_module, "FILLED", 0)
    settings = BenchSettings(data=tmp_path, embedded=True, seconds=0.1, warm_up_s=0.01)

    async def body() -> None:
        async with asyncio.timeout(120.0):
            curve = await OpenLoop(settings, [0.2], 5.0).curve(QuietDisplay())
        (capacity,) = curve.capacity.values()
        assert capacity.entry_bytes == 4096
        assert capacity.appenders in (2, 4)
        assert "entries of 4096 bytes" in curve.markdown()

    asyncio.run(body())


def test_a_closed_loop_has_more_appenders_than_fit_in_all_batches_in_flight() -> None:
    """With 256 of 4 KiB all were in one batch: one node of a chain wrote it while the others had nothing to do."""
    chain: Any = SimpleNamespace(gather_entries_max=4096, streams_free=lambda: 3)
    assert filling(chain, 4096) == 2 * 6 * 256
    assert filling(chain, 64 * 1024) == 2 * 6 * 16
    assert filling(chain, 1) == 2 * 6 * 4096
    assert filling(chain, 8 * 1024 * 1024) == 2 * 6
    stripes: Any = SimpleNamespace(gather_entries_max=64, streams_free=lambda: 6)
    assert filling(stripes, 1024) == 2 * 12 * 64


def test_as_many_batches_are_in_flight_as_may_be_only_where_the_appenders_fill_them() -> None:
    """In virtual time, on a chain of three nodes, each of which writes one batch at a time."""

    async def in_flight(appenders: int) -> float:
        chain = ThreeNodes()
        gatherer = Batcher(chain, Tasks("test", lambda name, error: None), packed, None)
        loop = asyncio.get_running_loop()
        end = loop.time() + 1.0

        async def appender() -> None:
            while loop.time() < end:
                await gatherer.append(bytes(4096), 60.0)

        await asyncio.gather(*(appender() for _ in range(appenders)))
        return chain.busy_s / (loop.time() * 3)

    few, enough = (run_in_virtual_time(in_flight(count)) for count in (256, filling(ThreeNodes(), 4096)))
    assert few < 0.4, "one node writes while two have nothing to do"
    assert enough > 0.9


def test_the_capacity_is_what_the_log_takes_where_a_closed_loop_finds_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that found too little made the curve rise with the load: nothing was overloaded at twice of it."""
    takes, offered = 1000.0, []

    async def point(
        self: OpenLoop, bench_target: object, ordering: Ordering, multiple: float, capacity: Capacity
    ) -> Point:
        offered.append(multiple * capacity.per_s)
        served = min(takes, offered[-1])
        return Point(ordering, multiple, offered[-1], served, 0, 0, 0, 0, None, None, 0.0, 0.0)

    monkeypatch.setattr(OpenLoop, "_point", point)
    found = Capacity(300.0, 256, 1024)
    nowhere: Any = None
    bench = OpenLoop(BenchSettings(data=tmp_path), [1.0], 1.0)
    assert asyncio.run(bench._saturated(nowhere, Ordering.SEQUENCED, found)) == Capacity(takes, 256, 1024)
    assert offered == [600.0, 1200.0, 2000.0]
