"""PURE. Offset: how far a stream has read, as JSON in Spark's checkpoint; and what is wrong with one that does not fit the log.

    {"cluster": 5, "topics": {"orders": {"id": 3, "glsn": 120}}}

`glsn` is the next position to read. A cluster and a topic are known by their numbers, so that a checkpoint of another
one is recognised, even if it has the same name.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass

from varlog.model.errors import VarlogError

# What Spark hands over and takes: JSON that was parsed.
Json = dict[str, object]

ANEW = "give the query a new checkpointLocation to begin anew"
GO_ON = "or set option failOnDataLoss=false to go on"


@dataclass(frozen=True, slots=True)
class Place:
    """The next position to read of the topic with this number."""

    topic: int
    glsn: int


@dataclass(frozen=True, slots=True)
class Offset:
    """The next position of each topic, by the topic's name."""

    cluster: int
    places: Mapping[str, Place]

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
                str(name): Place(int(place["id"]), int(place["glsn"])) for name, place in topics.items()
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


# --- What is wrong ------------------------------------------------------------------------------------------------------


class CheckpointError(VarlogError):
    """A stream cannot go on from where its checkpoint says."""


class ForeignCheckpoint(CheckpointError):
    """The checkpoint is of something else than this query reads. No option helps: it would read what nobody meant."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def message(self) -> str:
        return f"the checkpoint of this query is of something else: {self.why}; check the options, or {ANEW}"


class DataLoss(CheckpointError):
    """What the checkpoint says was not read yet cannot be read any more."""


class TopicGone(DataLoss):
    """The topic was deleted."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def message(self) -> str:
        return f"the checkpoint of this query names topic {self.topic!r}, which is no longer there: {ANEW}, {GO_ON} without it"


class TopicMadeAnew(DataLoss):
    """The topic was deleted, and another one has its name."""

    def __init__(self, topic: str, was: int, now: int) -> None:
        super().__init__(topic, was, now)
        self.topic = topic
        self.was = was
        self.now = now

    def message(self) -> str:
        return (
            f"the checkpoint of this query is of topic {self.topic!r} with id {self.was}, which was deleted; the one that is there "
            f"now has id {self.now}: {ANEW}, {GO_ON} from the oldest entry of the new one"
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
            f"the checkpoint of this query goes on at position {self.position} of topic {self.topic!r}, which is trimmed: the "
            f"oldest that can be read is {self.oldest}; {ANEW}, {GO_ON} from there (option reader and `varlog trim "
            f"--respect-readers` keep what is not read yet)"
        )


class EntriesMissing(DataLoss):
    """The log ends before the position where reading was to go on: it lost its end, which the log itself never does."""

    def __init__(self, topic: str, position: int, end: int) -> None:
        super().__init__(topic, position, end)
        self.topic = topic
        self.position = position
        self.end = end

    def message(self) -> str:
        return (
            f"the checkpoint of this query goes on at position {self.position} of topic {self.topic!r}, which ends before "
            f"{self.end}: entries are missing, as after the restore of an older copy of the cluster; {ANEW}, {GO_ON} from its end"
        )


# --- How it goes on -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Footing:
    """Where to go on from, and what was lost on the way there."""

    offset: Offset
    losses: tuple[DataLoss, ...] = ()


def footing(start: Offset, cluster: int, now: Mapping[str, TopicNow]) -> Footing:
    """`start`, put where the log of now can be read; `now` are the topics that the options select. ForeignCheckpoint if it is of
    something else."""
    if start.cluster != cluster:
        raise ForeignCheckpoint(f"it is of cluster {start.cluster}, and this is cluster {cluster}")
    places, losses = {}, []
    for name, place in start.places.items():
        loss = _loss(name, place, now.get(name))
        if loss is not None:
            losses.append(loss)
        if name in now:
            places[name] = _moved(place, now[name], loss)
    return Footing(Offset(cluster, places), tuple(losses))


def check_topics(start: Offset, topics: Container[str], pattern: str) -> None:
    """The options (names, or a pattern) select every topic that the checkpoint is of."""
    matches = re.compile(pattern).fullmatch
    others = [name for name in start.places if name not in topics and not (pattern and matches(name))]
    if others:
        names = ", ".join(repr(name) for name in others)
        raise ForeignCheckpoint(
            f"it is of topic {names}, which option {'topicPattern' if pattern else 'topic'} leaves out"
        )


def _loss(name: str, place: Place, now: TopicNow | None) -> DataLoss | None:
    if now is None:
        return TopicGone(name)
    if place.topic != now.topic:
        return TopicMadeAnew(name, place.topic, now.topic)
    if place.glsn < now.oldest:
        return EntriesTrimmed(name, place.glsn, now.oldest)
    if place.glsn > now.end:
        return EntriesMissing(name, place.glsn, now.end)
    return None


def _moved(place: Place, now: TopicNow, loss: DataLoss | None) -> Place:
    match loss:
        case TopicMadeAnew() | EntriesTrimmed():
            return Place(now.topic, now.oldest)
        case EntriesMissing():
            return Place(now.topic, now.end)
        case _:
            return place
