"""Entries that were trimmed before they were ordered here: their rows and segments must not be missed after a restart."""

from __future__ import annotations

from pathlib import Path

import pytest

from varlog.model.batch import pack, place_batch
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import LogStreamID, ProducerID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.runtime.disk import OsDisk
from varlog.storage.committed import commit_store
from varlog.storage.committed.log_store import LogStore


def _batch(llsn: int) -> bytearray:
    batch = pack([b"x" * 100], producer=ProducerID(1), sequence=llsn, time_us=0)
    place_batch(batch, Epoch(1), LLSN(llsn))
    return batch


def _row(llsn: int, glsn: int) -> CommitRow:
    return CommitRow(llsn, GLSN(glsn), GLSN(glsn - 1), GLSN(glsn), LLSN(llsn), 1, Epoch(1))


def test_a_replica_that_was_behind_a_trim_opens_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-TRIM-1, law 9. The rows were compacted away up to the low LLSN in memory, and the state on disk had an older one:
    the next start called the replica damaged."""
    monkeypatch.setattr(commit_store, "_COMPACT_ROWS_MIN", 2)
    path = tmp_path / "lsid=1"
    store = LogStore.create(OsDisk(), path, topic=TopicID(1), log_stream=LogStreamID(1), segment_bytes=400)
    store.append([_batch(llsn) for llsn in range(1, 21)])
    store.commit(_row(1, 1))
    store.trim(GLSN(60))  # of the topic: most of this stream's entries below it are not ordered here yet
    for llsn in range(2, 21):
        store.commit(_row(llsn, 4 * llsn))
        store.sync_rows()
    assert (store.low_llsn, store.committed_end) == (16, 21)
    store.close()
    again = LogStore.open(OsDisk(), path, segment_bytes=400)
    assert (again.low_llsn, again.committed_end, again.trimmed) == (16, 21, 60)
    assert again.glsn_of(LLSN(16)) == 64
    again.trim(GLSN(70))
    again.close()
    last = LogStore.open(OsDisk(), path, segment_bytes=400)
    assert (last.low_llsn, last.rows_synced_end) == (18, 21)
    last.close()
