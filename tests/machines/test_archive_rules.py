"""The rules of an archive against plain sets of positions: nothing is lost, nothing comes twice, nothing is trimmed too early."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from varlog.model.errors import PreconditionFailed
from varlog.spark.archive.archive_rules import (
    ArchiveCommit,
    ArchivedFile,
    Contents,
    check_same_topic,
    files_between,
    files_of_range,
    leftovers,
    next_range,
    range_name,
    slice_groups,
    slices,
    split_read,
    trim_point,
)


def commit(
    begin: int, end: int, files: int = 1, *, cluster: int = 5, topic: int = 3, name: str = "orders"
) -> ArchiveCommit:
    bounds = [begin + (end - begin) * number // files for number in range(files + 1)]
    directory = f"topic={name}/{range_name(begin, end, '0' * 16)}"
    made = tuple(
        ArchivedFile(f"{directory}/part-{low}", low, high, 10, low * 10, high * 10 - 1)
        for low, high in pairwise(bounds)
    )
    return ArchiveCommit(cluster, topic, name, begin, end, 10 * files, begin * 10, end * 10 - 1, 0, made)


def contents(*bounds: int) -> Contents:
    return Contents(tuple(commit(begin, end) for begin, end in pairwise(bounds)))


def positions(part: tuple[int, int]) -> set[int]:
    return set(range(*part))


def test_every_position_of_a_read_comes_from_one_place_or_is_reported_missing(seed: int) -> None:
    random = Random(seed)
    for _ in range(300):
        first = random.randint(1, 30)
        archive = Contents() if random.random() < 0.2 else contents(first, first + random.randint(1, 30))
        oldest = random.randint(first, 70)
        begin, end = random.randint(1, 70), random.randint(1, 90)
        archived = positions((archive.begin, archive.end)) if archive else set()
        wanted = positions((begin, end))
        found = split_read(begin, end, archive, oldest)
        missing = set().union(*(positions(gap) for gap in found.missing))
        live = positions(found.live)
        assert positions(found.archived) == wanted & archived
        assert live == {at for at in wanted if at >= oldest} - archived
        assert missing == wanted - archived - live


def test_a_log_that_is_whole_needs_no_archive() -> None:
    assert split_read(1, 10, contents(5, 8), 1) == split_read(1, 10, Contents(), 1)


def test_ranges_follow_each_other_until_nothing_is_left(seed: int) -> None:
    random = Random(seed)
    begin, newest, records_max = random.randint(1, 50), random.randint(0, 200), random.randint(1, 40)
    at, written = begin, set[int]()
    while (found := next_range(at, newest, records_max, rest=True)) is not None:
        assert found[0] == at and found[1] - at <= records_max
        written |= positions(found)
        at = found[1]
    assert written == positions((begin, max(begin, newest + 1)))


def test_only_whole_ranges_are_written_unless_the_rest_is_asked_for() -> None:
    assert next_range(1, 9, 10, rest=False) is None
    assert next_range(1, 10, 10, rest=False) == (1, 11)
    assert next_range(1, 9, 10, rest=True) == (1, 10)
    assert next_range(10, 9, 10, rest=True) is None


@pytest.mark.parametrize(("bytes_", "files"), [(0, 1), (1, 1), (100, 1), (101, 2), (1000, 10), (10**9, 50)])
def test_a_range_has_files_of_about_the_size_asked_for(bytes_: int, files: int) -> None:
    assert files_of_range(1, 51, bytes_, 100) == files


def test_a_trim_leaves_what_is_not_archived_kept_or_not_read(seed: int) -> None:
    random = Random(seed)
    for _ in range(200):
        archived_end, newest, keep = random.randint(1, 50), random.randint(0, 50), random.randint(0, 50)
        readers = [random.randint(0, 50) for _ in range(random.randint(0, 3))]
        trimmed = random.randint(0, 20)
        gone = positions((1, (trim_point(archived_end, newest, keep, readers, trimmed) or trimmed) + 1))
        fresh = gone - positions((1, trimmed + 1))
        assert fresh <= positions((1, archived_end))
        assert not fresh & positions((newest - keep + 1, newest + 1))
        assert all(fresh <= positions((1, read + 1)) for read in readers)


def test_as_much_is_trimmed_as_may_be() -> None:
    assert trim_point(100, 200, 0, [], 0) == 99
    assert trim_point(100, 120, 50, [], 0) == 70
    assert trim_point(100, 120, 0, [40, 60], 0) == 40
    assert trim_point(100, 120, 0, [40, 60], 40) is None


def test_directories_of_dead_attempts_are_leftovers_once_their_positions_are_committed() -> None:
    late, ahead = range_name(1, 11, "1" * 16), range_name(11, 21, "2" * 16)
    names = [range_name(1, 11, "0" * 16), late, ahead, "foreign-file"]
    assert leftovers(names, contents(1, 11)) == [late]
    assert leftovers(names, contents(1, 11, 21)) == [late, ahead]
    assert leftovers(names, Contents()) == []


def test_files_are_chosen_by_positions_and_times() -> None:
    files = commit(1, 41, 4).files
    begins = [file.begin for file in files_between(files, 11, 31)]
    assert begins == [11, 21]
    assert [file.begin for file in files_between(files, 1, 41, 210, None)] == [21, 31]
    assert [file.begin for file in files_between(files, 1, 41, None, 110)] == [1]
    assert [file.begin for file in files_between(files, 1, 41, 199, 200)] == [11]


def test_tasks_read_every_wanted_row_once_in_pieces_of_about_the_size_asked_for(seed: int) -> None:
    random = Random(seed)
    for _ in range(100):
        files = [
            ArchivedFile(f"{begin}", begin, end, random.randint(1, 500), 0, 0)
            for begin, end in pairwise(sorted(random.sample(range(1, 300), 8)))
        ]
        begin, end = sorted(random.sample(range(1, 320), 2))
        piece_bytes, partitions_min, records_max = (
            random.randint(50, 400),
            random.randint(0, 6),
            random.choice((0, 7)),
        )
        wanted = slices(files, begin, end)
        found = slice_groups(wanted, piece_bytes, partitions_min=partitions_min, records_max=records_max)
        rows = [at for piece in found for part in piece for at in range(part.begin, part.end)]
        assert rows == [at for at in range(begin, end) if files[0].begin <= at < files[-1].end]
        assert all(
            part.file.begin <= part.begin < part.end <= part.file.end for piece in found for part in piece
        )
        assert not records_max or all(sum(part.rows for part in piece) <= records_max for piece in found)
        assert all(len(piece) == 1 or sum(part.bytes for part in piece) <= piece_bytes for piece in found)
        if wanted and partitions_min and len(rows) > 50:
            assert len(found) >= partitions_min


def test_a_manifest_with_a_gap_is_refused() -> None:
    with pytest.raises(PreconditionFailed, match="commit 2 of the manifest begins at 21, not at 11"):
        Contents((commit(1, 11), commit(21, 31)))
    with pytest.raises(PreconditionFailed, match="another topic"):
        Contents((commit(1, 11), commit(11, 31, name="payments")))
    whole = commit(1, 11, 2)
    with pytest.raises(PreconditionFailed, match="do not hold positions 1 to 10"):
        Contents((ArchiveCommit(5, 3, "orders", 1, 11, 10, 1, 1, 0, whole.files[:1]),))


@pytest.mark.parametrize(
    ("cluster", "topic", "name", "message"),
    [
        (5, 3, "payments", "an archive of topic 'orders', not of 'payments'"),
        (6, 3, "orders", "of cluster 5, and the log is of cluster 6"),
        (5, 4, "orders", "deleted and recreated"),
    ],
)
def test_an_archive_of_another_log_is_refused(cluster: int, topic: int, name: str, message: str) -> None:
    check_same_topic(contents(1, 11), 5, 3, "orders")
    check_same_topic(Contents(), cluster, topic, name)
    with pytest.raises(PreconditionFailed, match=message):
        check_same_topic(contents(1, 11), cluster, topic, name)
