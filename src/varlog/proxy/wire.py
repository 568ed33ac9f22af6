"""JSON of every request and response, as pydantic models for OpenAPI."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, model_validator

from varlog.model.cluster import Grouping, Ordering
from varlog.model.limits import BATCH_ENTRIES_MAX, REPLICAS_MAX

# The largest position in a request's JSON: up to here every JSON parser keeps integers exact (RFC 8259).
JSON_POSITION_MAX = 2**53 - 1

GlsnField = Annotated[int, Field(ge=0)]


class Strict(BaseModel):
    """A request: unknown fields are refused, so that a misspelt name is not ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _whole_numbers(cls, value: Any) -> Any:
        """7.0 is the number 7 in JSON, however it was written."""
        if not isinstance(value, dict):
            return value
        return {name: _whole(field) for name, field in value.items()}


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


class Encoding(StrEnum):
    """How the bytes of an entry are rendered in JSON."""

    AUTO = "auto"
    TEXT = "text"
    BASE64 = "base64"
    JSON = "json"


class EntryEncoding(StrEnum):
    """How the bytes of this entry are rendered."""

    TEXT = "text"
    BASE64 = "base64"
    JSON = "json"


class TextEntry(Strict):
    """An entry that is a text in UTF-8."""

    text: str


class Base64Entry(Strict):
    """An entry of any bytes, in base64."""

    base64: str = Field(pattern=r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$")


class JsonEntry(Strict):
    """An entry that is a JSON value, stored as it was written."""

    json_value: Any = Field(alias="json", description="Any JSON value.")


class AppendRequest(Strict):
    """Entries to append as one atomic batch: all or none, at consecutive positions."""

    entries: list[TextEntry | Base64Entry | JsonEntry] = Field(min_length=1)


class Appended(BaseModel):
    """The positions of a batch: `count` consecutive ones, from `glsn` on in the topic and from `llsn` on in the log stream."""

    topic: str
    log_stream: int
    glsn: GlsnField
    llsn: GlsnField
    count: int = Field(ge=1)


class EntryOut(BaseModel):
    """One entry. `encoding` says what `data` is: the text, base64 of the bytes, or the JSON value that the bytes are."""

    glsn: GlsnField
    llsn: GlsnField
    log_stream: int
    timestamp: datetime = Field(description="When it was appended, by the clock of its appender.")
    data: Any
    encoding: EntryEncoding


class EntryPage(BaseModel):
    """Entries in total order. Continue with `from=next`; there is nothing more for now once `next` is above `tail`."""

    entries: list[EntryOut]
    next: GlsnField
    tail: GlsnField


class TopicTail(BaseModel):
    """The newest and the oldest position of a topic; `oldest` is above `newest` while there is nothing to read."""

    topic: str
    newest: GlsnField
    oldest: GlsnField


class TrimRequest(Strict):
    """Delete every entry at or below `until`, irreversibly. Without `force` no named reader loses what it has not read."""

    until: int = Field(ge=1, le=JSON_POSITION_MAX)
    force: bool = False


# --- status: one JSON document with everything that the dashboard shows ---------------------------------------------------


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)


class LatencyMs(_Answer):
    """Milliseconds. Null where nothing was appended lately, or until two samples exist."""

    p50: float | None
    p99: float | None


class Rates(_Answer):
    """Per second, over about the last second. All null until the proxy has two samples. `append_entries_per_s` counts new positions
    of all topics. Bytes and latency are counted by the storage nodes. Latency is the time from a batch's arrival at the primary to
    its acknowledgement; of a sequenced topic, the time of one write at the head of its chain."""

    append_entries_per_s: float | None
    append_bytes_per_s: float | None
    read_entries_per_s: float | None
    read_bytes_per_s: float | None
    append_latency_ms: LatencyMs


class NodeOut(_Answer):
    """A storage node. `unreachable_s`: how long it has not answered; `reason`: why it counts as unreachable.
    `suspected`: a client could not use it lately. `leased`: it may answer for its log units (sequenced topics); null
    where it has none, or does not answer. `stored_bytes`, `replica_count`, `replicas_max`, `started_at` and the rates
    are null where it does not answer. `write_latency_ms`: the mean time of a write with its sync in the last seconds,
    null where there were too few; `slow`: it takes several times as long as those of the other nodes.
    `foreign_log_streams`: log streams whose data on this node belong to another cluster."""

    node: int
    address: str
    alive: bool
    unreachable_s: float
    suspected: bool
    leased: bool | None
    disk_full: bool
    volumes: list[str]
    stored_bytes: int | None
    replica_count: int | None
    replicas_max: int | None
    started_at: str | None
    append_entries_per_s: float | None
    append_bytes_per_s: float | None
    read_entries_per_s: float | None
    read_bytes_per_s: float | None
    reason: str = ""
    write_latency_ms: float | None = None
    slow: bool = False
    foreign_log_streams: list[int] = []


class TopicOut(_Answer):
    """A topic. `oldest` and `newest`: the first and last position that can be read; an empty one has `newest` = `oldest` - 1. Null
    where it is not known now. `stopped_reason`: why nothing is ordered in it, empty where entries are ordered: a storage node knows
    more of its order than the metadata repository. `remedy`: what an operator does about it."""

    name: str
    topic_id: int
    ordering: str = Field(description="committed or sequenced")
    log_stream_ids: list[int]
    first: int
    oldest: int | None
    newest: int | None
    append_entries_per_s: float | None
    stopped_reason: str = ""
    remedy: str = ""


