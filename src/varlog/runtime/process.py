"""Limits of this process: file descriptors and memory of large buffers.

What a shell allows is often 1024. libuv closes connections that it cannot accept for want of a descriptor, and reports nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
from contextlib import suppress
from typing import Final

from varlog.runtime.logging import get_logger, logfmt

# A node with a thousand log streams has some for each, a proxy one for each connection. More than this is of no use to either.
OPEN_FILES: Final = 65_536

LOOK_S: Final = 1.0

_log = get_logger("runtime")


def allow_open_files() -> None:
    """Raise this process's own bound, as far as its system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system with a bound of its own below that
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def watch_open_files() -> None:
    """Forever: check once a second whether one more descriptor is available, and log each change."""
    exhausted = False
    while True:
        try:
            os.close(os.dup(0))
        except OSError as error:
            if not exhausted:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
                _log.error(
                    logfmt("no file descriptor is left: connections and new files are refused; allow more (ulimit -n)",
                         limit=limit, why=error)
                )  # fmt: skip
            exhausted = True
        else:
            if exhausted:
                _log.info(logfmt("file descriptors can be had again"))
            exhausted = False
        await asyncio.sleep(LOOK_S)


# Memory for large buffers: not zeroed before it is filled, and not returned to the system only to be requested again.

# Below this size, zeroing is cheaper than avoiding it.
_FILLED_BYTES_MAX: Final = 64 * 1024

# Of mallopt, in glibc: from where on a block is mapped by itself, and how much may lie free at the end of the heap.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAPPED_BYTES_MIN: Final = 32 << 20
_FREE_BYTES_MAX: Final = 256 << 20

_make = ctypes.pythonapi.PyByteArray_FromStringAndSize
_make.restype = ctypes.py_object
_make.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


def unfilled(size: int) -> bytearray:
    """A bytearray with undefined content, for callers that overwrite all of it."""
    if size <= _FILLED_BYTES_MAX:
        return bytearray(size)
    made: bytearray = _make(None, size)
    return made


def keep_freed() -> None:
    """From now on this process keeps what it frees: a process that allocates large buffers again and again would
    otherwise get each of them from the system page by page. Where the C library knows no such setting nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        library.mallopt(_TRIM_THRESHOLD, _FREE_BYTES_MAX)
