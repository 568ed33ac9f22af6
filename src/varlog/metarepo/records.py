"""Records: the value that the metadata store holds under each key, as bytes.

The format is versioned: the record `cluster` has the format version of all records.

        cluster               format version, cluster id and UUID, revision, ids assigned, addresses of manager and sequencers
    node/<id>             a storage node            \\
    topic/<id>            a topic                    >  the view
    stream/<id>           a log stream              /
        projection/<topic>    the projection of a sequenced topic
    reader/<topic>/<name> a named reader of a topic
    writer/<topic>/<name> a named writer of a topic
        base                  the order up to one cut: ends, high watermarks, and the rows that some replica may still lack
    cut/<version>         one cut after the base, as it was pushed
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import msgspec

from varlog.metarepo.membership.named import Key, Named
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering.commit_rules import Cut, TopicCut
from varlog.metarepo.store.base import DeleteItem, DeleteItems, PutItem, StoreChange
from varlog.model.cluster import ClusterView, LogStream, NamedReader, NamedWriter, StorageNode, Topic
from varlog.model.commit import CommitRow
from varlog.model.ids import NO_UUID, ClusterID, ClusterUUID, LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.projection import Projection, SequencerID, with_present_keys

# Formats 1 and 2 had other keys: see with_present_keys.
FORMAT_VERSION: Final = 3

CLUSTER: Final = "cluster"
BASE: Final = "base"
NODE, TOPIC, STREAM, CUT = "node/", "topic/", "stream/", "cut/"
READER, WRITER = "reader/", "writer/"
PROJECTION: Final = "projection/"


class ClusterRecord(msgspec.Struct, frozen=True):
    """The values that exist once per cluster. A field may be added, with a default."""

    format: int
    cluster: ClusterID
    revision: int
    next_topic: TopicID
    next_log_stream: LogStreamID
    unused: tuple[LogStreamID, ...] = ()
    manager_address: str = ""
    auto_create_topics: bool = False
    repositories: tuple[str, ...] = ()
    sequencers: tuple[SequencerID, ...] = ()
    uuid: ClusterUUID = NO_UUID
    foreign: tuple[tuple[LogStreamID, LogStreamID], ...] = ()
    terms_lost: int = 0


class StreamBase(msgspec.Struct, frozen=True, array_like=True):
    """How far one stream is ordered, and those of its rows that some replica has not synced."""

    log_stream: LogStreamID
    committed_end: LLSN
    rows: tuple[CommitRow, ...]


class BaseRecord(msgspec.Struct, frozen=True, array_like=True):
    """The order up to and including cut `version`."""

    version: int
    high_watermarks: tuple[tuple[TopicID, GLSN], ...]
    streams: tuple[StreamBase, ...]


class CutRecord(msgspec.Struct, frozen=True, array_like=True):
    """One cut."""

    version: int
    topics: tuple[tuple[TopicID, tuple[tuple[LogStreamID, CommitRow], ...]], ...]


_encoder = msgspec.msgpack.Encoder()
_cluster = msgspec.msgpack.Decoder(ClusterRecord)
_node = msgspec.msgpack.Decoder(StorageNode)
_topic = msgspec.msgpack.Decoder(Topic)
_stream = msgspec.msgpack.Decoder(LogStream)
_projection = msgspec.msgpack.Decoder(Projection)
_reader = msgspec.msgpack.Decoder(NamedReader)
_writer = msgspec.msgpack.Decoder(NamedWriter)
_base = msgspec.msgpack.Decoder(BaseRecord)
_cut = msgspec.msgpack.Decoder(CutRecord)


def cut_key(version: int) -> str:
    """The key of a cut. Keys sort in the order of their versions."""
    return f"{CUT}{version:020d}"


def put_cut(cut: Cut) -> PutItem:
    record = CutRecord(cut.version, tuple((part.topic, part.rows) for part in cut.topics))
    return PutItem(cut_key(cut.version), _encoder.encode(record))


def put_base(base: BaseRecord) -> list[StoreChange]:
    """The changes that replace the old base, and every cut that the new one covers."""
    return [PutItem(BASE, _encoder.encode(base)), DeleteItems(CUT, cut_key(base.version + 1))]


def base_of(items: dict[str, bytes]) -> BaseRecord:
    return _base.decode(items[BASE]) if BASE in items else BaseRecord(0, (), ())


def cuts_of(items: dict[str, bytes]) -> Iterator[Cut]:
    """The cuts after the base, oldest first."""
    for value in _values(items, CUT):
        record = _cut.decode(value)
        yield Cut(record.version, tuple(TopicCut(topic, rows) for topic, rows in record.topics))


def members_of(items: dict[str, bytes]) -> Members:
    record = _cluster.decode(items[CLUSTER])
    items = items | {change.key: change.value for change in migration(items)}
    view = ClusterView(
        record.cluster,
        record.revision,
        tuple(map(_node.decode, _values(items, NODE))),
        tuple(map(_topic.decode, _values(items, TOPIC))),
        tuple(map(_stream.decode, _values(items, STREAM))),
        record.manager_address,
        record.auto_create_topics,
        record.repositories,
        tuple(map(_projection.decode, _values(items, PROJECTION))),
        record.sequencers,
        record.uuid,
    )
    return Members(
        view,
        record.next_topic,
        record.next_log_stream,
        record.unused,
        record.foreign,
        record.terms_lost,
        Named(map(_reader.decode, _values(items, READER))),
        Named(map(_writer.decode, _values(items, WRITER))),
    )


def format_of(items: dict[str, bytes]) -> int:
    """The format version alone, which must be known before anything else is decoded."""
    fields = msgspec.msgpack.decode(items[CLUSTER])
    return int(fields["format"])


def migration(items: dict[str, bytes]) -> list[PutItem]:
    """The items of an earlier format that must be rewritten, without `cluster`; empty if the format is current."""
    if format_of(items) == FORMAT_VERSION:
        return []
    return [
        PutItem(key, _encoder.encode(with_present_keys(msgspec.msgpack.decode(value))))
        for key, value in items.items()
        if key.startswith((TOPIC, STREAM, PROJECTION))
    ]


def items_of(members: Members, base: BaseRecord) -> dict[str, bytes]:
    """All items that a store holds for this state."""
    nothing = Members(ClusterView(members.view.cluster, revision=0))
    changes = [*changes_between(nothing, members), *put_base(base)]
    return {change.key: change.value for change in changes if isinstance(change, PutItem)}


def put_cluster(members: Members) -> PutItem:
    return PutItem(CLUSTER, _encoder.encode(_cluster_of(members)))


def _cluster_of(members: Members) -> ClusterRecord:
    view = members.view
    return ClusterRecord(
        FORMAT_VERSION,
        view.cluster,
        view.revision,
        members.next_topic,
        members.next_log_stream,
        members.unused,
        view.manager_address,
        view.auto_create_topics,
        view.repositories,
        view.sequencers,
        view.uuid,
        members.foreign,
        members.terms_lost,
    )


def changes_between(before: Members, after: Members) -> list[StoreChange]:
    """The changes of the store that turn `before` into `after`."""
    if after is before or after == before:
        return []
    changes: list[StoreChange] = []
    if after.readers is not before.readers:
        changes += _renamed(READER, after.readers.differing(before.readers))
    if after.writers is not before.writers:
        changes += _renamed(WRITER, after.writers.differing(before.writers))
    if _cluster_of(before) != _cluster_of(after):
        changes.append(put_cluster(after))
    if before.view is not after.view:
        changes += _view_changes(before.view, after.view)
    return changes


def _view_changes(old: ClusterView, new: ClusterView) -> Iterator[StoreChange]:
    yield from _differing(
        NODE, [(found.node, found) for found in old.nodes], [(found.node, found) for found in new.nodes]
    )
    yield from _differing(
        TOPIC, [(found.topic, found) for found in old.topics], [(found.topic, found) for found in new.topics]
    )
    yield from _differing(
        STREAM,
        [(found.log_stream, found) for found in old.streams],
        [(found.log_stream, found) for found in new.streams],
    )
    yield from _differing(
        PROJECTION,
        [(found.topic, found) for found in old.projections],
        [(found.topic, found) for found in new.projections],
    )


def _renamed(
    prefix: str, differing: Iterable[tuple[Key, NamedReader | NamedWriter | None]]
) -> Iterator[StoreChange]:
    for (topic, name), value in differing:
        key = f"{prefix}{topic:010d}/{name}"
        yield DeleteItem(key) if value is None else PutItem(key, _encoder.encode(value))


T = TypeVar("T")


def _differing(
    prefix: str, before: Sequence[tuple[int, T]], after: Sequence[tuple[int, T]]
) -> Iterator[StoreChange]:
    old, new = dict(before), dict(after)
    for number, value in new.items():
        if number not in old or (old[number] is not value and old[number] != value):
            yield PutItem(f"{prefix}{number:010d}", _encoder.encode(value))
    for number in old:
        if number not in new:
            yield DeleteItem(f"{prefix}{number:010d}")


def _values(items: dict[str, bytes], prefix: str) -> list[bytes]:
    return [items[key] for key in sorted(items) if key.startswith(prefix)]