class SyncOut(_Answer):
    """A replica that is being copied from another node, or was."""

    state: str = Field(description="in progress, complete or error")
    source_node: int
    percent: int
    reason: str


class ReplicaOut(_Answer):
    """One replica of a log stream. `role`: primary or backup; of a sequenced topic head, middle, tail, only,
    out_of_sync or no_member_yet. `state`: running, sealing, sealed or frozen; of a sequenced topic serves or
    out_of_sync; `missing` where its node does not answer, or does not have it. `lag_entries`: how far its newest LLSN
    is behind that of the furthest replica. Watermarks are positions (GLSN) of the topic, null for sequenced ones.
    `evidence`: how it contradicts the metadata repository, empty where it does not; nothing rebuilds, cuts or removes
    such a replica."""

    node: int
    role: str
    state: str
    alive: bool
    newest_llsn: int | None
    lag_entries: int | None
    low_watermark: int | None
    high_watermark: int | None
    stored_bytes: int | None
    error: str
    corrupt_entries: int = Field(description="entries whose bytes do not match their checksums")
    disk_full: bool
    sync: SyncOut | None
    evidence: str = ""


class LogStreamOut(_Answer):
    """A shard of a topic. `sealed_by_admin`: an operator sealed it, and the manager leaves it so. `waiting_for`: what the manager
    does for it, or waits for, and `waiting_kind`: the same for programs; empty where it simply runs. `no_redundancy`: one replica
    is left of several. `replicas_alive`: those of `replica_count` whose node answers."""

    log_stream: int
    topic: str
    ordering: str
    state: str = Field(description="running or sealed")
    sealed_by_admin: bool
    epoch: int
    newest_llsn: int | None
    high_watermark: int | None
    low_watermark: int | None
    waiting_for: str
    waiting_kind: str
    no_redundancy: bool
    replica_count: int
    replicas_alive: int
    replicas: list[ReplicaOut]


class ReaderOut(_Answer):
    """A named reader of a topic, and how far it has read. `lag_entries`: entries not read yet. `kind`: what it is, by its name:
    `reader`, or the part before a colon in names such as `spark:orders`."""

    topic: str
    name: str
    kind: str
    position: int
    lag_entries: int | None
    updated_at: str
    age_s: float


class EventOut(_Answer):
    """Something that the manager did or saw. `kind` is for programs; `message` is a sentence for people, and may change. Null or
    empty: it is about no log stream, topic, node or epoch. `failure`: the error that ended a step."""

    time: str
    kind: str
    log_stream: int | None
    topic: str
    node: int | None
    epoch: int | None
    failure: str
    message: str


class StatusOut(_Answer):
    """The state of the cluster, as its manager sees it now. Times are RFC 3339, UTC. `events`: oldest first. `repository_errors`:
    what is wrong with the files of the metadata repository: a corrupt copy, a mirror that failed."""

    cluster: int
    time: str
    manager: str
    repositories: list[str]
    sequencers: list[str]
    nodes: list[NodeOut]
    topics: list[TopicOut]
    log_streams: list[LogStreamOut]
    readers: list[ReaderOut]
    events: list[EventOut]
    rates: Rates
    repository_errors: list[str] = []


# --- topics, log streams and nodes --------------------------------------------------------------------------------------

# Of one call: each takes several steps on several nodes, and all of them have to run before the deadline.
STREAMS_MAX: Final = 64


class CreateTopicRequest(Strict):
    """A topic to create. Zero means the cluster's default. `first`: the position of its first entry. `stripe_size` and `grouping`
    are for a sequenced topic: how many consecutive positions a log stream has, and what a replica group is."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", examples=["orders"])
    ordering: Ordering = Field(Ordering.COMMITTED, strict=False)
    streams: int = Field(0, ge=0, le=STREAMS_MAX)
    replicas: int = Field(0, ge=0, le=REPLICAS_MAX)
    first: int = Field(1, ge=1, le=JSON_POSITION_MAX)
    stripe_size: int = Field(0, ge=0, le=BATCH_ENTRIES_MAX)
    grouping: Grouping = Field(Grouping.STREAM, strict=False)


class Topics(BaseModel):
    """All topics."""

    topics: list[TopicOut]


class TopicDetail(TopicOut):
    """A topic, its log streams and its readers."""

    log_streams: list[LogStreamOut]
    readers: list[ReaderOut]


class Readers(BaseModel):
    """The named readers of a topic."""

    readers: list[ReaderOut]


class LogStreams(BaseModel):
    """Log streams, of all topics or of one."""

    log_streams: list[LogStreamOut]


class Nodes(BaseModel):
    """All storage nodes."""

    nodes: list[NodeOut]


class NodeReplicaOut(ReplicaOut):
    """One replica on a node, with its log stream and topic."""

    log_stream: int
    topic: str


class NodeDetail(NodeOut):
    """A storage node, and the replicas that it has or is to have."""

    replicas: list[NodeReplicaOut]
