"""DirectorySnapshots: snapshots as files of a directory, complete or absent.

NAME~POSITION~RANDOM.snapshot    the name quoted as in a URL; eight random hex digits, so that two concurrent saves do not collide
C1 'v' 'l' 'f' 01                magic and version
CRC-32 of what follows           4 bytes, big-endian
the snapshot
"""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

from varlog.model.lsn import GLSN
from varlog.runtime.environment import Environment, system_environment
from varlog.runtime.logging import get_logger, logfmt

MAGIC: Final = b"\xc1vlf"
VERSION: Final = 1
HEAD: Final = MAGIC + bytes([VERSION])
CRC_BYTES: Final = 4
SUFFIX: Final = ".snapshot"
# How many are kept per name: if a disk corrupts the newest, the one before may still be enough.
KEPT: Final = 2
# A longer name does not fit into a file's: its end is replaced by a hash.
STEM_CHARACTERS_MAX: Final = 160

T = TypeVar("T")

_log = get_logger("recipes")


class DirectorySnapshots:
    """For replicas of one machine, or of several that share a file system. The directory is created if missing."""

    def __init__(self, path: str | Path, *, environment: Environment | None = None) -> None:
        self._path = Path(path)
        self._environment = environment or system_environment()
        self._disk = self._environment.disk

    async def save(self, name: str, position: GLSN, content: bytes) -> None:
        """Durable when this returns. Older ones of the same name are removed, except the last before it."""
        drawn = self._environment.entropy.getrandbits(32)
        path = self._path / f"{_stem(name)}~{position:020d}~{drawn:08x}{SUFFIX}"

        def write() -> None:
            self._disk.make_directory(self._path)
            self._disk.replace_file(path, encode_file(content))
            for _, old in self._files(name)[KEPT:]:
                with contextlib.suppress(FileNotFoundError):  # another replica was faster
                    self._disk.remove(old)

        await self._in_thread(write)

    async def newest(self, name: str) -> tuple[GLSN, bytes] | None:
        """The newest one that is not damaged."""
        return await self._in_thread(lambda: self._newest(name))

    def _newest(self, name: str) -> tuple[GLSN, bytes] | None:
        while True:
            try:
                return self._newest_of(self._files(name))
            except FileNotFoundError:
                continue  # removed, because another replica has saved a newer one: list again

    def _newest_of(self, files: list[tuple[GLSN, Path]]) -> tuple[GLSN, bytes] | None:
        for position, path in files:
            content = decode_file(self._disk.read_file(path))
            if content is not None:
                return position, content
            _log.error(logfmt("a snapshot cannot be read, an older one is used", path=path))
        return None

    def _files(self, name: str) -> list[tuple[GLSN, Path]]:
        """Those of this name, the newest first."""
        if not self._disk.exists(self._path):
            return []
        found = []
        for file in self._disk.list(self._path):
            stem, _, rest = file.removesuffix(SUFFIX).rpartition("~")[0].rpartition("~")
            if file.endswith(SUFFIX) and stem == _stem(name) and rest.isdecimal():
                found.append((GLSN(int(rest)), self._path / file))
        return sorted(found, reverse=True)

    async def _in_thread(self, job: Callable[[], T]) -> T:
        worker = self._environment.make_worker("snapshots")
        try:
            return await worker.run(job)
        finally:
            await worker.close()


def encode_file(content: bytes) -> bytes:
    """What is in a file."""
    return HEAD + zlib.crc32(content).to_bytes(CRC_BYTES) + content


def decode_file(found: bytes) -> bytes | None:
    """The snapshot in a file; None: it is damaged, or of a version that is not known here."""
    content = found[len(HEAD) + CRC_BYTES :]
    crc = int.from_bytes(found[len(HEAD) : len(HEAD) + CRC_BYTES])
    return content if found.startswith(HEAD) and zlib.crc32(content) == crc else None


def _stem(name: str) -> str:
    quoted = quote(name, safe="")
    if len(quoted) <= STEM_CHARACTERS_MAX:
        return quoted
    return quoted[:STEM_CHARACTERS_MAX] + hashlib.sha256(name.encode()).hexdigest()[:16]
