"""PURE. Named readers of a topic: how far each is, who is furthest behind -> the next Members, or a refusal with its reason.

They are no part of the view: somebody who says a position every second must not send a new view to everybody.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from varlog.metarepo.membership_rules import Members, topic_of
from varlog.model.cluster import NamedReader
from varlog.model.errors import InvalidRequest, PreconditionFailed, ReaderBehind
from varlog.model.ids import TopicID, check_name
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
    """Everything up to `position` is read. One that is smaller than the one known, and not meant to be, is a word that came late:
    it moves nothing."""
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
    """No trim waits for it any more. One that is not there is forgotten already."""
    readers = members.readers.without(topic, name)
    return members if readers is members.readers else replace(members, readers=readers)


def check_trim(members: Members, topic: TopicID, glsn: GLSN) -> None:
    """ReaderBehind if this would take away what a named reader has not read. What is trimmed already is nobody's loss."""
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
