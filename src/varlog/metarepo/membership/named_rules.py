"""PURE. Named readers and writers of a topic: the next Members, or a refusal.

They are not part of the view: a reader that reports a position every second must not cause a new view for everyone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from varlog.metarepo.membership.named import Named
from varlog.metarepo.membership.rules import Members, topic_of
from varlog.model.cluster import NamedReader, NamedWriter, changed
from varlog.model.errors import InvalidRequest, PreconditionFailed, ReaderBehind
from varlog.model.ids import LogStreamID, TopicID, check_name
from varlog.model.lsn import GLSN

READERS_MAX: Final = 10_000


def set_reader(
    members: Members,
    topic: TopicID,
    name: str,
    position: GLSN,
    high_watermark: GLSN,
    *,
    time_us: int = 0,
    back: bool = False,
) -> tuple[Members, NamedReader]:
    """Record that everything up to `position` is read. A smaller position than the recorded one, without `back`, is a delayed
    message and changes nothing."""
    found = topic_of(members, topic)
    _check("a reader's name", name)
    if position < 0:
        raise InvalidRequest(
            f"reader {name!r} cannot be at {position}: positions start at 1, and 0 is before all of them"
        )
    if position > high_watermark:
        raise PreconditionFailed(
            f"reader {name!r} of topic {found.name!r} cannot be at {position}: the newest position is {high_watermark}"
        )
    known = members.readers.get(topic, name)
    if known is None and len(members.readers) >= READERS_MAX:
        raise PreconditionFailed(
            f"the cluster has {READERS_MAX} named readers already: forget those that are not used any more with "
            "`varlog reader forget`"
        )
    if known is not None:
        position = position if back else max(position, known.position)
        time_us = max(time_us, known.updated_us)
    reader = NamedReader(topic, name, position, time_us)
    if reader == known:
        return members, known
    return replace(members, readers=members.readers.having(reader)), reader


def forget_reader(members: Members, topic: TopicID, name: str) -> Members:
    """Forget a reader, so that no trim waits for it. Forgetting one that does not exist does nothing."""
    readers = members.readers.without(topic, name)
    return members if readers is members.readers else replace(members, readers=readers)


def check_trim(members: Members, topic: TopicID, glsn: GLSN) -> None:
    """Raise ReaderBehind if the trim would remove entries that a named reader has not read. Entries already trimmed do not
    count."""
    if glsn <= topic_of(members, topic).trimmed:
        return
    behind = ((reader.position, reader.name) for reader in members.readers if reader.topic == topic)
    position, name = min(behind, default=(glsn, ""))
    if position < glsn:
        raise ReaderBehind(name, position, glsn)


def _check(what: str, name: str) -> None:
    try:
        check_name(what, name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


# PURE. Named writers of a topic: which batch each writes, to which streams, from which position on -> the next Members, or a
# refusal. The first task that begins a batch decides for all: later ones (another task, a retried task, a restarted driver) get the
# same answer, and so write to the same place. Like readers, they are not part of the view.

# The maximum number of writers that must not be forgotten: those that are kept, or not finished.
WRITERS_MAX: Final = 10_000
# How many of the others are remembered, for tasks that are late.
FINISHED_WRITERS_MAX: Final = 1_000


def begin_write(
    members: Members,
    topic: TopicID,
    name: str,
    batch: int,
    streams: tuple[LogStreamID, ...],
    high_watermark: GLSN,
    *,
    kept: bool = False,
    time_us: int = 0,
) -> tuple[Members, NamedWriter]:
    """The record of this batch: a new one, above everything in the log now, or the one that was begun already."""
    found = topic_of(members, topic)
    try:
        check_name("a writer's name", name)
    except ValueError as error:
        raise InvalidRequest(str(error)) from None
    if found.sequenced:
        raise PreconditionFailed(
            f"topic {found.name!r} is sequenced: rows that many attempts write, each once, need a log stream with a primary. Write "
            "them to a topic created with `--ordering committed`"
        )
    if batch < 0:
        raise InvalidRequest(f"writer {name!r} cannot begin batch {batch}: batches are numbered from 0 on")
    known = members.writers.get(topic, name)
    if known is not None and batch == known.batch:
        return members, known
    if known is not None and batch < known.batch:
        raise PreconditionFailed(
            f"writer {name!r} of topic {found.name!r} is at batch {known.batch}: batch {batch} is over. Two writers with one "
            "name, or one that went back to an old checkpoint?"
        )
    _check_streams(members, topic, name, streams)
    writers = members.writers if known is not None else _with_room(members.writers)
    writer = NamedWriter(topic, name, batch, high_watermark, streams, kept=kept, updated_us=time_us)
    return replace(members, writers=writers.having(writer)), writer


def end_write(
    members: Members, topic: TopicID, name: str, batch: int, *, time_us: int = 0
) -> tuple[Members, NamedWriter]:
    """Record that everything of this batch is in the log. For an older batch it is a delayed message: the record stays
    unchanged."""
    found = topic_of(members, topic)
    known = members.writers.get(topic, name)
    if known is None:
        raise PreconditionFailed(
            f"topic {found.name!r} knows no writer {name!r}: it was never begun, or is forgotten"
        )
    if batch > known.batch:
        raise PreconditionFailed(
            f"writer {name!r} of topic {found.name!r} is at batch {known.batch}: batch {batch} was never begun"
        )
    if batch < known.batch or known.finished:
        return members, known
    writer = changed(known, finished=True, updated_us=max(time_us, known.updated_us))
    return replace(members, writers=members.writers.having(writer)), writer


def forget_writer(members: Members, topic: TopicID, name: str) -> Members:
    """Forget a writer: a job that uses this name later starts over. Forgetting a name that does not exist does nothing."""
    writers = members.writers.without(topic, name)
    return members if writers is members.writers else replace(members, writers=writers)


def _check_streams(members: Members, topic: TopicID, name: str, streams: tuple[LogStreamID, ...]) -> None:
    if not streams:
        raise InvalidRequest(f"writer {name!r} needs at least one log stream to write to")
    if len(dict.fromkeys(streams)) != len(streams):
        raise InvalidRequest(f"writer {name!r} names a log stream twice: {list(streams)}")
    known = {found.log_stream for found in members.view.streams_of(topic)}
    if foreign := [stream for stream in streams if stream not in known]:
        raise InvalidRequest(
            f"writer {name!r} cannot write to log stream {foreign[0]}: topic {topic_of(members, topic).name!r} has {sorted(known)}"
        )


def _with_room(writers: Named[NamedWriter]) -> Named[NamedWriter]:
    """Make space for one more: forget the oldest writers that are not needed. Called only for a new name."""
    if len(writers) < FINISHED_WRITERS_MAX:
        return writers
    over = [writer for writer in writers if writer.finished and not writer.kept]
    if len(writers) - len(over) >= WRITERS_MAX:
        raise PreconditionFailed(
            f"the cluster has {WRITERS_MAX} named writers already that are kept or not finished: forget those that are not used "
            "any more with `varlog writer forget`"
        )
    over.sort(key=lambda writer: (writer.updated_us, writer.topic, writer.name))
    for writer in over[: max(0, len(over) + 1 - FINISHED_WRITERS_MAX)]:
        writers = writers.without(writer.topic, writer.name)
    return writers
