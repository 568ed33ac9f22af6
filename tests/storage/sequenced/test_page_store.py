"""One log unit's store: pages by LLSN whatever their order of arrival, written once, kept over restarts, honest about damage."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.storage.helpers import STREAM, TOPIC, FailingDisk, Host, batch, files_of
from varlog.model.batch import Buffer, entries_of, junk, pack, parse_header, place_batch
from varlog.model.epoch import Epoch
from varlog.model.errors import CorruptBatch, CorruptReplica, Trimmed, Unavailable
from varlog.model.ids import LogStreamID, ProducerID
from varlog.model.invariant import InvariantBroken
from varlog.model.lsn import LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.disk_space import DiskSpace
from varlog.storage.segment_file import SegmentFile, index_path
from varlog.storage.sequenced import page_store
from varlog.storage.sequenced.page_segment import page_segment_path
from varlog.storage.sequenced.page_store import PageRef, PageStore
from varlog.storage.sequenced.sync_watermark import SYNCED_NAME, SyncWatermark, decode_slots
from varlog.storage.sequenced.unit_state import UNIT_NAME

SEGMENT_BYTES = 600
VOLUME = Path("/volume")


def new_unit(
    tmp_path: Path,
    *,
    disk: OsDisk | None = None,
    disk_space: DiskSpace | None = None,
    segment_bytes: int = SEGMENT_BYTES,
) -> PageStore:
    return PageStore.create(
        disk or OsDisk(synced=False),
        tmp_path / f"lsid={STREAM}",
        topic=TOPIC,
        log_stream=STREAM,
        segment_bytes=segment_bytes,
        disk_space=disk_space,
    )


def reopen(store: PageStore, *, segment_bytes: int = SEGMENT_BYTES) -> PageStore:
    store.close()
    return PageStore.open(OsDisk(synced=False), store.path, segment_bytes=segment_bytes)


def write(store: PageStore, *batches: Buffer) -> None:
    store.publish(store.append(batches))


def sized(first: int, count: int = 2) -> bytearray:
    """A batch of 176 bytes: three fit into a segment."""
    return batch(first, [b"x" * (100 // count)] * count)


def firsts(store: PageStore) -> list[int]:
    return [page.first_llsn for page in store.pages_from(LLSN(1), 1000)]


def entries(data: Buffer) -> list[bytes]:
    return entries_of(data, parse_header(data))


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_pages_are_found_by_llsn_whatever_their_order_of_arrival(tmp_path: Path) -> None:
    """From memory, and one read brings the bytes."""
    store = new_unit(tmp_path)
    for first in (1, 7, 3, 5):
        write(store, sized(first))
    assert firsts(store) == [1, 3, 5, 7]
    for llsn in range(1, 9):
        page = store.page(LLSN(llsn))
        assert page is not None and page.first_llsn <= llsn < page.end_llsn
        assert store.read([page]) == sized(page.first_llsn)
    assert store.page(LLSN(9)) is None
    assert store.read(store.run(LLSN(1), 10_000)) == b"".join(map(sized, (1, 3, 5, 7)))


def test_a_page_is_seen_only_when_it_is_published(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    pages = store.append([sized(1)])
    assert store.page(LLSN(1)) is None and store.newest == 0
    store.publish(pages)
    assert store.page(LLSN(1)) == pages[0] and store.newest == 2


def test_a_page_is_written_once(tmp_path: Path) -> None:
    """Law 8: the caller asks before; that it did is checked before a byte is written."""
    store = new_unit(tmp_path)
    write(store, sized(3))
    assert store.overlaps(LLSN(1), 2) is None and store.overlaps(LLSN(5), 9) is None
    for first, count in ((3, 1), (4, 1), (2, 2), (1, 9)):
        found = store.overlaps(LLSN(first), count)
        assert found is not None and found.first_llsn == 3
    before = files_of(store.path)
    for doubled in ([sized(4)], [sized(8), sized(9)]):
        with pytest.raises(InvariantBroken, match="law 8"):
            store.append(doubled)
    assert files_of(store.path) == before


def test_dense_end_is_the_first_hole_and_newest_the_last_entry(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    assert (store.low, store.newest, store.dense_end) == (1, 0, 1)
    for first, newest, dense_end in ((3, 4, 1), (7, 8, 1), (1, 8, 5), (5, 8, 9)):
        write(store, sized(first))
        assert (store.newest, store.dense_end) == (newest, dense_end)
    assert store.covers(LLSN(1), LLSN(9)) and not store.covers(LLSN(1), LLSN(10))


def test_a_run_ends_at_a_hole_or_when_it_is_long_enough(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    for first in (1, 3, 5, 9):
        write(store, sized(first))
    assert [page.first_llsn for page in store.run(LLSN(2), 10_000)] == [1, 3, 5]
    assert [page.first_llsn for page in store.run(LLSN(2), 400)] == [1, 3]
    assert [page.first_llsn for page in store.run(LLSN(2), 1)] == [1]
    assert store.run(LLSN(7), 10_000) == []
    assert [page.first_llsn for page in store.pages_from(LLSN(4), 10)] == [3, 5, 9]
    assert [page.first_llsn for page in store.pages_from(LLSN(4), 10, end=LLSN(9))] == [3, 5]
    assert [page.first_llsn for page in store.pages_from(LLSN(4), 10, bytes_max=200)] == [3]
    assert [page.first_llsn for page in store.pages_from(LLSN(7), 1)] == [9]


def test_a_buffer_may_hold_several_batches(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    write(store, sized(1) + sized(9) + sized(3), junk(LLSN(5), 2))
    assert firsts(store) == [1, 3, 5, 9]
    assert [page.is_junk for page in store.pages_from(LLSN(1), 9)] == [False, False, True, False]
    assert firsts(reopen(store)) == [1, 3, 5, 9]


def test_pages_side_by_side_are_one_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_unit(tmp_path, segment_bytes=1 << 20)
    for first in (1, 3, 7, 5):
        write(store, sized(first))
    reads: list[int] = []
    real = PageStore._read

    def noted(self: PageStore, page: PageRef, size: int) -> Buffer:
        reads.append(size)
        return real(self, page, size)

    monkeypatch.setattr(PageStore, "_read", noted)
    assert len(store.read(store.run(LLSN(1), 1 << 20))) == 4 * 176
    assert reads == [2 * 176, 176, 176]


def test_what_is_in_memory_is_read_without_waiting(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    write(store, sized(1), sized(3))
    pages = store.run(LLSN(1), 1000)
    cached = store.read_cached(pages)
    assert cached is None or bytes(cached) == bytes(store.read(pages))  # the kernel may have dropped it


# --- over restarts ----------------------------------------------------------------------------------------------------


def test_everything_written_is_found_after_a_restart(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    for first in (1, 7, 3, 5, 11, 13, 21):
        write(store, sized(first))
    store.set_epoch(Epoch(4))
    pages = store.pages_from(LLSN(1), 100)
    again = reopen(store)
    assert again.pages_from(LLSN(1), 100) == pages
    assert (again.epoch, again.topic, again.log_stream) == (4, TOPIC, STREAM)
    assert (again.newest, again.dense_end, again.bytes) == (store.newest, store.dense_end, 7 * 176)
    assert again.read(pages) == b"".join(sized(page.first_llsn) for page in pages)
    write(again, sized(9))
    assert firsts(reopen(again)) == [1, 3, 5, 7, 9, 11, 13, 21]


def test_opening_reads_no_closed_segment(tmp_path: Path) -> None:
    """Its sidecar describes its content: corruption in it is found by a read, or by the scrub."""
    store = new_unit(tmp_path)
    for first in range(1, 15, 2):
        write(store, sized(first))
    flip(page_segment_path(store.path, 1), 100)
    again = reopen(store)
    assert firsts(again) == list(range(1, 15, 2)) and again.corrupt_ranges == ()
    assert [(rot.begin, rot.end) for rot in again.examine(again.pages_from(LLSN(1), 100))] == [(1, 3)]


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_a_lost_sidecar_is_made_again(tmp_path: Path, how: str) -> None:
    store = new_unit(tmp_path)
    for first in (5, 3, 1, 7, 9):
        write(store, sized(first))
    store.close()
    sidecar = index_path(page_segment_path(store.path, 1))
    content = sidecar.read_bytes()
    sidecar.unlink() if how == "gone" else flip(sidecar, 40)
    assert firsts(reopen(store)) == [1, 3, 5, 7, 9]
    assert sidecar.read_bytes() == content


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_a_closed_segment_that_is_cut_between_two_batches_is_damaged(tmp_path: Path, batches: int) -> None:
    """What is left scans as whole: only the sidecar knows how long the segment was."""
    store = new_unit(tmp_path)
    for first in range(1, 15, 2):
        write(store, sized(first))
    store.close()
    with page_segment_path(store.path, 1).open("r+b") as file:
        file.truncate(batches * 176)
    with pytest.raises(CorruptReplica, match=f"it has {batches * 176} bytes, and was closed with 528"):
        PageStore.open(OsDisk(synced=False), store.path, segment_bytes=SEGMENT_BYTES)


def test_an_epoch_never_goes_back(tmp_path: Path) -> None:
    """Law 7."""
    store = new_unit(tmp_path)
    store.set_epoch(Epoch(3))
    store.set_epoch(Epoch(3))
    with pytest.raises(InvariantBroken, match="law 7"):
        store.set_epoch(Epoch(2))
    assert reopen(store).epoch == 3


def test_a_torn_tail_is_cut_and_never_comes_back(tmp_path: Path) -> None:
    """Of a group of three the second is torn: the third did not exist when the unit was opened, and does not later either."""
    host = Host(1)
    directory = VOLUME / f"lsid={STREAM}"
    store = PageStore.create(host.disk, directory, topic=TOPIC, log_stream=STREAM)
    write(store, sized(1))
    files = host.files(directory)
    write(store, sized(3), sized(5), sized(7))
    torn = dict(host.files(directory), **{SYNCED_NAME: files[SYNCED_NAME]})
    name = page_segment_path(directory, 1).name
    torn[name] = torn[name][: 2 * 176 + 100] + bytes(76) + torn[name][3 * 176 :]
    host.put(directory, torn)
    store = PageStore.open(host.disk, directory)
    assert firsts(store) == [1, 3]
    write(store, sized(5))  # as long as the one that was torn
    host.crash()
    assert firsts(PageStore.open(host.boot(), directory)) == [1, 3, 5]


def test_what_a_killed_process_wrote_and_did_not_sync_is_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law 1: bytes that can be read back may not be on the disk; a page that is shown after opening survives a power loss."""
    host = Host(2)
    directory = VOLUME / f"lsid={STREAM}"
    store = PageStore.create(host.disk, directory, topic=TOPIC, log_stream=STREAM)
    write(store, sized(1))
    monkeypatch.setattr(SegmentFile, "truncate_unsynced", lambda self: None)
    host.drive.fail_syncs = 1
    with pytest.raises(OSError):
        store.append([sized(3)])
    fresh = store.reopened()
    assert firsts(fresh) == [1, 3]
    host.crash()
    assert firsts(PageStore.open(host.boot(), directory)) == [1, 3]


