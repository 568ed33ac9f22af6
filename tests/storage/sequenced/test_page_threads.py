"""One log unit under real threads: appends and trims in a worker while the loop publishes and looks, and readers read."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from tests.storage.helpers import STREAM, TOPIC, batch
from varlog.model.batch import check_body, entries_of, walk
from varlog.model.errors import Trimmed
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.sequenced.page_store import PageRef, PageStore

PAGES = 1200
# How far the writer may be ahead of what is published: a late publisher must still find trimmed pages.
LEAD_MAX = 100


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def entry(llsn: int) -> bytes:
    return f"{llsn}:".encode() * (1 + llsn % 30)


def write(store: PageStore, written: SimpleQueue[list[PageRef] | None], published: Callable[[], int]) -> None:
    """The unit's worker: groups that come out of order within a window; now and then a trim."""
    rng = random.Random(7)
    waiting: list[int] = []
    given = 1
    while given <= PAGES or waiting:
        while given <= PAGES and len(waiting) < 12:
            waiting.append(given)
            given += 1
        rng.shuffle(waiting)
        group, waiting = waiting[:4], waiting[4:]
        written.put(store.append([batch(llsn, [entry(llsn)]) for llsn in group]))
        while given - published() > LEAD_MAX:
            time.sleep(0)
        if rng.random() < 0.1 and published() > 300:
            store.trim(LLSN(published() - 200))
    written.put(None)


def read(store: PageStore, done: threading.Event, seen: list[int]) -> None:
    """A read worker: runs from the low end on, again and again."""
    llsn = LLSN(1)
    while not (done.is_set() and llsn > PAGES):
        pages = store.run(llsn, 2000)
        if not pages:
            llsn = max(llsn, store.low)
            continue
        try:
            data = store.read_cached(pages) or store.read(pages)
            store.examine(pages[:2])
        except Trimmed:
            llsn = store.low
            continue
        for at, header in walk(data):
            check_body(data, header, at)
            assert entries_of(data, header, at) == [entry(header.first_llsn)]
        store.measure(LLSN(1), LLSN(PAGES), 5)
        seen[0] += len(pages)
        llsn = pages[-1].end_llsn


def test_readers_see_right_bytes_or_the_word_trimmed_while_everything_moves(tmp_path: Path) -> None:
    store = PageStore.create(
        OsDisk(synced=False),
        tmp_path / f"lsid={STREAM}",
        topic=TOPIC,
        log_stream=STREAM,
        segment_bytes=5000,
    )
    written: SimpleQueue[list[PageRef] | None] = SimpleQueue()
    done, seen, errors = threading.Event(), [0], []

    def run(action: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                action()
            except BaseException as error:  # noqa: BLE001 - reported to the test
                errors.append(error)
                written.put(None)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    threads = [
        run(lambda: write(store, written, lambda: store.dense_end)),
        run(lambda: read(store, done, seen)),
        run(lambda: read(store, done, [0])),
    ]
    while (pages := written.get(timeout=60)) is not None:
        store.publish(pages)
        low = store.low
        found = store.pages_from(low, PAGES)
        assert [page.first_llsn for page in found] == sorted(page.first_llsn for page in found)
        for page in pages:
            assert page.end_llsn <= low or store.page(page.first_llsn) in (page, None)
    done.set()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert (store.newest, store.dense_end) == (PAGES, PAGES + 1)
    assert seen[0] > 0 and store.low > 1
