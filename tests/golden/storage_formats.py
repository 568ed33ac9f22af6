"""The bytes of every file format of the storage.

Made from fixed values. Run it to write missing files:

    python -m tests.golden.storage_formats

It never changes a file that exists: a released format is read back forever. A new format version gets new names here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.storage.helpers import batch, row
from varlog.model.batch import junk
from varlog.model.cluster import ClusterView, LogStream, Ordering, StorageNode, StreamState, Topic
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, ClusterUUID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe
from varlog.storage.cluster_file import encode_cluster
from varlog.storage.committed.index import SparseIndex
from varlog.storage.committed.row_file import (
    ROW_TYPE,
    encode_end_mark,
    encode_row,
    encode_row_file,
    encode_row_header,
)
from varlog.storage.committed.state_file import ReplicaStateFile, encode_state
from varlog.storage.identity import Identity, encode_identity, fingerprint
from varlog.storage.sequenced.page_index import PageRef
from varlog.storage.sequenced.sidecar import encode_pages, encode_sidecar
from varlog.storage.sequenced.sync_watermark import Synced, encode_slot
from varlog.storage.sequenced.unit_state import UnitStateFile, encode_unit
from varlog.storage.view_copy import ViewCopy, encode_view_copy

HERE = Path(__file__).parent

ENTRIES = [b"hello", b"", b"\x00\xff" * 5]
STATE = ReplicaStateFile(TopicID(7), LogStreamID(3), Epoch(5), True, LLSN(21), GLSN(40), LLSN(11))
ROWS = [row(1, 1, 10, version=2), row(11, 15, 2, version=3, epoch=4), row(13, 17, 1, version=9, epoch=5)]
POINTS = [(1001, 0, 100), (1004, 100, 4096), (1005, 4196, 70), (1007, 9000, 70)]
UNIT = UnitStateFile(TopicID(7), LogStreamID(3), Epoch(5), LLSN(11), 4)
PAGES = [
    PageRef(LLSN(1004), 1, 88, 0x01020304, 4, 0),
    PageRef(LLSN(1001), 3, 104, 0xFFFFFFFF, 4, 88),
    PageRef(LLSN(1005), 2, 80, 0, 4, 192, True),
]
MARKS = (Synced(3, 1000), Synced(4, 272))
UUID = ClusterUUID("01234567-89ab-4cde-8f01-23456789abcd")
VIEW_COPY = ViewCopy(
    3,
    ClusterView(
        ClusterID(1),
        12,
        (StorageNode(NodeID(2), "n2:7110", ("/a",)),),
        (Topic(TopicID(7), "orders", trimmed=GLSN(40)), Topic(TopicID(8), "bills", Ordering.SEQUENCED)),
        (
            LogStream(LogStreamID(3), TopicID(7), (NodeID(2),), StreamState.RUNNING, Epoch(5), LLSN(21)),
            LogStream(LogStreamID(4), TopicID(8), (NodeID(2),), StreamState.RUNNING),
        ),
        "m:7101",
        projections=(
            Projection(
                TopicID(8),
                Epoch(2),
                GLSN(1),
                (Range(GLSN(1), (Stripe(LogStreamID(4)),), 16),),
                (Chain(LogStreamID(4), (NodeID(2),)),),
                SequencerID("s:7113", 77),
            ),
        ),
        uuid=UUID,
    ),
    TopicID(9),
    LogStreamID(12),
    (LogStreamID(11),),
    ((LogStreamID(5), LogStreamID(11)),),
)
IDENTITY = Identity(
    cluster=ClusterID(1),
    node=NodeID(2),
    node_key="00112233445566778899aabbccddeeff",
    cluster_key_fingerprint=fingerprint(ClusterID(1), "secret"),
    cluster_uuid=UUID,
)


def index() -> SparseIndex:
    made = SparseIndex(LLSN(1001))
    for llsn, offset, size in POINTS:
        made.add(LLSN(llsn), offset, size)
    return made


def segment_file() -> bytes:
    return bytes(batch(1, ENTRIES) + batch(4, [b"second"], epoch=2))


def page_segment_file() -> bytes:
    """Pages of a log unit in the order of their arrival; the middle one is junk."""
    return bytes(batch(4, [b"second"], epoch=2) + junk(LLSN(5), 2) + batch(1, ENTRIES))


def row_file() -> bytes:
    """As it is written: two rows in one sync, one in the next."""
    rows = [encode_row(ROWS[0], 0), encode_row(ROWS[1], 0), encode_row(ROWS[2], 2)]
    return encode_row_header(TopicID(7), LogStreamID(3)) + b"".join(rows) + encode_end_mark(3)


def compacted_row_file() -> bytes:
    fields = [
        (
            r.version,
            r.high_watermark,
            r.previous_high_watermark,
            r.glsn_begin,
            r.llsn_begin,
            r.count,
            0,
            r.epoch,
            0,
        )
        for r in ROWS
    ]
    return encode_row_file(TopicID(7), LogStreamID(3), np.array(fields, ROW_TYPE))


FILES: dict[str, Callable[[], bytes]] = {
    "batch_v1.bin": lambda: bytes(batch(1, ENTRIES)),
    "segment_v1.seg": segment_file,
    "sidecar_v1.idx": lambda: index().encode(LLSN(1010), 9070),
    "commits_v1.log": row_file,
    "commits_compacted_v1.log": compacted_row_file,
    "commits_begun_v1.log": lambda: encode_row_file(
        TopicID(7), LogStreamID(3), np.zeros(0, ROW_TYPE), LLSN(1234)
    ),
    "state_v1.bin": lambda: encode_state(STATE),
    "unit_v1.bin": lambda: encode_unit(UNIT),
    "page_segment_v1.seg": page_segment_file,
    "page_sidecar_v1.idx": lambda: encode_sidecar(4, 272, encode_pages(PAGES)),
    "synced_v1.bin": lambda: b"".join(map(encode_slot, MARKS)),
    "identity_v2.json": lambda: encode_identity(IDENTITY),
    "cluster_v1.bin": lambda: encode_cluster(UUID),
    # view_copy_v1.bin is from before a topic could be stopped, view_copy_v1_stopped.bin from before one could wait for nodes,
    # view_copy_v1_missed.bin from before one knew the terms of its epochs: the view grows by fields with a default. Version 1 had
    # the stripe size under the key `unit`, versions 1 and 2 the mark of a stream that an operator sealed under `held`.
    "view_copy_v3.bin": lambda: encode_view_copy(VIEW_COPY),
}


def main() -> None:
    for name, make in FILES.items():
        path = HERE / name
        if path.exists():
            print(f"{name} is there already and stays as it is")
        else:
            path.write_bytes(make())
            print(f"{name} written: add it to the repository")


if __name__ == "__main__":
    main()
