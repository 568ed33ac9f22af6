"""A disk that fails: what a failed sync lost is never believed, what was durable stays so, and the store can be opened again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from tests.storage.committed.test_crash_machine import CRASH, StoreMachine
from tests.storage.helpers import STREAM, TOPIC, Host, commit_all, fill, raised, read_all
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptReplica
from varlog.model.lsn import GLSN, LLSN
from varlog.storage.committed.log_store import LogStore
from varlog.testing.sim.core.loop import ProcessCrashed

DIRECTORY = Path(f"/volume/lsid={STREAM}")
ONE = [[b"x" * 50]]


def made(seed: int = 1, entries: int = 3) -> tuple[Host, LogStore]:
    """A host, and a store on it with this number of entries, all committed, rows synced."""
    host = Host(seed)
    store = LogStore.create(host.disk, DIRECTORY, topic=TOPIC, log_stream=STREAM, segment_bytes=100_000)
    store.cut(Epoch(1), LLSN(1))
    fill(store, [[b"%d" % number] for number in range(entries)])
    commit_all(store)
    store.sync_rows()
    return host, store


def power_cut(host: Host) -> LogStore:
    """What a new process finds after everything that was not on the platter is gone."""
    while host.drive.crash(host.rng) != "lose all":
        pass
    return LogStore.open(host.boot(), DIRECTORY)


def reopen_store(store: LogStore) -> None:
    store.resume(store.reopened())


def test_a_store_continues_after_a_failed_sync_with_what_was_verified() -> None:
    host, store = made()
    fill(store, ONE)
    host.drive.fail_syncs = 1
    failure = raised(lambda: fill(store, ONE))
    assert isinstance(failure, OSError) and store.failure is failure
    reopen_store(store)
    assert (store.written_end, store.committed_end) == (5, 4)
    fill(store, ONE)
    commit_all(store)
    store.sync_rows()
    assert (power_cut(host).committed_end, len(read_all(store))) == (6, 5)


def test_what_can_only_be_read_back_is_written_again_before_it_is_believed() -> None:
    """Law 1. The process dies right after the failed sync; its successor reads the page cache, where all looks well."""
    believed = 0
    for seed in range(40):
        host, store = made(seed)
        host.drive.fail_syncs = 1
        host.crash_in(3)  # write, sync, and the cut of what is doubtful
        with pytest.raises(ProcessCrashed):
            fill(store, ONE)
        again = LogStore.open(host.boot(), DIRECTORY)
        believed += again.written_end == 5
        assert power_cut(host).written_end == again.written_end, "what it would report is on the platter"
    assert believed > 0, "no seed left the entry in the page cache: the test is blind"


@pytest.mark.parametrize("in_process", [True, False])
def test_rows_whose_sync_failed_are_not_called_synced_before_they_are_written_again(in_process: bool) -> None:
    """The repository forgets a row once its replicas call it synced: called so wrongly, it would be lost forever (law 3)."""
    host, store = made()
    fill(store, ONE)
    commit_all(store)
    host.drive.fail_syncs = 1
    assert isinstance(raised(store.sync_rows), OSError)
    assert store.rows_synced_end == 4
    if in_process:
        reopen_store(store)
    else:
        store = LogStore.open(host.boot(), DIRECTORY)
    assert store.rows_synced_end == store.committed_end == 5, "the page cache had the row"
    assert power_cut(host).rows_synced_end == 5


def test_rows_that_were_only_in_memory_stay_true_when_the_store_is_opened_again() -> None:
    """Laws 3 and 5: readers and appenders have seen them."""
    host, store = made()
    fill(store, ONE, ONE)
    commit_all(store)
    host.drive.fail_writes = 1
    assert isinstance(raised(lambda: fill(store, ONE)), OSError)
    fresh = store.reopened()
    assert (fresh.committed_end, store.committed_end) == (4, 6)
    store.resume(fresh)
    assert (store.committed_end, store.rows_synced_end, len(read_all(store))) == (6, 4, 5)
    store.sync_rows()
    assert power_cut(host).committed_end == 6


def test_while_the_disk_fails_nothing_is_opened_and_reads_and_commits_continue() -> None:
    host, store = made()
    fill(store, ONE)
    host.drive.fail_syncs = 1000
    assert isinstance(raised(lambda: fill(store, ONE)), OSError)
    for _ in range(3):
        assert isinstance(raised(store.reopened), OSError)
        assert store.failure is not None
    commit_all(store)
    assert len(read_all(store)) == 4
    host.drive.fail_syncs = 0
    reopen_store(store)
    assert (store.written_end, store.committed_end, store.rows_synced_end) == (5, 5, 4)


def test_a_disk_that_lost_durable_data_is_reported_and_nothing_is_changed() -> None:
    host, store = made()
    fill(store, ONE)
    commit_all(store)
    host.drive.fail_writes = 1
    assert isinstance(raised(lambda: fill(store, ONE)), OSError)
    segment = next(name for name in host.disk.list(DIRECTORY) if name.endswith(".seg"))
    host.disk.open(DIRECTORY / segment).truncate(240)  # three entries of 80 bytes
    with pytest.raises(CorruptReplica, match="durable up to"):
        reopen_store(store)
    assert (store.committed_end, store.failure is None) == (5, False)


def test_a_trim_that_the_disk_refuses_is_hidden_at_once_and_kept_later() -> None:
    """Law 9: nobody reads what is trimmed, whether the disk took it or not."""
    host, store = made()
    host.drive.fail_writes = 1
    assert isinstance(raised(lambda: store.trim(GLSN(2))), OSError)
    assert (store.trimmed, store.low_llsn, set(read_all(store))) == (0, 3, {3})
    fill(store, ONE)
    host.drive.fail_writes = 1
    assert isinstance(raised(lambda: fill(store, ONE)), OSError)
    reopen_store(store)
    assert store.low_llsn == 3, "also after the store was opened again"
    store.trim(GLSN(2))
    assert power_cut(host).low_llsn == 3


class FailingStoreMachine(StoreMachine):
    """The machine of the crash test on a disk that also refuses syncs and writes and runs full; the store is opened again in
    the same process then, and a crash may fall into that, too."""

    @rule(syncs=st.integers(0, 3), writes=st.integers(0, 2))
    def fail(self, syncs: int, writes: int) -> None:
        self.host.drive.fail_syncs, self.host.drive.fail_writes = syncs, writes

    @rule(left=st.integers(0, 1500))
    def fill_up(self, left: int) -> None:
        self.host.drive.capacity_bytes = self.host.drive.root.size() + left

    @rule()
    def calm(self) -> None:
        drive = self.host.drive
        drive.fail_syncs, drive.fail_writes, drive.capacity_bytes = 0, 0, None

    @rule(back=st.integers(0, 4), crash=CRASH)
    def trim(self, back: int, crash: int) -> None:
        super().trim(back, crash)
        if self.maybe_trimmed > self.trimmed:  # hidden in any case: it is tried again until it is kept
            self.calm()
            self.store.trim(GLSN(self.maybe_trimmed))
            self.trimmed = self.maybe_trimmed

    @rule()
    def stop_and_start(self) -> None:
        self.calm()
        super().stop_and_start()

    @rule(crash=CRASH, opened=st.booleans())
    def seal(self, crash: int, opened: bool) -> None:
        super().seal(crash, False)
        self.calm()
        if opened:
            self.store.open_epoch(Epoch(self.epoch))

    def does(self, action: Callable[[], Any], crash: int) -> bool:
        done = False
        try:
            done = super().does(action, crash)
        except OSError:
            self.reopen_failed()
        if not done:
            self.calm()  # so that a retry is not refused forever
        return done

    def reopen_failed(self) -> None:
        """As a replica does on a seal: again and again, until the disk works."""
        store = self.store
        try:
            while store.failure is not None:
                try:
                    store.resume(store.reopened())
                except OSError:
                    if self.host.drive.capacity_bytes is not None:
                        self.calm()  # nobody but us would make room
        except ProcessCrashed:
            self.calm()
            self.recover()
            return
        self.host.disk.crash_at = None
        self.take_tail(store)
        assert store.committed_end == self.committed_end
        assert store.rows_synced_end >= self.rows_synced
        self.rows_synced = store.rows_synced_end

    def opened(self) -> LogStore:
        """Whatever fails while it is opened: it is opened again, by the next process or the one after."""
        for _ in range(5):
            try:
                return super().opened()
            except OSError:
                self.host.crash()
        self.calm()
        return super().opened()


def test_the_store_keeps_its_promises_on_a_disk_that_fails() -> None:
    """Laws 1, 3, 4, 5, 6, 9: whatever fails, and wherever it crashes then."""
    run_state_machine_as_test(FailingStoreMachine, settings=settings(stateful_step_count=30))
