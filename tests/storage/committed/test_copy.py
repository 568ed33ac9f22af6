"""What a sync moves: read from a sealed store, checked, put into another one; and stores that begin behind what was trimmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.helpers import (
    STREAM,
    TOPIC,
    Host,
    batch,
    commit_all,
    fill,
    new_store,
    raised,
    read_all,
    reopen,
    row,
)
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, CorruptReplica, NotWritten, Trimmed
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed import copy
from varlog.storage.committed.copy import Copy, CorruptCopy, read_copy, runs_of
from varlog.storage.committed.log_store import LogStore
from varlog.testing.sim.core.loop import ProcessCrashed

DIRECTORY = Path(f"/volume/lsid={STREAM}")
SEGMENT_BYTES = 700


def sealed_source(tmp_path: Path, *, batches: int = 12, gap: int = 3) -> LogStore:
    """Entries of epochs 2 and 3, ordered in runs with gaps between them (another stream's), sealed in epoch 4."""
    store = new_store(tmp_path / "source", segment_bytes=SEGMENT_BYTES)
    store.cut(Epoch(2), LLSN(1))
    glsn = 1
    for number in range(batches):
        if number == batches // 2:
            store.cut(Epoch(3), store.committed_end)
        entries = [f"{number}.{i}".encode() * 9 for i in range(1 + number % 3)]
        fill(store, [entries], epoch=store.epoch)
        commit_all(store, glsn, version=number + 1)
        glsn += len(entries) + gap * (number % 2)
    store.cut(Epoch(4), store.committed_end)
    return store


def rows_of(store: LogStore) -> list[CommitRow]:
    return store.rows_from(max(store.low_llsn, LLSN(1)), 10_000)


def copy_into(source: LogStore, store: LogStore, *, bytes_max: int = 400, stop_after: int = 1_000) -> None:
    """What a destination does with the answers, as far as the store is concerned."""
    if source.trimmed > store.trimmed:
        store.trim(source.trimmed)
    for _ in range(stop_after):
        if source.low_llsn > store.committed_end:
            found = read_copy(source, source.low_llsn, bytes_max)
            store.begin_at(found.rows[0].llsn_begin if found.rows else found.next_llsn)
        found = read_copy(source, store.committed_end, bytes_max)
        if not found.rows:
            return
        take(store, found)


def take(store: LogStore, found: Copy) -> None:
    for run in runs_of(found.rows, found.data):
        if store.written_end > store.committed_end and store.tail_epoch != run.epoch:
            store.cut_tail()
        if run.epoch != store.tail_epoch:
            store.sync_rows()
        if data := run.data_from(store.written_end):
            store.append([data])
        for ordered in run.rows:
            if ordered.llsn_end > store.committed_end:
                store.commit(ordered.rest(max(0, store.committed_end - ordered.llsn_begin)))


def same(source: LogStore, store: LogStore) -> None:
    """Law 3: the same entries at the same places; law 9: the same trimmed."""
    assert (store.low_llsn, store.committed_end, store.trimmed) == (
        source.low_llsn,
        source.committed_end,
        source.trimmed,
    )
    assert read_all(store, 300) == read_all(source, 300)
    assert [store.glsn_of(LLSN(at)) for at in range(store.low_llsn, store.committed_end)] == [
        source.glsn_of(LLSN(at)) for at in range(source.low_llsn, source.committed_end)
    ]
    assert raised(lambda: store.glsn_of(LLSN(store.low_llsn - 1))).__class__ is Trimmed


@pytest.mark.parametrize("bytes_max", [1, 300, 1 << 20])
def test_a_copy_is_whole_batches_and_the_rows_that_order_exactly_them(tmp_path: Path, bytes_max: int) -> None:
    """R-SYNC-3: version, watermarks and epoch of every commit context come along."""
    source = sealed_source(tmp_path)
    llsn, copied = LLSN(1), []
    while (found := read_copy(source, llsn, bytes_max)).rows:
        runs = runs_of(found.rows, found.data)
        assert runs[0].begins[0][0] == llsn == found.rows[0].llsn_begin
        assert runs[-1].end_llsn == found.next_llsn == found.rows[-1].llsn_end
        copied += [r for run in runs for r in run.rows]
        llsn = found.next_llsn
    assert llsn == source.committed_end
    contexts = {r.llsn_begin: r for r in rows_of(source)}
    for r in copied:
        begin = max(known for known in contexts if known <= r.llsn_begin)
        assert (r.version, r.epoch) == (contexts[begin].version, contexts[begin].epoch)
        assert r.glsn_begin - r.llsn_begin == contexts[begin].glsn_begin - contexts[begin].llsn_begin
    assert {r.epoch for r in copied} == {2, 3}


def test_few_rows_at_a_time_bound_the_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of one copy fit into one message, however small the batches are."""
    source = sealed_source(tmp_path)
    monkeypatch.setattr(copy, "COPY_ROWS_MAX", 2)
    found = read_copy(source, LLSN(1), 1 << 20)
    assert 1 <= len(found.rows) <= 2
    assert runs_of(found.rows, found.data)[-1].end_llsn == found.rows[-1].llsn_end == found.next_llsn


def test_a_destination_ends_up_equal_and_so_it_is_after_a_restart(tmp_path: Path) -> None:
    source = sealed_source(tmp_path)
    store = new_store(tmp_path / "copy", segment_bytes=SEGMENT_BYTES)
    store.set_epoch(Epoch(4), source.sealed_end)
    copy_into(source, store)
    store.cut(Epoch(4), source.sealed_end)
    same(source, store)
    assert rows_of(store)[-1] == rows_of(source)[-1]
    same(source, reopen(store, segment_bytes=SEGMENT_BYTES))


def test_what_the_source_has_trimmed_is_neither_copied_nor_readable_ever(tmp_path: Path) -> None:
    """R-SYNC-3, law 9: the trim point lies in the middle of a batch; the copy begins with that batch."""
    source = sealed_source(tmp_path)
    source.trim(GLSN(source.glsn_of(LLSN(12))))
    assert source.low_llsn == 13
    store = new_store(tmp_path / "copy", segment_bytes=SEGMENT_BYTES)
    store.set_epoch(Epoch(4), source.sealed_end)
    copy_into(source, store)
    same(source, store)
    assert min(read_all(store)) == 13
    again = reopen(store, segment_bytes=SEGMENT_BYTES)
    assert again.rows_synced_end == again.committed_end or again.committed_end < source.committed_end
    copy_into(source, again)
    same(source, again)
    again.cut(Epoch(4), source.sealed_end)
    again.open_epoch(Epoch(4))
    fill(again, [[b"new"]], epoch=4)
    commit_all(again)
    assert read_all(again)[source.committed_end] == b"new"


def test_a_source_of_which_everything_is_trimmed_is_copied_too(tmp_path: Path) -> None:
    source = sealed_source(tmp_path)
    source.trim(source.high_watermark)
    store = new_store(tmp_path / "copy", segment_bytes=SEGMENT_BYTES)
    store.set_epoch(Epoch(4), source.sealed_end)
    copy_into(source, store)
    assert (store.low_llsn, store.committed_end, store.written_end) == (source.sealed_end,) * 3
    store = reopen(store)
    assert (store.low_llsn, store.committed_end, store.trimmed) == (
        source.sealed_end,
        source.sealed_end,
        source.trimmed,
    )
    assert isinstance(raised(lambda: store.glsn_of(LLSN(1))), Trimmed)
    assert isinstance(raised(lambda: store.glsn_of(store.committed_end)), NotWritten)


def test_a_replica_that_was_trimmed_completely_meanwhile_restarts_behind_the_trim(tmp_path: Path) -> None:
    """It was away while the stream continued and was trimmed: its data is trimmed, and the copy continues behind."""
    source = sealed_source(tmp_path)
    store = new_store(tmp_path / "copy", segment_bytes=SEGMENT_BYTES)
    store.set_epoch(Epoch(4), source.sealed_end)
    copy_into(source, store, stop_after=2)
    assert 1 < store.committed_end < 13
    source.trim(GLSN(source.glsn_of(LLSN(15))))
    copy_into(source, store)
    same(source, store)
    store.sync_rows()
    same(source, reopen(store, segment_bytes=SEGMENT_BYTES))


def test_the_tail_is_of_one_epoch_and_known_after_opening(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    fill(store, [[b"a"], [b"b"]])
    commit_all(store)
    store.cut(Epoch(4), store.committed_end)
    fill(store, [[b"c"]], epoch=4)
    assert store.tail_epoch == 4
    assert reopen(store).tail_epoch == 4


def test_a_stale_tail_is_cut_without_touching_the_seal(tmp_path: Path) -> None:
    store = new_store(tmp_path, segment_bytes=SEGMENT_BYTES)
    fill(store, [[b"a" * 200], [b"b" * 200]])
    commit_all(store)
    fill(store, [[b"c" * 300], [b"d" * 300], [b"e" * 300]])
    store.set_epoch(Epoch(5), LLSN(9))
    store.cut_tail()
    assert (store.written_end, store.committed_end, store.epoch, store.sealed_end) == (3, 3, 5, 9)
    store = reopen(store, segment_bytes=SEGMENT_BYTES)
    assert (store.written_end, store.committed_end, store.epoch, store.sealed_end) == (3, 3, 5, 9)


@pytest.mark.parametrize("damage", ["body", "gap", "rows short", "rows long", "epoch", "row gap"])
def test_what_does_not_fit_together_is_refused_whole(damage: str) -> None:
    data = batch(5, [b"a", b"b"]) + batch(7, [b"c"]) + batch(8, [b"d"])
    rows = [row(5, 10, 2), row(7, 12, 2)]
    assert [run.end_llsn for run in runs_of(rows, data)] == [9]
    if damage == "body":
        data[80] ^= 1
    elif damage == "gap":
        data = batch(5, [b"a", b"b"]) + batch(8, [b"d"])
    elif damage == "rows short":
        rows = rows[:1]
    elif damage == "rows long":
        rows = [*rows, row(9, 20, 1)]
    elif damage == "epoch":
        rows = [rows[0], row(7, 12, 2, epoch=2)]
    else:
        rows = [row(5, 10, 1), row(7, 12, 2)]
    with pytest.raises(CorruptBatch):
        runs_of(rows, data)


def test_a_corrupt_source_reports_that_and_sends_nothing(tmp_path: Path) -> None:
    """A bad checksum is never served."""
    source = sealed_source(tmp_path)
    segment = min((tmp_path / "source").rglob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[90] ^= 0x40
    segment.write_bytes(content)
    with pytest.raises(CorruptCopy) as rotten:
        read_copy(source, LLSN(1), 400)
    assert rotten.value.begin == 1
    assert rotten.value.end > 1


def test_rows_lost_in_an_ordinary_replica_are_damage_as_before(tmp_path: Path) -> None:
    """A row file that says nothing of a later beginning must reach the trim point."""
    store = sealed_source(tmp_path)
    store.trim(GLSN(store.glsn_of(LLSN(12))))
    store.close()
    rows = store.path / "commits.log"
    fresh = new_store(tmp_path / "other")
    rows.write_bytes((fresh.path / "commits.log").read_bytes())
    with pytest.raises(CorruptReplica):
        LogStore.open(OsDisk(synced=False), store.path)


def filled_host(seed: int) -> tuple[Host, LogStore]:
    """An empty destination on a disk that crashes."""
    host = Host(seed)
    store = LogStore.create(host.disk, DIRECTORY, topic=TOPIC, log_stream=STREAM, segment_bytes=SEGMENT_BYTES)
    store.cut(Epoch(1), LLSN(1))
    return host, store


def opened_at_last(host: Host, operations: int) -> LogStore:
    """Opened by a process that may crash in its turn, and then by another one."""
    host.boot()
    host.crash_in(operations)
    try:
        store = LogStore.open(host.disk, DIRECTORY, segment_bytes=SEGMENT_BYTES)
        host.disk.crash_at = None
        return store
    except ProcessCrashed:
        return LogStore.open(host.boot(), DIRECTORY, segment_bytes=SEGMENT_BYTES)


@pytest.mark.parametrize("trimmed", [0, 12, 1000], ids=["nothing trimmed", "half trimmed", "all trimmed"])
@pytest.mark.parametrize("stale", [False, True], ids=["empty", "stale tail"])
def test_a_crash_at_every_disk_operation_of_a_destination_leaves_a_copy_that_can_resume(
    tmp_path: Path, trimmed: int, stale: bool
) -> None:
    """R-SYNC-3: whichever operation is the last, the replica opens, holds a part of the source, and the copy resumes there."""
    source = sealed_source(tmp_path)
    if trimmed:
        last = min(trimmed, source.committed_end - 1)
        source.trim(GLSN(source.glsn_of(LLSN(last))))
    operation, crashed = 0, True
    while crashed:
        operation += 1
        crashed = False
        for seed in range(6):
            host, store = filled_host(seed)
            if stale:
                fill(store, [[b"stale" * 30], [b"tail" * 50]], [[b"more" * 99]])
            store.set_epoch(Epoch(4), source.sealed_end)
            host.crash_in(operation)
            try:
                copy_into(source, store)
                store.cut(Epoch(4), source.sealed_end)
                host.disk.crash_at = None
            except ProcessCrashed:
                crashed = True
                store = opened_at_last(host, operations=1 + seed)
                assert store.epoch == 4
                held = read_all(store, 300)
                assert held.items() <= read_all(source, 300).items()
                copy_into(source, store)
                store.cut(Epoch(4), source.sealed_end)
            same(source, store)
            host.crash()
            same(source, LogStore.open(host.boot(), DIRECTORY, segment_bytes=SEGMENT_BYTES))
    assert operation > 5, "the copy takes several operations"