# --- trim -------------------------------------------------------------------------------------------------------------


def test_a_trim_hides_what_is_below_and_removes_whole_segments(tmp_path: Path) -> None:
    """Law 9, also after a restart."""
    store = new_unit(tmp_path)
    for first in range(1, 21, 2):
        write(store, sized(first))
    old = store.pages_from(LLSN(1), 100)
    store.trim(LLSN(10))
    for opened in (store, reopen(store)):
        assert (opened.low, opened.newest, opened.dense_end) == (10, 20, 21)
        assert opened.page(LLSN(9)) is None and opened.run(LLSN(9), 100) == []
        assert firsts(opened) == [9, 11, 13, 15, 17, 19]  # LLSN 10 is in the batch that begins at 9
        names = [name for name in files_of(opened.path) if name.endswith(".seg")]
        assert names == [page_segment_path(opened.path, number).name for number in (2, 3, 4)]
    opened = reopen(store)
    with pytest.raises(Trimmed):
        opened.read(old[:1])
    with pytest.raises(Trimmed):
        opened.examine(old[:1])


def test_everything_may_be_trimmed_and_the_unit_continues_behind(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    for first in range(1, 9, 2):
        write(store, sized(first))
    store.trim(LLSN(100))
    for opened in (store, reopen(store)):
        assert (opened.low, opened.newest, opened.dense_end) == (100, 99, 100)
        assert firsts(opened) == []
    write(opened, sized(100))
    assert (opened.newest, opened.dense_end) == (101, 102)
    store = reopen(opened)
    store.trim(LLSN(50))  # an older one changes nothing
    assert (store.low, firsts(store)) == (100, [100])


def test_what_is_trimmed_may_lie_below_a_page_that_reaches_over_it(tmp_path: Path) -> None:
    """A crash left a page that the chain never had; a trim came, and the chain's own page, which begins below the trim point."""
    store = new_unit(tmp_path)
    write(store, batch(1, [b"never of the chain"]))
    store.trim(LLSN(2))
    write(store, batch(1, [b"a", b"b", b"c", b"d"]))
    store = reopen(store)
    (page,) = store.pages_from(LLSN(1), 9)
    assert entries(store.read([page])) == [b"a", b"b", b"c", b"d"]
    assert (store.low, store.dense_end) == (2, 5)


def test_two_pages_that_are_not_trimmed_never_overlap(tmp_path: Path) -> None:
    """Law 8: what no crash explains is damage."""
    store = new_unit(tmp_path)
    write(store, batch(1, [b"a", b"b"]), batch(3, [b"c"]))
    store.close()
    segment = page_segment_path(store.path, 1)
    content = segment.read_bytes()[: store.bytes]
    segment.write_bytes(content + bytes(batch(2, [b"z"])))
    with pytest.raises(CorruptReplica, match="written twice"):
        reopen(store)


def test_a_late_page_keeps_its_segment_and_those_behind_it(tmp_path: Path) -> None:
    """Segments are removed from the first on, so that a missing one is distinguished from a trimmed one."""
    store = new_unit(tmp_path)
    for first in (1, 99, 3, 5, 7, 9, 11):
        write(store, sized(first))
    store.trim(LLSN(11))
    assert [page.first_llsn for page in store.pages_from(LLSN(1), 9)] == [11, 99]
    assert len([name for name in files_of(store.path) if name.endswith(".seg")]) == 3
    assert firsts(reopen(store)) == [11, 99]


def test_a_reader_finishes_what_a_trim_has_removed(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    for first in range(1, 15, 2):
        write(store, sized(first))
    page = store.pages_from(LLSN(1), 1)[0]
    segment = store._segment(page)
    assert segment is not None
    held = segment.open()
    store.trim(LLSN(13))
    assert held.file.read_at(page.size, page.offset) == sized(1)


# --- damage -----------------------------------------------------------------------------------------------------------


def test_a_segment_that_was_removed_is_damage_and_not_trimmed(tmp_path: Path) -> None:
    """Law 9: what nobody trimmed is never said to be."""
    store = new_unit(tmp_path)
    write(store, *(sized(first) for first in range(1, 40, 2)))
    store = reopen(store)
    page_segment_path(store.path, 1).unlink()
    (page,) = store.pages_from(LLSN(1), 1)
    with pytest.raises(CorruptBatch, match="missing"):
        store.read([page])
    pages = store.pages_from(LLSN(1), 100)
    corrupt = store.examine(pages)
    assert corrupt and corrupt[0].begin == 1 and len(corrupt) < len(pages)
    store.close()


def test_corruption_in_what_was_synced_is_reported_and_never_cut(tmp_path: Path) -> None:
    """Law 10: the newest segment holds acknowledged pages, too; behind a rotten one they are still there."""
    store = new_unit(tmp_path)
    for first in (1, 3, 5):
        write(store, sized(first))
    store.close()
    flip(page_segment_path(store.path, 1), 176 + 100)
    again = PageStore.open(OsDisk(synced=False), store.path, segment_bytes=SEGMENT_BYTES)
    assert again.corrupt_ranges == ((3, 5),) and firsts(again) == [1, 3, 5]
    assert [(rot.begin, rot.end) for rot in again.examine(again.pages_from(LLSN(1), 9))] == [(3, 5)]


def damages(store: PageStore) -> list[tuple[str, bytes | None]]:
    """Files that no crash leaves so: a name and its new content, None is removed."""
    first, second = (page_segment_path(store.path, number) for number in (1, 2))
    content = second.read_bytes()
    return [
        (first.name, None),
        (second.name, None),
        (second.name, content[:100]),
        (second.name, b"\0" * 64 + content[64:]),
        (UNIT_NAME, None),
        (UNIT_NAME, bytes(64)),
        (page_segment_path(store.path, 4).name, b""),
        (page_segment_path(store.path, 3).name, content),
    ]


@pytest.mark.parametrize("number", range(8))
def test_what_no_crash_explains_is_damage_and_nothing_is_touched(tmp_path: Path, number: int) -> None:
    store = new_unit(tmp_path)
    for first in (1, 3, 5, 7):
        write(store, sized(first))
    store.close()
    name, content = damages(store)[number]
    path = store.path / name
    path.unlink() if content is None else path.write_bytes(content)
    before = files_of(store.path)
    with pytest.raises(CorruptReplica):
        PageStore.open(OsDisk(synced=False), store.path)
    assert files_of(store.path) == before


def test_a_renamed_unit_is_refused(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    store.close()
    other = store.path.rename(store.path.with_name("lsid=99"))
    with pytest.raises(CorruptReplica, match="renamed or copied"):
        PageStore.open(OsDisk(synced=False), other)


def test_a_read_detects_another_batch_at_its_position(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    write(store, sized(1))
    flip(page_segment_path(store.path, 1), 20)
    with pytest.raises(CorruptBatch):
        store.read(store.run(LLSN(1), 100))


def test_a_lost_mark_costs_nothing_but_certainty(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    for first in (1, 3, 5, 7):
        write(store, sized(first))
    store.close()
    (store.path / SYNCED_NAME).write_bytes(bytes(64))
    assert firsts(reopen(store)) == [1, 3, 5, 7]
    (store.path / SYNCED_NAME).unlink()
    assert firsts(reopen(store)) == [1, 3, 5, 7]


def no_mark(store: PageStore) -> None:
    (store.path / SYNCED_NAME).unlink()


def unreadable_mark(store: PageStore) -> None:
    flip(store.path / SYNCED_NAME, 20)
    flip(store.path / SYNCED_NAME, 52)


def garbage_at_the_start(path: Path) -> None:
    path.write_bytes(b"\xa5" * 64 + path.read_bytes()[64:])


def one_bit_of_a_body(path: Path) -> None:
    flip(path, 100)


@pytest.mark.parametrize("unmark", [no_mark, unreadable_mark])
@pytest.mark.parametrize("rot", [garbage_at_the_start, one_bit_of_a_body, Path.unlink])
def test_without_a_mark_rot_is_never_taken_for_a_torn_tail(
    tmp_path: Path, unmark: Callable[[PageStore], None], rot: Callable[[Path], None]
) -> None:
    """Law 10: no crash removes the mark. What it does not cover may be acknowledged, and readers would fill it with junk."""
    store = new_unit(tmp_path)
    for first in (1, 3, 5, 7):
        write(store, sized(first))
    store.close()
    unmark(store)
    rot(page_segment_path(store.path, 2))
    before = files_of(store.path)
    with pytest.raises(CorruptReplica):
        PageStore.open(OsDisk(synced=False), store.path, segment_bytes=SEGMENT_BYTES)
    assert files_of(store.path) == before


def test_one_slot_of_the_mark_is_enough_to_cut_a_torn_tail(tmp_path: Path) -> None:
    """A power loss may tear the slot that was being written: the other one is true."""
    store = new_unit(tmp_path)
    write(store, sized(1))
    store.confirm_sync()
    write(store, sized(3))
    mark = store.path / SYNCED_NAME
    slots = decode_slots(mark.read_bytes())
    flip(mark, 32 * slots.index(max(slot for slot in slots if slot is not None)) + 20)
    flip(page_segment_path(store.path, 1), 176 + 100)
    assert firsts(PageStore.open(OsDisk(synced=False), store.path)) == [1]


def test_a_mark_that_was_deleted_is_written_again_before_a_failed_unit_is_opened(tmp_path: Path) -> None:
    """Memory knows what was synced: the tail that a failed write left is cut, and is no damage."""
    disk = FailingDisk()
    store = new_unit(tmp_path, disk=disk)
    write(store, sized(1))
    disk.fail_next = "sync"
    with pytest.raises(OSError, match="sync failed"):
        store.append([sized(3)])
    no_mark(store)
    segment = page_segment_path(store.path, 1)
    segment.write_bytes(segment.read_bytes()[:176] + b"torn")
    assert firsts(store.reopened()) == [1]


def test_rot_in_the_state_is_put_right_from_memory(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    store.set_epoch(Epoch(3))
    assert store.scrub_metadata() == ""
    flip(store.path / UNIT_NAME, 30)
    assert "checksum" in store.scrub_metadata()
    assert store.scrub_metadata() == "" and reopen(store).epoch == 3


# --- failures -----------------------------------------------------------------------------------------------------------


def test_a_closed_segment_that_was_cut_while_its_index_was_gone_does_not_stop_the_scrub(
    tmp_path: Path,
) -> None:
    """The index is rebuilt from the segment; of one that is shorter than its pages the scan did not end."""
    store = new_unit(tmp_path)
    write(store, sized(1))
    while len(list(store.path.glob("*.seg"))) < 2:
        write(store, sized(store.dense_end))
    closed = page_segment_path(store.path, 1)
    index_path(closed).unlink(missing_ok=True)
    with closed.open("r+b") as file:
        file.truncate(closed.stat().st_size // 2)
    assert store.scrub_metadata() == ""
    assert not index_path(closed).exists(), "an index of half a segment would hide what is missing"


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_failed_write_or_sync_is_final(tmp_path: Path, kind: str) -> None:
    """Reads continue; only opening it again makes it writable."""
    disk = FailingDisk()
    store = new_unit(tmp_path, disk=disk)
    write(store, sized(1))
    disk.fail_next = kind
    with pytest.raises(OSError, match=f"{kind} failed"):
        store.append([sized(3)])
    for again in (lambda: store.append([sized(3)]), lambda: store.append([sized(9)]), store.confirm_sync):
        with pytest.raises(OSError, match=f"{kind} failed"):
            again()
    assert store.failure is not None
    assert entries(store.read(store.run(LLSN(1), 100))) == [b"x" * 50] * 2
    fresh = store.reopened()
    write(fresh, sized(3))
    assert firsts(fresh) == [1, 3]


def test_a_full_disk_is_no_failure_if_nothing_was_written(tmp_path: Path) -> None:
    """The same append comes again once there is room."""
    store = new_unit(tmp_path, segment_bytes=1 << 20)
    write(store, sized(1))
    disk = store._disk

    class Full(DiskSpace):
        def grant(self, needed_bytes: int, wanted_bytes: int) -> int:
            raise OSError(errno.ENOSPC, "the disk is full: free space")

    real, store.disk_space = store.disk_space, Full(disk, tmp_path)
    store._segments[-1]._reserved = store._segments[-1].size
    with pytest.raises(OSError, match="free space"):
        store.append([sized(3)])
    assert store.failure is None
    store.disk_space = real
    write(store, sized(3))
    assert firsts(reopen(store)) == [1, 3]


def test_a_full_disk_in_the_middle_of_a_group_is_a_failure(tmp_path: Path) -> None:
    """A part of the group is on disk: whether it counts is known only after opening it again."""
    disk = FailingDisk()
    store = new_unit(tmp_path, disk=disk)
    write(store, sized(1))

    def full_for_the_next_segment(needed_bytes: int, wanted_bytes: int) -> int:
        if len(store._segments) > 1:
            raise OSError(errno.ENOSPC, "the disk is full")
        return wanted_bytes

    store.disk_space.grant = full_for_the_next_segment  # type: ignore[method-assign]
    with pytest.raises(OSError, match="full"):
        store.append([sized(3), sized(5), sized(7)])
    assert store.failure is not None and firsts(store) == [1]
    del store.disk_space.grant
    assert firsts(store.reopened()) == [1, 3, 5]


def test_a_closed_store_refuses_calls_with_that_reason(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    write(store, sized(1))
    pages = store.run(LLSN(1), 100)
    store.close()
    store.close()
    with pytest.raises(Unavailable):
        store.read(pages)
    with pytest.raises(Unavailable):
        store.examine(pages)


def test_a_unit_is_made_where_nothing_is(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    with pytest.raises(FileExistsError):
        PageStore.create(OsDisk(), store.path, topic=TOPIC, log_stream=LogStreamID(3))


# --- places and times ---------------------------------------------------------------------------------------------------


def test_a_range_is_measured_from_memory(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    for first in (1, 3, 9, 5):
        write(store, sized(first))
    assert store.measure(LLSN(1), LLSN(100), 1).bytes == 4 * 176
    measured = store.measure(LLSN(1), LLSN(100), 100)
    assert measured.points == ((3, 176), (5, 352), (9, 528))
    assert store.measure(LLSN(4), LLSN(6), 9).bytes == 2 * 176
    assert store.measure(LLSN(7), LLSN(9), 9) == store.measure(LLSN(50), LLSN(50), 9)
    assert store.measure(LLSN(7), LLSN(9), 9).bytes == 0


def timed(first: int, time_us: int, count: int = 2) -> bytearray:
    made = pack([b"x"] * count, producer=ProducerID(1), sequence=1, time_us=time_us)
    place_batch(made, Epoch(1), LLSN(first))
    return made


def test_the_place_of_a_time_is_found_over_holes_and_junk(tmp_path: Path) -> None:
    store = new_unit(tmp_path)
    assert store.find_time(0) == 1
    for first, time_us in ((1, 100), (3, 200), (11, 400), (5, 300)):
        write(store, timed(first, time_us))
    write(store, junk(LLSN(7), 2))
    write(store, junk(LLSN(13), 3))
    found = {time_us: store.find_time(time_us) for time_us in (0, 100, 101, 200, 250, 300, 301, 400, 401)}
    assert found == {0: 1, 100: 1, 101: 3, 200: 3, 250: 5, 300: 5, 301: 11, 400: 11, 401: 16}
    store.trim(LLSN(4))
    assert store.find_time(0) == 4


def test_every_time_is_found_as_a_plain_search_finds_it(tmp_path: Path, seed: int) -> None:
    host = Host(seed)
    store = new_unit(tmp_path, segment_bytes=1 << 20)
    times: list[tuple[int, int]] = []
    first = 1
    for number in range(60):
        first += host.rng.choice((0, 0, 0, 1, 5))
        count = host.rng.randint(1, 4)
        if host.rng.random() < 0.2:
            write(store, junk(LLSN(first), count))
        else:
            times.append((first, number // 3))
            write(store, timed(first, number // 3, count))
        first += count
    for time_us in range(22):
        expected = next((llsn for llsn, at in times if at >= time_us), store.newest + 1)
        assert store.find_time(time_us) == expected


# --- bounds -------------------------------------------------------------------------------------------------------------


def test_few_files_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_store, "_OPEN_SEGMENTS_MAX", 2)
    store = new_unit(tmp_path)
    for first in range(1, 61, 2):
        write(store, sized(first))
    store = reopen(store)
    pages: Sequence[PageRef] = store.pages_from(LLSN(1), 100)
    assert store.read(pages) == b"".join(sized(page.first_llsn) for page in pages)
    assert sum(segment.opened() is not None for segment in store._segments) <= 3


def test_the_mark_is_synced_periodically_and_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between, a power loss brings an older mark back: true as well."""
    monkeypatch.setattr("varlog.storage.sequenced.sync_watermark.SYNC_MARKS", 3)
    store = new_unit(tmp_path)
    sure = []
    for first in range(1, 13, 2):
        write(store, sized(first))
        sure.append(store._mark.is_sure)
    assert sure == [False, False, True, False, False, True]
    write(store, sized(13))
    store.confirm_sync()
    assert store._mark.is_sure
    assert isinstance(store._mark, SyncWatermark)
