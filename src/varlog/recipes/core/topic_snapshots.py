"""TopicSnapshots: snapshots in their own topic, for replicas on any machine.

One snapshot is one atomic batch of chunks, or several batches if it is too large for one; it counts when all of its chunks exist.
Each entry is one chunk:

    C1 'v' 'l' 't'   magic
    01               version
    […]              msgpack array: name, position, save (16 random bytes), index, chunks, CRC-32 of all of it, bytes

After each save the topic is trimmed up to the oldest one that is still the newest of its name. Entries that are no chunks are
skipped. Those before the first chunk are never trimmed: the topic may belong to something else. Nor are chunks of a newer version.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import aclosing
from typing import Final

import msgspec

from varlog.client.log import Log
from varlog.model.errors import Trimmed
from varlog.model.limits import BATCH_BODY_BYTES_MAX, MIB
from varlog.model.lsn import GLSN
from varlog.recipes.core.envelope import DECODE_ERRORS
from varlog.runtime.environment import Entropy, system_environment
from varlog.runtime.logging import get_logger, logfmt

_log = get_logger("recipes")

MAGIC: Final = b"\xc1vlt"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])
CHUNK_BYTES: Final = 1 * MIB
# Room for what is around the bytes of a chunk.
BATCH_CHUNKS_MAX: Final = BATCH_BODY_BYTES_MAX // CHUNK_BYTES - 1
SAVE_BYTES: Final = 16
SAVE_BYTES_MAX: Final = 64


class SnapshotChunk(msgspec.Struct, array_like=True, frozen=True):
    """One entry of the topic: piece `index` of `chunks` of one snapshot."""

    name: str
    position: GLSN
    save: bytes
    index: int
    chunks: int
    crc: int
    content: bytes


def encode_chunk(chunk: SnapshotChunk) -> bytes:
    """What is in an entry."""
    return HEAD + msgspec.msgpack.encode(chunk)


def decode_chunk(data: bytes) -> SnapshotChunk | None:
    """The chunk in an entry; None: it is something else."""
    if not data.startswith(HEAD):
        return None
    try:
        return msgspec.msgpack.decode(memoryview(data)[len(HEAD) :], type=SnapshotChunk)
    except DECODE_ERRORS:
        return None


def _sound(chunk: SnapshotChunk) -> bool:
    """Whether a store can have written it."""
    return 0 <= chunk.index < chunk.chunks and chunk.position >= 0 and 0 < len(chunk.save) <= SAVE_BYTES_MAX


class _Saved(msgspec.Struct):
    """A snapshot that is whole, and where in the topic it begins."""

    first: GLSN
    position: GLSN
    content: bytes


class TopicSnapshots:
    """In the topic of `log`, which holds nothing else. The log is the caller's, and not closed here."""

    def __init__(self, log: Log, *, entropy: Entropy | None = None) -> None:
        self.skipped_entries = 0  # entries that are no chunks, as of the last read of the topic
        self._log = log
        self._entropy = entropy or system_environment().entropy
        self._warned = False

    async def save(self, name: str, position: GLSN, content: bytes) -> None:
        """In the log when this returns. What no name needs any more is trimmed."""
        chunks = list(self._cut(name, position, content))
        for begin in range(0, len(chunks), BATCH_CHUNKS_MAX):
            await self._log.append_batch(chunks[begin : begin + BATCH_CHUNKS_MAX])
        # Only now: another replica may have saved a newer one meanwhile.
        needed = (await self._read()).needed()
        if needed - 1 > await self._log.trimmed():
            await self._log.trim(GLSN(needed - 1))

    async def newest(self, name: str) -> tuple[GLSN, bytes] | None:
        """The one of the largest position; of two of the same position, the later one."""
        found = (await self._read()).newest.get(name)
        return None if found is None else (found.position, found.content)

    def _cut(self, name: str, position: GLSN, content: bytes) -> Iterator[bytes]:
        save = self._entropy.getrandbits(8 * SAVE_BYTES).to_bytes(SAVE_BYTES)
        crc, count = zlib.crc32(content), max(1, -(-len(content) // CHUNK_BYTES))
        for index in range(count):
            piece = content[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
            yield encode_chunk(SnapshotChunk(name, position, save, index, count, crc, piece))

    async def _read(self) -> _Contents:
        """All of the topic now. Another replica may trim it meanwhile, but never what is needed: then start again."""
        while True:
            try:
                contents = await self._read_once()
            except Trimmed:
                continue
            self.skipped_entries = contents.skipped_entries
            if contents.foreign is not None and not self._warned:
                self._warned = True
                _log.warning(
                    logfmt(
                        "the topic of snapshots has other entries in it, which are skipped",
                        topic=self._log.topic.name,
                        position=contents.foreign,
                    )
                )
            return contents

    async def _read_once(self) -> _Contents:
        contents = _Contents()
        # From what was the oldest entry before: a read from the oldest entry of a later moment would see nothing of a topic that
        # was trimmed meanwhile, up to a snapshot which is behind this tail.
        mark = await self._log.connector.mark()
        begin = max(mark.trimmed + 1, self._log.topic.first)
        async with aclosing(self._log.subscribe_lists(begin, mark.high_watermark + 1)) as lists:
            async for entries in lists:
                for entry in entries:
                    contents.add(entry.glsn, entry.data)
        return contents


class _Contents:
    """The contents of the topic: the newest snapshot of each name, and those of which some chunks are missing."""

    def __init__(self) -> None:
        self.newest: dict[str, _Saved] = {}
        self.skipped_entries = 0
        self.foreign: GLSN | None = None  # the first that is no chunk
        self._begun: dict[bytes, dict[int, tuple[GLSN, SnapshotChunk]]] = {}
        self._chunks = 0
        self._kept: GLSN | None = None  # from here on nothing is trimmed: it is not known what it is for

    def add(self, at: GLSN, data: bytes) -> None:
        """One entry of the topic."""
        chunk = decode_chunk(data)
        if chunk is not None and _sound(chunk):
            self._chunks += 1
            self._add_chunk(at, chunk)
            return
        self.skipped_entries += 1
        self.foreign = self.foreign or at
        newer = data.startswith(MAGIC) and len(data) > len(HEAD) and data[len(MAGIC)] > VERSION
        if self._kept is None and (not self._chunks or newer):
            self._kept = at

    def _add_chunk(self, at: GLSN, chunk: SnapshotChunk) -> None:
        parts = self._begun.setdefault(chunk.save, {})
        parts[chunk.index] = (at, chunk)
        if len(parts) == chunk.chunks:
            del self._begun[chunk.save]
            content = b"".join(parts[index][1].content for index in sorted(parts))
            if zlib.crc32(content) == chunk.crc:
                self._keep(chunk.name, _Saved(_first(parts), chunk.position, content))

    def _keep(self, name: str, saved: _Saved) -> None:
        if name not in self.newest or self.newest[name].position <= saved.position:
            self.newest[name] = saved

    def needed(self) -> GLSN:
        """Nothing below is needed. One that is incomplete may be in flight: once complete, its saver relies on it. It can be
        trimmed only when there is another of its name that is as new."""
        firsts = [saved.first for saved in self.newest.values()]
        for parts in self._begun.values():
            _, chunk = next(iter(parts.values()))
            whole = self.newest.get(chunk.name)
            if whole is None or whole.position < chunk.position:
                firsts.append(_first(parts))
        if self._kept is not None:
            firsts.append(self._kept)
        return min(firsts)


def _first(parts: dict[int, tuple[GLSN, SnapshotChunk]]) -> GLSN:
    return min(at for at, _ in parts.values())
