"""PageStore against a simple model, on a disk that loses, keeps or tears what was not synced when the process crashes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.storage.helpers import STREAM, TOPIC, Host, batch
from varlog.model.batch import check_body, junk, parse_header
from varlog.model.epoch import Epoch
from varlog.model.lsn import LLSN
from varlog.storage.dump import dump
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.testing.sim.core.loop import ProcessCrashed

DIRECTORY = Path(f"/volume/lsid={STREAM}")
SEGMENT_BYTES = 700

# Crash in this many operations from now; 0 is not at all.
CRASH = st.integers(0, 12)
# How far behind the newest address a batch goes, how many entries it has, how long they are; 0 bytes is junk.
SHAPE = st.tuples(st.integers(0, 9), st.integers(1, 3), st.integers(0, 200))


class UnitMachine(RuleBasedStateMachine):
    """The model: what was acknowledged, and what was merely tried. By first LLSN, whole batches."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.host = Host(seed)
        self.store = PageStore.create(
            self.host.disk, DIRECTORY, topic=TOPIC, log_stream=STREAM, segment_bytes=SEGMENT_BYTES
        )
        self.written: dict[int, bytes] = {}  # acknowledged
        self.tried: dict[int, bytes] = {}  # it may be there after the next start, or not
        self.epoch = self.asked_epoch = 0
        self.low = self.asked_low = 1
        self.end = 1  # of the highest address ever tried
        self.serial = 0

    # --- steps -------------------------------------------------------------------------------------------------------

    @rule(shapes=st.lists(SHAPE, min_size=1, max_size=5), crash=CRASH)
    def append(self, shapes: list[tuple[int, int, int]], crash: int) -> None:
        self.make_group(shapes)
        pages: list[PageRef] = []
        if self.does(lambda: pages.extend(self.store.append(list(self.tried.values()))), crash):
            assert [(page.first_llsn, page.size) for page in pages] == [
                (first, len(data)) for first, data in self.tried.items()
            ]
            self.written |= self.tried
            self.tried = {}
            self.store.publish(pages)

    @rule(newer=st.integers(1, 3), crash=CRASH)
    def seal(self, newer: int, crash: int) -> None:
        self.asked_epoch = self.epoch + newer
        if self.does(lambda: self.store.set_epoch(Epoch(self.asked_epoch)), crash):
            self.epoch = self.asked_epoch

    @rule(back=st.integers(-2, 8), crash=CRASH)
    def trim(self, back: int, crash: int) -> None:
        self.asked_low = max(self.low, self.end - back)
        if self.does(lambda: self.store.trim(LLSN(self.asked_low)), crash):
            self.low = self.asked_low

    @rule(crash=CRASH)
    def prove(self, crash: int) -> None:
        self.does(self.store.confirm_sync, crash)

    @rule()
    def stop_and_start(self) -> None:
        self.store.close()
        self.recover()

    @rule()
    def lose_power(self) -> None:
        self.host.crash()
        self.recover()

    @rule(crash=CRASH)
    def crash_while_opening(self, crash: int) -> None:
        self.host.crash()
        disk = self.host.boot()
        self.host.crash_in(crash or 1)
        try:
            PageStore.open(disk, DIRECTORY, segment_bytes=SEGMENT_BYTES)
        except ProcessCrashed:
            pass
        else:
            self.host.crash()
        self.recover()

    @rule(shapes=st.lists(SHAPE, min_size=1, max_size=5), writes=st.booleans())
    def fail(self, shapes: list[tuple[int, int, int]], writes: bool) -> None:
        """A write or a sync fails. The store takes no more, until it is opened again: then it is sure of what it has."""
        self.make_group(shapes)
        drive, store = self.host.drive, self.store
        drive.fail_writes, drive.fail_syncs = (1, 0) if writes else (0, 1)
        if self.tried:
            with pytest.raises(OSError):
                store.append(list(self.tried.values()))
            with pytest.raises(OSError):
                store.append([batch(self.end + 1, [b"never"])])
        drive.fail_writes = drive.fail_syncs = 0
        self.take_over(store.reopened())
        store.close()

    @rule()
    def lose_a_sidecar(self) -> None:
        sidecars = [name for name in self.host.disk.list(DIRECTORY) if name.endswith(".idx")]
        if sidecars:
            self.store.close()
            self.host.disk.remove(DIRECTORY / self.host.rng.choice(sidecars))
            self.host.disk.sync_directory(DIRECTORY)
            self.recover()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def what_was_written_exists_and_nothing_else(self) -> None:
        """Laws 1 and 8."""
        store, there = self.store, self.there()
        pages = store.pages_from(LLSN(1), 10_000)
        assert [(page.first_llsn, page.end_llsn) for page in pages] == [
            (first, first + self.count(data)) for first, data in there.items()
        ]
        assert bytes(store.read(pages) if pages else b"") == b"".join(there.values())
        assert store.examine(pages) == [] and not store.corrupt_ranges
        for page, data in zip(pages, there.values(), strict=True):
            assert bytes(store.header(page)) == data[:64]
            assert page.is_junk == parse_header(data).is_junk

    @invariant()
    def watermarks_agree(self) -> None:
        store, there = self.store, self.there()
        assert (store.epoch, store.low) == (self.epoch, self.low)
        held = {llsn for first, data in there.items() for llsn in range(first, first + self.count(data))}
        assert store.newest == max([self.low - 1, *held])
        dense_end = next(llsn for llsn in range(self.low, self.end + 10) if llsn not in held)
        assert store.dense_end == dense_end
        for llsn in range(self.low, self.end + 1):
            page = store.page(LLSN(llsn))
            assert (page is not None) == (llsn in held)
            assert (store.overlaps(LLSN(llsn), 1) is not None) == (llsn in held)
            run = store.run(LLSN(llsn), 300)
            assert bool(run) == (llsn in held)
            assert all(one.end_llsn == other.first_llsn for one, other in pairwise(run))

    @invariant()
    def nothing_is_damaged(self) -> None:
        assert dump(self.host.disk, DIRECTORY).problems == []

    # --- inside ------------------------------------------------------------------------------------------------------

    def make_group(self, shapes: list[tuple[int, int, int]]) -> None:
        """Batches to try, in any order, where nothing is yet."""
        group: dict[int, bytes] = {}
        for back, count, size in shapes:
            first = max(self.low, self.end + 3 - back)
            if not any(self.taken(llsn, group) for llsn in range(first, first + count)):
                self.serial += 1
                entry = f"{self.serial}:".encode().ljust(size, b".")
                group[first] = bytes(batch(first, [entry] * count) if size else junk(LLSN(first), count))
        self.end = max([self.end, *(first + self.count(data) for first, data in group.items())])
        self.tried = group

    def there(self) -> dict[int, bytes]:
        """What is written and not trimmed; a batch goes when all of it is trimmed."""
        return {
            first: data for first, data in sorted(self.written.items()) if first + self.count(data) > self.low
        }

    def taken(self, llsn: int, group: dict[int, bytes]) -> bool:
        return any(first <= llsn < first + self.count(data) for first, data in (self.written | group).items())

    def count(self, data: bytes) -> int:
        return parse_header(data).count

    def does(self, action: Callable[[], Any], crash: int) -> bool:
        """Do it, or crash in its middle and recover; True if it was done."""
        if crash:
            self.host.crash_in(crash)
        try:
            action()
        except ProcessCrashed:
            self.recover()
            return False
        self.host.disk.crash_at = None
        return True

    def recover(self) -> None:
        """Start again."""
        self.take_over(PageStore.open(self.host.boot(), DIRECTORY, segment_bytes=SEGMENT_BYTES))

    def take_over(self, store: PageStore) -> None:
        """What was acknowledged exists; what was only tried may exist, each batch whole or not at all, and from now on forever."""
        self.store = store
        assert store.epoch in (self.epoch, self.asked_epoch) and store.low in (self.low, self.asked_low)
        self.epoch, self.low = store.epoch, store.low
        self.asked_epoch, self.asked_low = self.epoch, self.low
        for first, data in self.tried.items():
            page = store.page(LLSN(first))
            if page is not None:
                found = store.read([page])
                check_body(found, parse_header(found))
                assert bytes(found) == data
                self.written[first] = data
        self.tried = {}


def test_a_unit_keeps_its_promises_over_crashes_at_any_point() -> None:
    """Laws 1, 7, 8, 9 and R-SEQ-5 on every history that hypothesis comes upon."""
    run_state_machine_as_test(UnitMachine, settings=settings(stateful_step_count=30))
