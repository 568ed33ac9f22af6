"""LogStore against a simple model, on a disk that loses, keeps or tears what was not synced when the process crashes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.storage.helpers import STREAM, TOPIC, Host, batch, read_all, row
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.lsn import GLSN, LLSN
from varlog.storage.committed.log_store import LogStore
from varlog.testing.sim.core.loop import ProcessCrashed

DIRECTORY = Path(f"/volume/lsid={STREAM}")
SEGMENT_BYTES = 700

# Crash in this many operations from now; 0 is not at all.
CRASH = st.integers(0, 12)


class StoreMachine(RuleBasedStateMachine):
    """The model: what was promised (durable, committed, sealed, trimmed) and what was merely tried."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.host = Host(seed)
        self.store = LogStore.create(
            self.host.disk, DIRECTORY, topic=TOPIC, log_stream=STREAM, segment_bytes=SEGMENT_BYTES
        )
        self.entries: dict[int, bytes] = {}  # LLSN -> entry; tried or durable
        self.ends = [1]  # where the batches of `entries` end
        self.durable_end = 1  # acknowledged as durable (law 1)
        self.rows: list[CommitRow] = []  # ordered by the repository, forever (law 3)
        self.rows_synced = 1
        self.epoch = 0
        self.sealed_end = 1
        self.trimmed = 0
        self.maybe_trimmed = 0
        self.serial = 0

    # --- steps -------------------------------------------------------------------------------------------------------

    @rule(
        shape=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=3), min_size=1, max_size=5),
        crash=CRASH,
    )
    def append(self, shape: list[list[int]], crash: int) -> None:
        llsn, group = self.durable_end, []
        for sizes in shape:
            batch_entries = []
            for size in sizes:
                self.serial += 1
                batch_entries.append(f"{self.serial}:".encode().ljust(size, b"."))
            group.append(batch(llsn, batch_entries, self.epoch))
            self.entries.update(enumerate(batch_entries, llsn))
            llsn += len(sizes)
            self.ends.append(llsn)
        if self.does(lambda: self.store.append(group), crash):
            self.durable_end = llsn
            assert self.store.written_end == llsn

    @rule(batches=st.integers(1, 4), gap=st.integers(0, 3))
    def commit(self, batches: int, gap: int) -> None:
        """The repository orders whole batches that this replica called durable."""
        begin = self.committed_end
        end = [end for end in self.ends if begin < end <= self.durable_end][:batches]
        if end:
            glsn = (self.rows[-1].glsn_end if self.rows else 1) + gap
            self.rows.append(row(begin, glsn, end[-1] - begin, len(self.rows) + 1, self.epoch))
            self.store.commit(self.rows[-1])

    @rule(crash=CRASH)
    def sync_rows(self, crash: int) -> None:
        if self.does(self.store.sync_rows, crash):
            self.rows_synced = self.committed_end
            assert self.store.rows_synced_end == self.rows_synced

    @rule(crash=CRASH, opened=st.booleans())
    def seal(self, crash: int, opened: bool) -> None:
        """A seal at the committed end, in a newer epoch; the tail is gone when it is acknowledged, and forever (law 6)."""
        self.epoch, self.sealed_end = self.epoch + 1, self.committed_end
        done = self.does(lambda: self.store.cut(Epoch(self.epoch), LLSN(self.sealed_end)), crash)
        if not done:  # the manager asks again
            self.store.cut(Epoch(self.epoch), LLSN(self.sealed_end))
        self.rows_synced = self.committed_end
        self.forget_tail(self.sealed_end)
        self.durable_end = self.sealed_end
        assert (self.store.written_end, self.store.epoch) == (self.sealed_end, self.epoch)
        if opened:
            self.store.open_epoch(Epoch(self.epoch))

    @rule(back=st.integers(0, 4), crash=CRASH)
    def trim(self, back: int, crash: int) -> None:
        if self.rows:
            glsn = max(self.trimmed, self.rows[-1].glsn_end - 1 - back)
            self.maybe_trimmed = glsn
            if self.does(lambda: self.store.trim(GLSN(glsn)), crash):
                self.trimmed = glsn

    @rule()
    def stop_and_start(self) -> None:
        self.store.sync_rows()
        self.rows_synced = self.committed_end
        self.store.close()
        self.recover()

    @rule()
    def lose_power(self) -> None:
        self.host.crash()
        self.recover()

    # --- what must hold ----------------------------------------------------------------------------------------------

    @invariant()
    def what_is_committed_is_readable_and_nothing_else(self) -> None:
        """R-CTX-2: a row that is there implies its entries, also after a crash."""
        store = self.store
        assert store.committed_end == self.committed_end
        assert store.trimmed == self.trimmed
        low = next((self.llsn_of(glsn) for glsn in self.ordered() if glsn > self.trimmed), self.committed_end)
        assert store.low_llsn == low
        assert read_all(store, 300) == {llsn: self.entries[llsn] for llsn in range(low, self.committed_end)}
        for llsn in range(low, self.committed_end):
            glsn = store.glsn_of(LLSN(llsn))
            assert self.llsn_of(glsn) == llsn == store.find(glsn)

    @invariant()
    def watermarks_agree(self) -> None:
        """R-CTX-1, R-CTX-3: version, high watermark and end are those of one row, also after a crash."""
        assert self.store.written_end >= self.durable_end
        last, expected = self.store.last_row, self.rows[-1] if self.rows else None
        assert (last is None) == (expected is None)
        if (
            last is not None and expected is not None
        ):  # rows of one sync are merged, so where it began may differ
            assert (last.version, last.high_watermark) == (expected.version, expected.high_watermark)
            assert (last.llsn_end, last.glsn_end) == (expected.llsn_end, expected.glsn_end)

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def committed_end(self) -> int:
        return self.rows[-1].llsn_end if self.rows else 1

    def ordered(self) -> list[int]:
        return [glsn for r in self.rows for glsn in range(r.glsn_begin, r.glsn_end)]

    def llsn_of(self, glsn: int) -> int:
        found = next(r for r in self.rows if r.glsn_begin <= glsn < r.glsn_end)
        return found.llsn_begin + glsn - found.glsn_begin

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

    def forget_tail(self, end: int) -> None:
        self.entries = {llsn: entry for llsn, entry in self.entries.items() if llsn < end}
        self.ends = [known for known in self.ends if known <= end]

    def recover(self) -> None:
        """Start again. What was promised is there; what was only tried may be, whole batches from the front."""
        store = self.store = self.opened()
        self.take_tail(store)
        assert self.rows_synced <= store.rows_synced_end == store.committed_end <= self.committed_end
        assert store.trimmed in (self.trimmed, self.maybe_trimmed)
        self.trimmed = self.maybe_trimmed = store.trimmed
        self.rows_synced = store.committed_end
        for ordered in self.rows:  # the repository sends the rows that this replica lacks
            if ordered.llsn_end > store.committed_end:
                store.commit(ordered.rest(max(0, store.committed_end - ordered.llsn_begin)))

    def opened(self) -> LogStore:
        return LogStore.open(self.host.boot(), DIRECTORY, segment_bytes=SEGMENT_BYTES)

    def take_tail(self, store: LogStore) -> None:
        """What was durable exists, and behind it whole batches or nothing."""
        # A batch of an epoch that was sealed since does not exist, even if its cut was never finished (law 6).
        certain = min(self.durable_end, self.sealed_end) if self.epoch > store.epoch else self.durable_end
        if (
            store.epoch == self.epoch
            and self.durable_end > self.sealed_end
            and store.written_end == self.sealed_end
        ):
            certain = self.sealed_end
        assert certain <= store.written_end and store.written_end in self.ends
        assert store.epoch in (self.epoch, self.epoch - 1)
        self.forget_tail(store.written_end)
        self.durable_end = store.written_end


def test_the_store_keeps_its_promises_over_crashes_at_any_point() -> None:
    """Laws 1, 3, 4, 5, 6, 9 on every history that hypothesis comes upon. R-CTX-5: judged by what the API promises, not by
    what the files look like."""
    run_state_machine_as_test(StoreMachine, settings=settings(stateful_step_count=30))
