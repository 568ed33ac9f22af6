"""The bytes of every record in the metadata store, of every format version ever released: readable forever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from varlog.metarepo import records
from varlog.metarepo.membership.named import Named
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_rules import Cut, TopicCut
from varlog.metarepo.records import BaseRecord, StreamBase
from varlog.metarepo.state import load_state
from varlog.metarepo.store.base import DeleteItem, DeleteItems, PutItem
from varlog.model.cluster import (
    ClusterView,
    LogStream,
    NamedReader,
    NamedWriter,
    StorageNode,
    StreamState,
    Topic,
    changed,
)
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Chain, Projection, Range, SequencerID, Stripe

ROW = CommitRow(7, GLSN(300), GLSN(200), GLSN(201), LLSN(41), 100, Epoch(3))
MEMBERS = Members(
    ClusterView(
        ClusterID(5),
        9,
        (StorageNode(NodeID(1), "n1:7110", ("/a", "/b")),),
        (Topic(TopicID(2), "orders", trimmed=GLSN(10)),),
        (LogStream(LogStreamID(3), TopicID(2), (NodeID(1),), StreamState.RUNNING, Epoch(4), LLSN(8)),),
        "m:7101",
        True,
    ),
    TopicID(3),
    LogStreamID(6),
    (LogStreamID(4), LogStreamID(5)),
)
READER = NamedReader(TopicID(2), "spark nightly", GLSN(120), 1_700_000_000_000_000)
WRITER = NamedWriter(
    TopicID(2), "ingest-ü", 4, GLSN(120), (LogStreamID(3),), True, True, 1_700_000_000_000_000
)
NAMED = replace(MEMBERS, readers=Named([READER]), writers=Named([WRITER]))
CUT = Cut(7, (TopicCut(TopicID(2), ((LogStreamID(3), ROW),)),))
BASE = BaseRecord(6, ((TopicID(2), GLSN(200)),), (StreamBase(LogStreamID(3), LLSN(41), (ROW,)),))


def _written() -> dict[str, bytes]:
    empty = Members(ClusterView(ClusterID(5), 1))
    changes = [*records.changes_between(empty, MEMBERS), *records.put_base(BASE), records.put_cut(CUT)]
    return {change.key: change.value for change in changes if isinstance(change, PutItem)}


GOLDEN = {
    "cluster": (
        "88a6666f726d617401a7636c757374657205a87265766973696f6e09aa6e6578745f746f70696303"
        "af6e6578745f6c6f675f73747265616d06a6756e75736564920405af6d616e616765725f61646472"
        "657373a66d3a37313031b26175746f5f6372656174655f746f70696373c3"
    ),
    "node/0000000001": "83a46e6f646501a761646472657373a76e313a37313130a7766f6c756d657392a22f61a22f62",
    "topic/0000000002": (
        "84a5746f70696302a46e616d65a66f7264657273a86f72646572696e67a9636f6d6d6974746564a77472696d6d65640a"
    ),
    "stream/0000000003": (
        "86aa6c6f675f73747265616d03a5746f70696302a87265706c696361739101a57374617465a77275"
        "6e6e696e67a565706f636804aa7365616c65645f656e6408"
    ),
    "base": "9306919202ccc891930329919707cd012cccc8ccc9296403",
    "cut/00000000000000000007": "92079192029192039707cd012cccc8ccc9296403",
}
# Records that have grown since, each by fields with a default: as they were before there were sequenced topics, and as they are
# written today.
GROWN = {
    "cluster": (
        "89a6666f726d617401a7636c757374657205a87265766973696f6e09aa6e6578745f746f70696303af6e6578745f6c6f675f7374"
        "7265616d06a6756e75736564920405af6d616e616765725f61646472657373a66d3a37313031b26175746f5f6372656174655f74"
        "6f70696373c3ac7265706f7369746f7269657390"
    ),
    "topic/0000000002": (
        "85a5746f70696302a46e616d65a66f7264657273a86f72646572696e67a9636f6d6d6974746564a77472696d6d65640a"
        "a5666972737401"
    ),
    "stream/0000000003": (
        "87aa6c6f675f73747265616d03a5746f70696302a87265706c696361739101a57374617465a77275"
        "6e6e696e67a565706f636804aa7365616c65645f656e6408a468656c64c2"
    ),
}

GROWN_AGAIN = GROWN | {
    "cluster": (
        "8aa6666f726d617401a7636c757374657205a87265766973696f6e09aa6e6578745f746f70696303af6e6578745f6c6f675f7374"
        "7265616d06a6756e75736564920405af6d616e616765725f61646472657373a66d3a37313031b26175746f5f6372656174655f74"
        "6f70696373c3ac7265706f7369746f7269657390aa73657175656e6365727390"
    ),
    "topic/0000000002": (
        "87a5746f70696302a46e616d65a66f7264657273a86f72646572696e67a9636f6d6d6974746564a77472696d6d65640aa5666972"
        "737401a4756e6974cd1000a867726f7570696e67a673747265616d"
    ),
}

# With the cluster's UUID, and the ids that were passed over.
WITH_UUID = GROWN_AGAIN | {
    "cluster": "8c" + GROWN_AGAIN["cluster"][2:] + "a475756964a0a7666f726569676e90",
}


GROWN_THRICE = WITH_UUID | {
    "cluster": (
        "8da6666f726d617401a7636c757374657205a87265766973696f6e09aa6e6578745f746f70696303af6e6578745f6c6f675f7374"
        "7265616d06a6756e75736564920405af6d616e616765725f61646472657373a66d3a37313031b26175746f5f6372656174655f74"
        "6f70696373c3ac7265706f7369746f7269657390aa73657175656e6365727390a475756964a0a7666f726569676e90aa7465726d"
        "735f6c6f737400"
    ),
    "topic/0000000002": (
        "89a5746f70696302a46e616d65a66f7264657273a86f72646572696e67a9636f6d6d6974746564a77472696d6d65640aa5666972"
        "737401a4756e6974cd1000a867726f7570696e67a673747265616da773746f70706564a0a56b6e6f776e00"
    ),
}
# Topics also say which nodes are missed.
WITH_MISSED = GROWN_THRICE | {
    "topic/0000000002": "8a" + GROWN_THRICE["topic/0000000002"][2:] + b"\xa6missed\x90".hex(),
}


# Of sequenced topics: the newest epoch that a node knows, and the terms in which projections were made.
WITH_TERMS = WITH_MISSED | {
    "topic/0000000002": "8c"
    + WITH_MISSED["topic/0000000002"][2:]
    + b"\xabknown_epoch\x00\xa5terms\x90".hex(),
}


def format_2(written: dict[str, str]) -> dict[str, str]:
    """Format 1 had the stripe size of topics and ranges under the key `unit`."""
    old, new = b"\xa4unit".hex(), b"\xabstripe_size".hex()
    return {
        key: value.replace(b"\xa6format\x01".hex(), b"\xa6format\x02".hex()).replace(old, new)
        for key, value in written.items()
    }


def format_3(written: dict[str, str]) -> dict[str, str]:
    """Formats 1 and 2 had the mark of a log stream that an operator sealed under the key `held`, and the members that a chain is
    without under `away`."""
    keys = (
        (b"\xa6format\x02", b"\xa6format\x03"),
        (b"\xa4held", b"\xafsealed_by_admin"),
        (b"\xa4away", b"\xabout_of_sync"),
    )
    found = format_2(written)
    for old, new in keys:
        found = {key: value.replace(old.hex(), new.hex()) for key, value in found.items()}
    return found


FORMATS = {1: lambda written: written, 2: format_2, 3: format_3}


def test_format_3_is_written_as_ever() -> None:
    assert {key: value.hex() for key, value in _written().items()} == format_3(GOLDEN | WITH_TERMS)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_earlier_format_is_written_again_when_it_is_loaded(version: int) -> None:
    written = GOLDEN | WITH_TERMS | {"projection/0000000004": SEQUENCED_GOLDEN["projection/0000000004"]}
    written = {key: value for key, value in written.items() if key != "base" and not key.startswith("cut/")}
    items = {key: bytes.fromhex(value) for key, value in FORMATS[version](written).items()}
    state, first = load_state(items, MEMBERS.view.cluster, "memory")
    assert state.view.projections == (PROJECTION,) and state.view.streams == MEMBERS.view.streams
    after = items | {change.key: change.value for change in first if isinstance(change, PutItem)}
    assert {key: value.hex() for key, value in after.items()} == format_3(written)
    assert load_state(after, MEMBERS.view.cluster, "memory")[1] == []


@pytest.mark.parametrize(
    "written",
    [
        GOLDEN,
        GOLDEN | GROWN,
        GOLDEN | GROWN_AGAIN,
        GOLDEN | WITH_UUID,
        GOLDEN | GROWN_THRICE,
        GOLDEN | WITH_MISSED,
        GOLDEN | WITH_TERMS,
    ],
    ids=["first", "grown", "grown again", "with a UUID", "grown thrice", "with missed nodes", "with terms"],
)
@pytest.mark.parametrize("version", FORMATS)
def test_every_format_is_read_as_ever(written: dict[str, str], version: int) -> None:
    items = {key: bytes.fromhex(value) for key, value in FORMATS[version](written).items()}
    assert records.format_of(items) == version
    assert records.members_of(items) == MEMBERS
    assert records.base_of(items) == BASE
    assert list(records.cuts_of(items)) == [CUT]


# Readers and writers came later: a store without them has none.
NAMED_GOLDEN = {
    "reader/0000000002/spark nightly": (
        "84a5746f70696302a46e616d65ad737061726b206e696768746c79a8706f736974696f6e78aa7570"
        "64617465645f7573cf00060a24181e4000"
    ),
    "writer/0000000002/ingest-ü": (
        "88a5746f70696302a46e616d65a9696e676573742dc3bca5626174636804a5626567696e78a77374"
        "7265616d739103a866696e6973686564c3a46b657074c3aa757064617465645f7573cf00060a2418"
        "1e4000"
    ),
}


def test_readers_and_writers_are_written_and_read_as_ever() -> None:
    changes = records.changes_between(MEMBERS, NAMED)
    written = {change.key: change.value.hex() for change in changes if isinstance(change, PutItem)}
    assert written == NAMED_GOLDEN, "nothing but they themselves: the view is not written for them"
    items = {key: bytes.fromhex(value) for key, value in (GOLDEN | GROWN | NAMED_GOLDEN).items()}
    assert records.members_of(items) == NAMED


def test_a_reader_that_is_forgotten_leaves_no_key() -> None:
    assert records.changes_between(NAMED, MEMBERS) == [DeleteItem(key) for key in NAMED_GOLDEN]


# Projections and sequencers came later still.
SEQUENCER = SequencerID("s:7113", 77)
PROJECTION = Projection(
    TopicID(4),
    Epoch(3),
    GLSN(11),
    (
        Range(GLSN(1), (Stripe(LogStreamID(6)),), 16),
        Range(GLSN(11), (Stripe(LogStreamID(6), LLSN(11)), Stripe(LogStreamID(7))), 16),
    ),
    (
        Chain(LogStreamID(6), (NodeID(1),), (NodeID(2),)),
        Chain(LogStreamID(7), (NodeID(1), NodeID(2))),
    ),
    SEQUENCER,
)
SEQUENCED = replace(MEMBERS, view=changed(MEMBERS.view, projections=(PROJECTION,), sequencers=(SEQUENCER,)))
SEQUENCED_GOLDEN = {
    "cluster": (
        "8aa6666f726d617401a7636c757374657205a87265766973696f6e09aa6e6578745f746f70696303af6e6578745f6c6f675f7374"
        "7265616d06a6756e75736564920405af6d616e616765725f61646472657373a66d3a37313031b26175746f5f6372656174655f74"
        "6f70696373c3ac7265706f7369746f7269657390aa73657175656e636572739182a761646472657373a6733a37313133ab696e63"
        "61726e6174696f6e4d"
    ),
    "projection/0000000004": (
        "86a5746f70696304a565706f636803a5626567696e0ba672616e6765739283a5626567696e01a7737472697065739182aa6c6f67"
        "5f73747265616d06a46261736501a4756e69741083a5626567696e0ba7737472697065739282aa6c6f675f73747265616d06a462"
        "6173650b82aa6c6f675f73747265616d07a46261736501a4756e697410a6636861696e739283aa6c6f675f73747265616d06a56e"
        "6f6465739101a461776179910283aa6c6f675f73747265616d07a56e6f646573920102a46177617990a973657175656e63657282"
        "a761646472657373a6733a37313133ab696e6361726e6174696f6e4d"
    ),
}


def test_projections_and_sequencers_are_written_and_read_as_ever() -> None:
    changes = records.changes_between(MEMBERS, SEQUENCED)
    written = {change.key: change.value.hex() for change in changes if isinstance(change, PutItem)}
    assert written == format_3(
        SEQUENCED_GOLDEN
        | {
            "cluster": "8d"
            + SEQUENCED_GOLDEN["cluster"][2:]
            + "a475756964a0a7666f726569676e90aa7465726d735f6c6f737400"
        }
    )
    items = {key: bytes.fromhex(value) for key, value in (GOLDEN | SEQUENCED_GOLDEN).items()}
    assert records.members_of(items) == SEQUENCED
    assert DeleteItem("projection/0000000004") in records.changes_between(SEQUENCED, MEMBERS)


def test_a_new_base_takes_the_place_of_the_cuts_it_covers() -> None:
    assert records.put_base(BASE)[1] == DeleteItems("cut/", "cut/00000000000000000007")


@pytest.mark.parametrize(("low", "high"), [(9, 10), (99, 100), (2**31, 2**32), (2**62, 2**63 - 1)])
def test_keys_of_cuts_sort_as_their_versions(low: int, high: int) -> None:
    assert records.cut_key(low) < records.cut_key(high)
