"""PURE. The options of the data source: names, defaults and checks.

A wrong one is refused with its name and the accepted values. Spark hands options over as strings, their names in any case. Their
meaning is documented here and in docs/guide/spark.md, nowhere else.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeVar

from varlog.model.ids import check_name, check_topic_name
from varlog.model.lsn import LSN_MAX

T = TypeVar("T")
D = TypeVar("D")

EARLIEST = "earliest"
LATEST = "latest"

# Where to begin or end in each topic: a word, a position for all topics, or one for each by name.
OffsetSpec = str | int | dict[str, str | int]

WHERE = ("address", "path", "cluster", "timeout")
TOPICS = ("topic", "topicPattern")
READ = (
    "startingOffsets",
    "startingTimestamp",
    "timestampSlack",
    "minPartitions",
    "maxRecordsPerPartition",
    "failOnDataLoss",
)
BATCH = ("endingOffsets", "endingTimestamp", "archive")
STREAM = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "reader")
WRITE = ("topic", "writer", "batch", "orderBy", "log_stream", "positions")
# Set by Spark itself, or meant for it.
SPARKS_OWN = ("checkpointlocation", "queryname", "failontaskretry")


class OptionError(ValueError):
    """An option that cannot be used: the message names it and the accepted values."""


@dataclass(frozen=True, slots=True)
class LogLocation:
    """Which log: a cluster by the address of its metadata repository, or an embedded directory by its path."""

    address: str = ""
    path: str = ""
    cluster: int = 0
    timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a batch reads. Offsets are positions (GLSN); the end is exclusive. Times are microseconds since 1970, UTC."""

    where: LogLocation
    topics: tuple[str, ...] = ()
    topic_pattern: str = ""
    starting: OffsetSpec = EARLIEST
    ending: OffsetSpec = LATEST
    starting_us: int | None = None
    ending_us: int | None = None
    slack_us: int = 60_000_000
    partitions_min: int = 0
    partition_records_max: int = 0
    fail_on_data_loss: bool = True
    archive: str = ""
    # Of a stream alone.
    trigger_records_max: int = 0
    trigger_bytes_max: int = 0
    trigger_records_min: int = 0
    reader: str = ""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write does. `writer` names it, so that a run after a crash continues where the last one ended; `batch` numbers its
    batches. `log_stream`: the id of one, or a column whose equal values share one. `keep_positions`: the column glsn says where
    each row goes."""

    where: LogLocation
    topic: str
    writer: str = ""
    batch: int = 0
    order_by: str = ""
    log_stream: str = ""
    keep_positions: bool = False


def read_options(options: Mapping[str, str], *, stream: bool) -> ReadOptions:
    """Of `spark.read`, or of `spark.readStream`."""
    known = (*WHERE, *TOPICS, *READ, *(STREAM if stream else BATCH))
    given = _Options(options, known, "a stream reads" if stream else "a batch reads")
    topics = tuple(name.strip() for name in given.get("topic", str, "").split(",") if name.strip())
    pattern = given.get("topicPattern", _pattern, "")
    if bool(topics) == bool(pattern):
        raise OptionError("give either option 'topic' (one name, or several with commas) or 'topicPattern'")
    for name in topics:
        _topic(name)
    starting_us = given.get("startingTimestamp", _time_us, None)
    if starting_us is not None and given.has("startingOffsets"):
        raise OptionError("give either option 'startingOffsets' or 'startingTimestamp', not both")
    ending_us = given.get("endingTimestamp", _time_us, None)
    if ending_us is not None and given.has("endingOffsets"):
        raise OptionError("give either option 'endingOffsets' or 'endingTimestamp', not both")
    if starting_us is not None and ending_us is not None and ending_us < starting_us:
        raise OptionError("option 'endingTimestamp' is before 'startingTimestamp'")
    where = _where(given)
    if stream and where.path:
        raise OptionError(
            "option 'path' names an embedded directory, which a stream cannot follow: run `varlog up`, and give its address as "
            "option 'address'"
        )
    records_max, records_min = (
        given.get(name, _count, 0) for name in ("maxRecordsPerTrigger", "minRecordsPerTrigger")
    )
    if records_max and records_min > records_max:
        raise OptionError(
            "option 'minRecordsPerTrigger' is above 'maxRecordsPerTrigger': no trigger could meet both"
        )
    return ReadOptions(
        where,
        topics,
        pattern,
        given.get("startingOffsets", _place, EARLIEST),
        given.get("endingOffsets", _place, LATEST),
        starting_us,
        ending_us,
        int(given.get("timestampSlack", _seconds, 60.0) * 1_000_000),
        given.get("minPartitions", _count, 0),
        given.get("maxRecordsPerPartition", _count, 0),
        given.get("failOnDataLoss", _yes_or_no, True),
        given.get("archive", str, ""),
        records_max,
        given.get("maxBytesPerTrigger", _count, 0),
        records_min,
        given.get("reader", _reader, ""),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Of `df.write` and `df.writeStream`."""
    given = _Options(options, (*WHERE, *WRITE), "a write takes")
    where = _where(given)
    if where.path:
        raise OptionError(
            "option 'path' names an embedded directory, which only one process can write to: run `varlog up`, and give its "
            "address as option 'address'"
        )
    if not given.has("topic"):
        raise OptionError("option 'topic' is missing: the one to write to")
    keep = given.get("positions", _positions, False)
    log_stream, order_by = given.get("log_stream", str, ""), given.get("orderBy", str, "")
    if keep and (log_stream or order_by):
        raise OptionError(
            "option 'positions=keep' decides the order by itself: leave out 'orderBy' and 'log_stream'"
        )
    return WriteOptions(
        where,
        given.get("topic", _topic, ""),
        given.get("writer", str, ""),
        given.get("batch", _number, 0),
        order_by,
        log_stream,
        keep,
    )


