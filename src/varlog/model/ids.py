"""Ids of clusters, nodes, topics, log streams: plain integers with a type each."""

from __future__ import annotations

import re
from typing import NewType

ClusterID = NewType("ClusterID", int)
NodeID = NewType("NodeID", int)
TopicID = NewType("TopicID", int)
LogStreamID = NewType("LogStreamID", int)
ProducerID = NewType("ProducerID", int)
# Which cluster this is, among all there ever were: 8-4-4-4-12 hexadecimal digits. The number (ClusterID) is its short name.
ClusterUUID = NewType("ClusterUUID", str)

ID_MAX = 2**31 - 1
NAME_CHARACTERS_MAX = 200

# A caller that was given no cluster id (a client that only knows an address) says "any".
ANY_CLUSTER = ClusterID(0)
# Not bound to a cluster yet: made before clusters had a UUID, or before a repository registered it.
NO_UUID = ClusterUUID("")

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def make_cluster_uuid(chance: int) -> ClusterUUID:
    """The UUID (version 4) that 128 random bits make."""
    bits = chance & ~(0xF << 76) & ~(0x3 << 62) | 0x4 << 76 | 0x2 << 62
    digits = f"{bits:032x}"
    return ClusterUUID("-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])))


def check_cluster_uuid(value: str) -> ClusterUUID:
    """Refuse what is neither a UUID nor NO_UUID."""
    if value and not _UUID.fullmatch(value):
        raise ValueError(f"{value[:NAME_CHARACTERS_MAX]!r} is not the UUID of a cluster")
    return ClusterUUID(value)


def check_id(kind: str, value: int) -> int:
    """Refuse an id that no directory name or wire field could carry."""
    if not 1 <= value <= ID_MAX:
        raise ValueError(f"{kind} must be between 1 and {ID_MAX}, not {value}")
    return value


def check_topic_name(name: str) -> str:
    """Refuse a topic name that would need quoting in a shell, a path or a URL."""
    if not _TOPIC_NAME.fullmatch(name):
        raise ValueError(
            f"topic name {name!r} is not usable: 1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit"
        )
    return name


def check_name(what: str, name: str) -> str:
    """Refuse a name of a reader or writer that would not fit in a key, a line or a path."""
    if not 1 <= len(name) <= NAME_CHARACTERS_MAX or not name.isprintable() or "/" in name:
        raise ValueError(
            f"{what} has 1 to {NAME_CHARACTERS_MAX} printable characters and no '/': {name[:NAME_CHARACTERS_MAX]!r} is not usable"
        )
    return name
