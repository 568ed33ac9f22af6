"""One replica under real threads: appends, trims and row syncs in a worker while the loop commits and readers read."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.helpers import batch, chunk_entries, new_store, row
from varlog.model.errors import Trimmed
from varlog.model.lsn import GLSN, LLSN
from varlog.storage.committed.log_store import LogStore

BATCHES = 1500


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def entry(llsn: int) -> bytes:
    return f"{llsn}:".encode() * (1 + llsn % 30)


def writer(store: LogStore, committed: threading.Event, errors: list[BaseException]) -> None:
    """The replica's worker: groups of batches, rolled every few; rows synced and old entries trimmed in between."""
    try:
        llsn = 1
        while llsn <= BATCHES:
            group = [batch(llsn + n, [entry(llsn + n)]) for n in range(1 + llsn % 7)]
            store.append(group)
            llsn += len(group)
            while store.committed_end < llsn - 100:
                time.sleep(0)  # the loop's part must keep up, or there is nothing to trim
            if llsn % 5 == 0:
                store.sync_rows()
            if llsn % 40 == 0 and store.high_watermark > 200:
                store.trim(GLSN(store.high_watermark - 200))
    except BaseException as error:  # noqa: BLE001 - reported to the test
        errors.append(error)
    finally:
        committed.set()


def reader(store: LogStore, done: threading.Event, errors: list[BaseException], seen: list[int]) -> None:
    """A read worker: everything below the committed end, from the oldest on, again and again."""
    try:
        llsn = LLSN(1)
        while not (done.is_set() and llsn >= store.committed_end):
            if llsn >= store.committed_end:
                continue
            try:
                extent = store.extent(llsn, 3000)
                chunk = store.read_cached(extent) or store.read(extent)
            except Trimmed:
                llsn = store.low_llsn
                continue
            for at, found in chunk_entries(chunk).items():
                assert found == entry(at)
            seen[0] += chunk.end_llsn - llsn
            llsn = chunk.end_llsn
    except BaseException as error:  # noqa: BLE001 - reported to the test
        errors.append(error)


def test_readers_see_right_bytes_or_the_word_trimmed_while_everything_moves(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=5000)
    errors: list[BaseException] = []
    written, done, seen = threading.Event(), threading.Event(), [0]
    threads = [
        threading.Thread(target=writer, args=(store, written, errors), daemon=True),
        threading.Thread(target=reader, args=(store, done, errors, seen), daemon=True),
        threading.Thread(target=reader, args=(store, done, errors, [0]), daemon=True),
    ]
    for thread in threads:
        thread.start()
    version = 0
    while not (written.is_set() and store.committed_end == store.written_end):
        end = store.written_end
        if (
            end > store.committed_end
        ):  # the loop's part: order what is written, every third GLSN is another stream's
            version += 1
            count = end - store.committed_end
            store.commit(row(store.committed_end, store.high_watermark + 1 + version % 3, count, version))
            llsn = LLSN(end - 1)
            assert store.find(store.glsn_of(llsn)) == llsn
            low = store.low_llsn  # once: a trim moves it
            assert sum(n for _, _, n in store.rows_between(low, end)) == end - low
    done.set()
    for thread in threads:
        thread.join()
    assert errors == []
    assert seen[0] > 0 and store.committed_end > BATCHES and store.trimmed > 0
