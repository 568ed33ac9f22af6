"""PURE. Named: an immutable map of readers or writers by topic and name.

It consists of buckets: a change copies one of them, and two maps differ only where their buckets are not the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar
from zlib import crc32

from varlog.model.cluster import NamedReader, NamedWriter
from varlog.model.ids import TopicID

T = TypeVar("T", bound=NamedReader | NamedWriter)
Key = tuple[TopicID, str]

BUCKETS: Final = 64


class Named(Generic[T]):
    """Readers or writers by topic and name."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, values: Iterable[T] = ()) -> None:
        buckets: list[dict[Key, T]] = [{} for _ in range(BUCKETS)]
        for value in values:
            buckets[_bucket(value.name)][value.topic, value.name] = value
        self._buckets = tuple(buckets)
        self._count = sum(map(len, buckets))

    def get(self, topic: TopicID, name: str) -> T | None:
        return self._buckets[_bucket(name)].get((topic, name))

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[T]:
        """In an arbitrary order that is the same in every run."""
        for bucket in self._buckets:
            yield from bucket.values()

    def of(self, topic: TopicID) -> list[T]:
        """The entries of one topic (0: of all topics), sorted by topic and name."""
        found = [value for value in self if not topic or value.topic == topic]
        return sorted(found, key=lambda value: (value.topic, value.name))

    def having(self, value: T) -> Named[T]:
        """The map with this value in place of the one of the same name."""
        return self._with(
            value.name, {**self._buckets[_bucket(value.name)], (value.topic, value.name): value}
        )

    def without(self, topic: TopicID, name: str) -> Named[T]:
        bucket = self._buckets[_bucket(name)]
        if (topic, name) not in bucket:
            return self
        return self._with(name, {key: value for key, value in bucket.items() if key != (topic, name)})

    def without_topic(self, topic: TopicID) -> Named[T]:
        if not any(value.topic == topic for value in self):
            return self
        return Named(value for value in self if value.topic != topic)

    def differing(self, before: Named[T]) -> Iterator[tuple[Key, T | None]]:
        """What must be set, or (None) removed, to turn `before` into this map."""
        for old, new in zip(before._buckets, self._buckets, strict=True):
            if old is new:
                continue
            for key, value in new.items():
                if (known := old.get(key)) is not value and known != value:
                    yield key, value
            for key in old:
                if key not in new:
                    yield key, None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self._buckets == other._buckets

    __hash__ = None  # type: ignore[assignment]  # never used as a key

    def __repr__(self) -> str:
        return f"Named({self.of(TopicID(0))})"

    def _with(self, name: str, bucket: dict[Key, T]) -> Named[T]:
        at = _bucket(name)
        made: Named[T] = Named.__new__(Named)
        made._buckets = (*self._buckets[:at], bucket, *self._buckets[at + 1 :])
        made._count = self._count - len(self._buckets[at]) + len(bucket)
        return made


def _bucket(name: str) -> int:
    """The bucket of a name. Not by `hash`, which differs between processes: a run must be reproducible."""
    return crc32(name.encode()) % BUCKETS
