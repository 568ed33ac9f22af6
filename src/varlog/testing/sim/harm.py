"""Harm: what happens to files and drives behind a process's back."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

from varlog.testing.sim.drive import BLOCK_BYTES, SECTOR_BYTES, Drive, Folder, Inode
from varlog.testing.sim.host import Host

# How often the drives are written down, in virtual seconds, and how many such moments are kept of each.
SNAPSHOT_S = 0.4
SNAPSHOTS_MAX = 12
# A lock holds nothing; it goes with its process.
LOCK_NAMES = ("lock", "metadata.db.lock")


class Harm(StrEnum):
    """What can happen to one file."""

    BIT = "a bit flips"
    SECTOR = "a sector is garbage"
    ZEROED = "the tail is zeroed"
    TRUNCATED = "it is truncated"
    DELETED = "it is deleted"
    OLDER = "an older copy is put in its place"
    REPLACED = (
        "another file is moved over it"  # who has it open goes on with the one that has no name any more
    )


# Of these a process that has the file open notices nothing until it looks for its name.
NAMELESS = (Harm.DELETED, Harm.REPLACED)
# An older copy of a repository's file is another matter: see the witnesses of the order.
STORE_HARMS = (Harm.BIT, Harm.SECTOR, Harm.ZEROED, Harm.TRUNCATED, Harm.DELETED)


class Past:
    """What the drives of some hosts were like a while ago."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._kept: dict[str, deque[tuple[float, Folder]]] = {
            host.name: deque(maxlen=SNAPSHOTS_MAX) for host in hosts
        }
        self._hosts = list(hosts)

    def take(self, now_s: float) -> None:
        """Write down how all drives are now."""
        for host in self._hosts:
            self._kept[host.name].append((now_s, host.drive.snapshot()))

    def of(self, host: Host) -> list[tuple[float, Folder]]:
        """(virtual time, drive), oldest first."""
        return list(self._kept.get(host.name, ()))

    def older(self, host: Host, path: Path) -> list[bytes]:
        """The contents that a file had and has no more, oldest first."""
        now = host.drive.find(path)
        found: list[bytes] = []
        for _, root in self._kept.get(host.name, ()):
            drive = Drive()
            drive.root = root
            node = drive.find(path)
            if isinstance(node, Inode) and isinstance(now, Inode) and node.durable != now.durable:
                content = bytes(node.durable)
                if not found or found[-1] != content:
                    found.append(content)
        return found


def files_of(host: Host, below: Path) -> list[Path]:
    """All files on a host's drive below a directory, as a process sees them."""

    def search(path: Path, folder: Folder) -> Iterator[Path]:
        for name in sorted(folder.entries):
            node = folder.entries[name]
            if isinstance(node, Folder):
                yield from search(path / name, node)
            elif name not in LOCK_NAMES:
                yield path / name

    found = host.drive.find(below)
    return list(search(below, found)) if isinstance(found, Folder) else []


def harm_file(
    host: Host, path: Path, rng: random.Random, past: Past, wanted: Sequence[Harm] = tuple(Harm)
) -> str:
    """Harm one file in one way; tells how, or '' where there is nothing to harm. Handles that are open see it, too,
    unless the file lost its name."""
    inode = host.drive.file(path)
    older = past.older(host, path)
    # Of space that is reserved and not used nothing can be lost.
    size = len(inode.content.rstrip(b"\0"))
    ways = [Harm.DELETED]
    if size:
        ways += [Harm.BIT, Harm.SECTOR, Harm.ZEROED, Harm.TRUNCATED]
    if older:
        ways += [Harm.OLDER, Harm.OLDER]
    ways.append(Harm.REPLACED)
    way = rng.choice([one for one in ways if one in wanted])
    folder = host.drive.folder(path.parent)
    if way is Harm.DELETED:
        folder.unlink(path.name)
        folder.sync()
        return str(way)
    if way is Harm.REPLACED:
        # A copy of itself is right at this moment, and lacks whatever comes next.
        folder.link(path.name, Inode(rng.choice([*older, bytes(inode.content)])))
        folder.sync()
        return str(way)
    if way is Harm.OLDER:
        inode.rewrite(rng.choice(older))
        return str(way)
    at = rng.randrange(size)
    if way is Harm.BIT:
        inode.flip(at, rng.randrange(8))
        return f"{way}, at byte {at}"
    content = bytearray(inode.content)
    if way is Harm.SECTOR:
        begin = at - at % rng.choice((SECTOR_BYTES, BLOCK_BYTES))
        end = min(begin + SECTOR_BYTES, len(content))
        content[begin:end] = rng.randbytes(end - begin)
    elif way is Harm.ZEROED:
        content[at:] = bytes(len(content) - at)
    else:
        del content[at:]
    inode.rewrite(bytes(content))
    return f"{way}, from byte {at} on"
