"""Log units beside replicas on a node's volumes: distinguished, created, removed and set aside whole, wherever a crash comes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.helpers import TOPIC, Host, batch
from varlog.model.errors import PreconditionFailed
from varlog.model.ids import ClusterID, LogStreamID, NodeID
from varlog.storage.committed.log_store import LogStore
from varlog.storage.sequenced.page_store import PageStore
from varlog.storage.sequenced.unit_state import UNIT_NAME
from varlog.storage.volume import NodeVolumes
from varlog.testing.sim.core.loop import ProcessCrashed

UNIT, REPLICA = LogStreamID(9), LogStreamID(10)


def open_on(host: Host) -> NodeVolumes:
    return NodeVolumes.open(
        host.disk, random.Random(1), cluster=ClusterID(1), node=NodeID(4), volumes=[Path("/disk")]
    )


def make_unit(host: Host, volumes: NodeVolumes) -> PageStore:
    return PageStore.create(host.disk, volumes.place(UNIT), topic=TOPIC, log_stream=UNIT, segment_bytes=500)


def started(seed: int) -> tuple[Host, NodeVolumes]:
    host = Host(seed)
    host.disk.make_directory(Path("/disk"))
    return host, open_on(host)


def with_unit(seed: int) -> tuple[Host, NodeVolumes]:
    """A node with one unit that holds five pages in three segments."""
    host, volumes = started(seed)
    store = make_unit(host, volumes)
    for first in (1, 9, 3, 5, 7):
        store.publish(store.append([batch(first, [b"x" * 100] * 2)]))
    store.close()
    return host, volumes


def pages(host: Host, path: Path) -> int:
    return len(PageStore.open(host.disk, path, segment_bytes=500).pages_from(1, 100))  # type: ignore[arg-type]


def at_every_operation(act: Callable[[int], bool]) -> None:
    """`act(operation)` crashes in that operation and judges; False if it was done before."""
    assert not all(act(operation) for operation in range(1, 60)), "it takes more operations than were tried"


def test_units_and_replicas_are_distinguished() -> None:
    host, volumes = with_unit(1)
    LogStore.create(host.disk, volumes.place(REPLICA), topic=TOPIC, log_stream=REPLICA)
    for opened in (volumes, open_on_again(host, volumes)):
        assert opened.is_unit(UNIT) and not opened.is_unit(REPLICA) and not opened.is_unit(LogStreamID(77))


def test_a_damaged_unit_is_a_unit() -> None:
    host, volumes = with_unit(1)
    host.disk.remove(volumes.streams[UNIT] / UNIT_NAME)
    opened = open_on_again(host, volumes)
    assert opened.is_unit(UNIT)
    with pytest.raises(PreconditionFailed):
        opened.place(UNIT)


def open_on_again(host: Host, volumes: NodeVolumes) -> NodeVolumes:
    volumes.release()
    return open_on(host)


def test_a_unit_that_was_never_finished_is_cleared_and_can_be_made_again() -> None:
    def crash_in(operation: int) -> bool:
        host, volumes = started(operation)
        host.crash_in(operation)
        try:
            make_unit(host, volumes)
        except ProcessCrashed:
            host.boot()
            opened = open_on(host)
            if UNIT in opened.streams:
                assert opened.is_unit(UNIT) and pages(host, opened.streams[UNIT]) == 0
            else:
                assert make_unit(host, opened).newest == 0
            return True
        return False

    at_every_operation(crash_in)


def test_a_removal_that_crashed_is_finished_at_the_next_start() -> None:
    """R-REG-5: all of it, or gone for good; never a wreck."""

    def crash_in(operation: int) -> bool:
        host, volumes = with_unit(operation)
        path = volumes.streams[UNIT]
        host.crash_in(operation)
        try:
            volumes.remove(UNIT)
        except ProcessCrashed:
            host.boot()
            opened = open_on(host)
            assert pages(host, path) == 5 if UNIT in opened.streams else not host.disk.exists(path)
            return True
        return False

    at_every_operation(crash_in)


def test_a_unit_set_aside_for_a_new_one_is_under_one_name_or_the_other() -> None:
    """The old data is there until it is dropped, and never without a unit in its place."""

    def crash_in(operation: int) -> bool:
        host, volumes = with_unit(operation)
        path = volumes.streams[UNIT]
        aside = path.with_name(f"aside-{path.name}")
        host.crash_in(operation)
        try:
            volumes.set_aside(UNIT)
            make_unit(host, volumes)
        except ProcessCrashed:
            host.boot()
            opened = open_on(host)
            assert pages(host, aside if host.disk.exists(aside) else path) == 5
            assert UNIT in opened.streams
            return True
        return False

    at_every_operation(crash_in)
