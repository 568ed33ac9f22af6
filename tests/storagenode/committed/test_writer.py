"""Writer: what waits is one group, groups complete in order, in the loop or in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any, cast

import pytest

from varlog.model.batch import Buffer
from varlog.model.epoch import Epoch
from varlog.model.lsn import LLSN
from varlog.runtime import worker as workers
from varlog.runtime.metrics import TrafficMeter
from varlog.runtime.worker import ThreadWorker
from varlog.storage.committed.log_store import LogStore
from varlog.storagenode.committed import writer as writers
from varlog.storagenode.committed.writer import Writer

EPOCH = Epoch(1)


class _Store:
    """Keeps the groups, and in which thread each was written; one entry a batch."""

    def __init__(self) -> None:
        self.groups: list[list[bytes]] = []
        self.in_loop: list[bool] = []
        self.written_end = LLSN(1)
        self.gate = threading.Event()
        self.gate.set()
        self._loop = threading.get_ident()

    def append(self, batches: Sequence[Buffer]) -> None:
        assert self.gate.wait(10)
        self.groups.append([bytes(batch) for batch in batches])
        self.in_loop.append(threading.get_ident() == self._loop)
        self.written_end = LLSN(self.written_end + len(batches))


class _Scene:
    """A writer over such a store, and the durable ends it reported."""

    def __init__(self) -> None:
        self.store = _Store()
        self.worker = ThreadWorker("test")
        self.reported: list[LLSN] = []
        self.failed: list[BaseException] = []
        self.writer = Writer(
            cast(LogStore, self.store),
            self.worker,
            lambda epoch, end: self.reported.append(end),
            self.failed.append,
            TrafficMeter(time.monotonic),
        )

    def write(self, *batches: bytes) -> None:
        for batch in batches:
            self.writer.write(EPOCH, batch)

    async def wait_reported(self, end: int) -> None:
        async with asyncio.timeout(10):
            while not self.reported or self.reported[-1] < end:
                await asyncio.sleep(0)


def _play(story: Any) -> Any:
    async def body() -> Any:
        scene = _Scene()
        try:
            return await story(scene)
        finally:
            await scene.worker.close()

    return asyncio.run(body())


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "QUICK_S", -1.0)


def test_small_batches_of_one_turn_are_one_group_written_by_the_loop() -> None:
    async def story(scene: _Scene) -> _Scene:
        scene.write(b"a", b"b", b"c")
        assert scene.store.groups == []  # more may come in this turn
        await scene.wait_reported(4)
        return scene

    scene = _play(story)
    assert (scene.store.groups, scene.store.in_loop, scene.reported) == ([[b"a", b"b", b"c"]], [True], [4])


def test_a_large_group_is_written_by_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "INLINE_GROUP_BYTES_MAX", 2)

    async def story(scene: _Scene) -> list[bool]:
        scene.write(b"large")
        await scene.wait_reported(2)
        scene.write(b"a", b"b", b"c")
        await scene.wait_reported(5)
        return scene.store.in_loop

    assert _play(story) == [False, False]


@pytest.mark.usefixtures("slow_disk")
def test_on_a_slow_disk_what_waits_for_the_thread_is_the_next_group() -> None:
    async def story(scene: _Scene) -> _Scene:
        scene.write(b"slow")  # the loop finds out
        await scene.wait_reported(2)
        scene.store.gate.clear()
        scene.write(b"a")
        scene.write(b"b", b"c")
        scene.store.gate.set()
        await scene.wait_reported(5)
        return scene

    scene = _play(story)
    assert scene.store.groups == [[b"slow"], [b"a"], [b"b", b"c"]]
    assert (scene.store.in_loop, scene.reported) == ([True, False, False], [2, 3, 5])


def test_groups_are_reported_in_order_when_more_waits_than_one_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 1: what becomes durable grows. The second group must not be reported before the first, wherever it is written."""
    monkeypatch.setattr(writers, "GROUP_BATCHES_MAX", 2)

    async def story(scene: _Scene) -> _Scene:
        scene.write(*(str(number).encode() for number in range(7)))
        await scene.wait_reported(8)
        return scene

    scene = _play(story)
    assert scene.reported == [3, 5, 7, 8]
    assert [len(group) for group in scene.store.groups] == [2, 2, 2, 1]


def test_what_is_dropped_before_its_turn_is_never_written() -> None:
    async def story(scene: _Scene) -> list[list[bytes]]:
        scene.write(b"cut")
        scene.writer.drop_queue()
        await asyncio.sleep(0)
        scene.write(b"kept")
        await scene.wait_reported(2)
        return scene.store.groups

    assert _play(story) == [[b"kept"]]


def test_a_failure_drops_what_waits_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "GROUP_BATCHES_MAX", 1)

    async def story(scene: _Scene) -> _Scene:
        def fail(batches: Sequence[Buffer]) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(scene.store, "append", fail)
        scene.write(b"a", b"b")
        async with asyncio.timeout(10):
            while not scene.failed:
                await asyncio.sleep(0)
        monkeypatch.undo()
        scene.write(b"c")
        await scene.wait_reported(2)
        return scene

    scene = _play(story)
    assert [str(error) for error in scene.failed] == ["disk full"]
    assert scene.store.groups == [[b"c"]]