class _Options:
    """The options of a read or write, looked up in any case."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], who: str) -> None:
        names = {name.lower(): name for name in known}
        self._values = {name.lower(): value for name, value in options.items()}
        for name in self._values:
            if name not in names and name not in SPARKS_OWN:
                near = difflib.get_close_matches(name, list(names), 1)
                hint = f"did you mean '{names[near[0]]}'?" if near else f"{who}: {', '.join(known)}"
                raise OptionError(f"option '{name}' is not known: {hint}")

    def has(self, name: str) -> bool:
        return bool(self._values.get(name.lower(), ""))

    def get(self, name: str, parse: Callable[[str], T], default: D) -> T | D:
        value = self._values.get(name.lower(), "")
        if not value:
            return default
        try:
            return parse(value.strip())
        except ValueError as error:
            raise OptionError(f"option '{name}' is {value!r}: {error}") from None


def _where(given: _Options) -> LogLocation:
    address, path = given.get("address", str, ""), given.get("path", str, "")
    if bool(address) == bool(path):
        raise OptionError(
            "give either option 'address' (host:port of the cluster's metadata repository, or several with commas) or 'path' "
            "(an embedded directory)"
        )
    return LogLocation(address, path, given.get("cluster", _number, 0), given.get("timeout", _seconds, 60.0))


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ValueError("it must be a whole number, 0 or more")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise ValueError("it must be a whole number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise ValueError("it must be a number of seconds") from None
    if not 0 <= seconds < 1e9:
        raise ValueError("it must be a number of seconds")
    return seconds


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _topic(text: str) -> str:
    try:
        return check_topic_name(text)
    except ValueError as error:
        raise OptionError(f"option 'topic': {error}") from None


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it must be a regular expression ({error})") from None
    return text


def _reader(text: str) -> str:
    return check_name("a reader's name", text)


def _positions(text: str) -> bool:
    if text not in ("keep", "new"):
        raise ValueError("it must be 'keep' or 'new'")
    return text == "keep"


def _time_us(text: str) -> int:
    if text.isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("it must be like 2026-11-15T08:00:00+00:00, or microseconds since 1970") from None
    time = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return round(time.timestamp() * 1_000_000)


def _place(text: str) -> OffsetSpec:
    """A word, a position, or a JSON object of them by topic."""
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            raise ValueError('it must be JSON like {"orders": 17, "payments": "earliest"}') from None
        return {str(topic): _one_place(str(value)) for topic, value in found.items()}
    return _one_place(text)


def _one_place(text: str) -> str | int:
    if text in (EARLIEST, LATEST):
        return text
    if text.isdecimal() and 1 <= int(text) <= LSN_MAX:
        return int(text)
    raise ValueError(
        f"it must be '{EARLIEST}', '{LATEST}', a position from 1 on, or JSON with one of these for each topic"
    )
