"""PURE. Offset: how far a stream has read, as JSON in Spark's checkpoint.

    {"cluster": 5, "topics": {"orders": {"id": 3, "glsn": 120}}}

`glsn` is the next position to read. A cluster and a topic are known by their numbers, so that a checkpoint of another
one is recognised, even if it has the same name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from varlog.model.errors import VarlogError

# What Spark passes to a reader and expects from it: parsed JSON.
Json = dict[str, object]

NEW_CHECKPOINT = "give the query a new checkpointLocation to start over"
CONTINUE = "or set option failOnDataLoss=false to continue"


@dataclass(frozen=True, slots=True)
class TopicOffset:
    """The next position to read of the topic with this number."""

    topic: int
    glsn: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The next position of each topic, by the topic's name."""

    cluster: int
    places: Mapping[str, TopicOffset]

    def to_json(self) -> Json:
        """Spark compares offsets as text: equal ones have one text."""
        topics = {
            name: {"id": place.topic, "glsn": place.glsn} for name, place in sorted(self.places.items())
        }
        return {"cluster": self.cluster, "topics": topics}

    @staticmethod
    def of_json(json: Mapping[str, object]) -> Offset:
        try:
            topics = json["topics"]
            if not isinstance(topics, dict):
                raise TypeError(topics)
            places = {
                str(name): TopicOffset(int(place["id"]), int(place["glsn"])) for name, place in topics.items()
            }
            return Offset(int(str(json["cluster"])), places)
        except (KeyError, TypeError, ValueError):
            raise ForeignCheckpoint(
                f"it holds {str(dict(json))[:200]}, which is no offset of varlog"
            ) from None


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic as it is now: positions [oldest, end) can be read."""

    topic: int
    oldest: int
    end: int


# --- checkpoints that do not fit the log -----------------------------------------------------------------------------------


class CheckpointError(VarlogError):
    """A stream cannot continue from its checkpoint."""


class ForeignCheckpoint(CheckpointError):
    """The checkpoint belongs to another query. No option helps: the wrong entries would be read."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"the checkpoint belongs to another query: {self.why}; check the options, or {NEW_CHECKPOINT}"


class DataLoss(CheckpointError):
    """Entries behind the checkpoint, which were not read yet, can no longer be read."""


class TopicGone(DataLoss):
    """The topic was deleted."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def message(self) -> str:
        return (
            f"the checkpoint of this query names topic {self.topic!r}, which no longer exists: {NEW_CHECKPOINT}, {CONTINUE} "
            f"without it"
        )


class TopicRecreated(DataLoss):
    """The topic was deleted, and another one has its name."""

    def __init__(self, topic: str, was: int, now: int) -> None:
        super().__init__(topic, was, now)
        self.topic = topic
        self.was = was
        self.now = now

    def message(self) -> str:
        return (
            f"the checkpoint of this query is of topic {self.topic!r} with id {self.was}, which was deleted; the present one "
            f"has id {self.now}: {NEW_CHECKPOINT}, {CONTINUE} from the oldest entry of the new one"
        )


class EntriesTrimmed(DataLoss):
    """The next entries were trimmed before they were read."""

    def __init__(self, topic: str, position: int, oldest: int) -> None:
        super().__init__(topic, position, oldest)
        self.topic = topic
        self.position = position
        self.oldest = oldest

    def message(self) -> str:
        return (
            f"the checkpoint of this query is at position {self.position} of topic {self.topic!r}, which is trimmed: the "
            f"oldest that can be read is {self.oldest}; {NEW_CHECKPOINT}, {CONTINUE} from there (option reader and `varlog trim "
            f"--respect-readers` keep what is not read yet)"
        )


class EntriesMissing(DataLoss):
    """The log ends before the checkpoint's position: its end was lost, which the log itself never does."""

    def __init__(self, topic: str, position: int, end: int) -> None:
        super().__init__(topic, position, end)
        self.topic = topic
        self.position = position
        self.end = end

    def message(self) -> str:
        return (
            f"the checkpoint of this query is at position {self.position} of topic {self.topic!r}, which ends before "
            f"{self.end}: entries are missing, as after the restore of an older copy of the cluster; {NEW_CHECKPOINT}, "
            f"{CONTINUE} from its end"
        )


# --- where a stream continues -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where a stream continues, and what was lost before that."""

    offset: Offset
    losses: tuple[DataLoss, ...] = ()


def resume_point(start: Offset, cluster: int, now: Mapping[str, TopicNow]) -> ResumePoint:
    """`start`, moved to what can be read now; `now` are the topics that the options select. ForeignCheckpoint if it is of
    another cluster."""
    if start.cluster != cluster:
        raise ForeignCheckpoint(f"it is of cluster {start.cluster}, and this is cluster {cluster}")
    places, losses = {}, []
    for name, place in start.places.items():
        loss = _loss(name, place, now.get(name))
        if loss is not None:
            losses.append(loss)
        if name in now:
            places[name] = _moved(place, now[name], loss)
    return ResumePoint(Offset(cluster, places), tuple(losses))


def check_topics(start: Offset, topics: Container[str], pattern: str) -> None:
    """The options (names, or a pattern) select every topic that the checkpoint is of."""
    matches = re.compile(pattern).fullmatch
    others = [name for name in start.places if name not in topics and not (pattern and matches(name))]
    if others:
        names = ", ".join(repr(name) for name in others)
        raise ForeignCheckpoint(
            f"it is of topic {names}, which option {'topicPattern' if pattern else 'topic'} leaves out"
        )


def _loss(name: str, place: TopicOffset, now: TopicNow | None) -> DataLoss | None:
    if now is None:
        return TopicGone(name)
    if place.topic != now.topic:
        return TopicRecreated(name, place.topic, now.topic)
    if place.glsn < now.oldest:
        return EntriesTrimmed(name, place.glsn, now.oldest)
    if place.glsn > now.end:
        return EntriesMissing(name, place.glsn, now.end)
    return None


def _moved(place: TopicOffset, now: TopicNow, loss: DataLoss | None) -> TopicOffset:
    match loss:
        case TopicRecreated() | EntriesTrimmed():
            return TopicOffset(now.topic, now.oldest)
        case EntriesMissing():
            return TopicOffset(now.topic, now.end)
        case _:
            return place
