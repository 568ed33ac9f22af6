"""What is on disk: the committed entries of a replica, read from its files."""

from __future__ import annotations

from collections.abc import Iterator

from varlog.model.batch import check_body, entries_of, walk
from varlog.model.limits import MIB
from varlog.storage.log_store import LogStore
from varlog.testing.history import StoredEntry


def stored_entries(store: LogStore) -> Iterator[StoredEntry]:
    """Every committed entry, checked against its checksum, with the header of its batch."""
    llsn = store.low_llsn
    while llsn < store.committed_end:
        chunk = store.read(store.extent(llsn, MIB))
        for at, header in walk(chunk.data):
            check_body(chunk.data, header, at)
            batch = (
                header.epoch,
                header.first_llsn,
                header.producer,
                header.sequence,
                header.time_us,
                header.body_crc,
            )
            for index, data in enumerate(entries_of(chunk.data, header, at)):
                mine = header.first_llsn + index
                if llsn <= mine < store.committed_end:
                    yield StoredEntry(mine, store.glsn_of(type(llsn)(mine)), batch, data)
        llsn = chunk.end_llsn
