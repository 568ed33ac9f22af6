"""PURE. How far a micro-batch reads, and how its ranges are split into tasks.

Limits are shared among topics; a repeated micro-batch has the same tasks.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from varlog.spark.read.planning_rules import MeasuredRange, ReadPiece, fetches
from varlog.spark.stream.offsets import Offset, TopicNow, TopicOffset

# A search for the number of records that fill a number of bytes ends when this share is used, or after this many probes.
FILLED = 0.8
PROBES_MAX = 8
# The default maximum of a task: a backlog is read by many tasks at once.
RECORDS = 500_000


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one micro-batch; 0: none. With fewer than `records_min` new records there is no micro-batch yet."""

    records_max: int = 0
    bytes_max: int = 0
    records_min: int = 0


# --- How far ------------------------------------------------------------------------------------------------------------


def backlog(
    start: Offset, now: Mapping[str, TopicNow], until: Mapping[str, int] | None = None
) -> dict[str, int]:
    """How many records each topic has behind `start`; with `until` none behind the position there, and none of other topics."""
    waiting = {}
    for name, place in start.places.items():
        end = now[name].end if until is None else min(now[name].end, until.get(name, place.glsn))
        waiting[name] = max(0, end - place.glsn)
    return waiting


def new_topics(start: Offset, now: Mapping[str, TopicNow]) -> dict[str, TopicOffset]:
    """Topics that came since: they are read from their oldest entry on."""
    return {
        name: TopicOffset(topic.topic, topic.oldest)
        for name, topic in now.items()
        if name not in start.places
    }


def admitted(waiting: Mapping[str, int], limits: Limits) -> int:
    """How many records the next micro-batch may have, all topics together; `bytes_max` is left to `records_that_fit`."""
    total = sum(waiting.values())
    if total < limits.records_min:
        return 0
    return min(total, limits.records_max) if limits.records_max else total


def shared(waiting: Mapping[str, int], records: int) -> dict[str, int]:
    """`records` in all, each topic in proportion to what it has; what rounding leaves goes where most of it was cut off."""
    total = sum(waiting.values())
    if records >= total:
        return dict(waiting)
    shares = {name: records * count // total for name, count in waiting.items()}
    rest = records - sum(shares.values())
    by_loss = sorted(waiting, key=lambda name: (-(records * waiting[name] % total), name))
    for name in by_loss[:rest]:
        shares[name] += 1
    return shares


def moved(start: Offset, shares: Mapping[str, int]) -> Offset:
    """`start`, each topic moved by its share of records."""
    places = {
        name: replace(place, glsn=place.glsn + shares.get(name, 0)) for name, place in start.places.items()
    }
    return replace(start, places=places)


def records_that_fit(records: int, bytes_max: int) -> Generator[int, int, int]:
    """How many of the next `records` have at most `bytes_max` bytes together, about. Yields a number of records, is sent their
    bytes, and so on, a few times; never less than one record, or nothing would ever be read."""
    low, low_bytes = 0, 0
    high, high_bytes = records, (yield records)
    if high_bytes <= bytes_max:
        return records
    for _ in range(PROBES_MAX):
        if high - low <= 1 or low_bytes >= FILLED * bytes_max:
            break
        # As if all entries between the two were of one size.
        guess = low + (high - low) * (bytes_max - low_bytes) // max(1, high_bytes - low_bytes)
        guess = min(max(guess, low + 1), high - 1)
        size = yield guess
        if size <= bytes_max:
            low, low_bytes = guess, size
        else:
            high, high_bytes = guess, size
    return max(1, low)


# --- Into which tasks ---------------------------------------------------------------------------------------------------


def split_records(ranges: Iterable[MeasuredRange], partitions_min: int, records_max: int) -> list[ReadPiece]:
    """At least `partitions_min` parts if there are enough records, none with more than `records_max`. Only counts decide, so that
    a micro-batch that is run again has the same tasks, whichever replica is asked."""
    found = sorted((one for one in ranges if one.records), key=lambda one: (one.topic, one.log_stream))
    total = sum(one.records for one in found)
    most = min(records_max or RECORDS, max(1, total // partitions_min) if partitions_min else RECORDS)
    return [piece for one in found for piece in _cuts(one, most)]


def _cuts(whole: MeasuredRange, most: int) -> list[ReadPiece]:
    pieces = -(-whole.records // most)
    edges = [whole.begin + whole.records * index // pieces for index in range(pieces + 1)]
    return [
        ReadPiece(whole.topic, whole.log_stream, begin, end, fetches(whole, begin, end))
        for begin, end in pairwise(edges)
    ]
