"""The shapes of requests and answers about topics, log streams and nodes, beside those of the status itself."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, Field

from varlog.model.cluster import Grouping, Ordering
from varlog.model.limits import BATCH_ENTRIES_MAX, REPLICAS_MAX
from varlog.proxy.status import LogStreamOut, NodeOut, ReaderOut, ReplicaOut, TopicOut
from varlog.proxy.wire import JSON_POSITION_MAX, Strict

# Of one call: each takes several steps on several nodes, and all of them have to run before the deadline.
STREAMS_MAX: Final = 64


class TopicMake(Strict):
    """A topic to be made. Zero means the cluster's default. `first`: the position that its first entry gets. `stripe_size` and
    `grouping`
    are for a sequenced topic: how many positions a log stream takes in a row, and what a replica group is."""

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


class HeldOut(ReplicaOut):
    """One replica on a node, and of what."""

    log_stream: int
    topic: str


class NodeDetail(NodeOut):
    """A storage node, and what it holds or is to hold."""

    holds: list[HeldOut]
