"""Memory for large buffers: not zeroed before it is filled, and not handed back to the system only to be asked for again."""

from __future__ import annotations

import contextlib
import ctypes
from typing import Final

# Below, filling is cheaper than the way around it.
_FILLED_BYTES_MAX: Final = 64 * 1024

# Of mallopt, in glibc: from where on a block is mapped by itself, and how much may lie free at the end of the heap.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_MAPPED_BYTES_MIN: Final = 32 << 20
_FREE_BYTES_MAX: Final = 256 << 20

_make = ctypes.pythonapi.PyByteArray_FromStringAndSize
_make.restype = ctypes.py_object
_make.argtypes = (ctypes.c_char_p, ctypes.c_ssize_t)


def unfilled(size: int) -> bytearray:
    """A bytearray whose bytes are whatever was there: for who overwrites all of them."""
    if size <= _FILLED_BYTES_MAX:
        return bytearray(size)
    made: bytearray = _make(None, size)
    return made


def keep_freed() -> None:
    """From now on this process keeps what it frees: one that holds a few large buffers, ever new ones, would else get each of them
    from the system page by page. Where the C library knows no such setting nothing happens."""
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES_MIN)
        library.mallopt(_TRIM_THRESHOLD, _FREE_BYTES_MAX)
