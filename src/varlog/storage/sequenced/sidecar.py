"""[Q5] The sidecar of a closed segment of pages: an index of its pages.

With it, opening a unit reads no closed segment. It can be rebuilt.

    offset  size  field (little endian)
         0     4  magic "VLP1"
         4     2  format version
         6     2  reserved, zero
         8     8  number of the segment
        16     8  bytes of the segment
        24     4  count of pages
        28     4  CRC32C of bytes 0 to 27 and of the pages
        32     -  24 bytes per page, in the order of the segment: first LLSN (8), count of entries (4, bit 31: junk),
                  offset (4), bytes of header and body (4), CRC32C of the header (4)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from varlog.model.batch import crc32c
from varlog.storage.sequenced.page_index import JUNK_BIT, PageRef

_FORMAT_VERSION: Final = 1

_MAGIC: Final = b"VLP1"
_HEADER = struct.Struct("<4sHHQQI")
_CRC = struct.Struct("<I")
_PAGES_AT: Final = _HEADER.size + _CRC.size
_PAGE = struct.Struct("<QIIII")

PAGE_TYPE: Final = np.dtype(
    [("firsts", "<u8"), ("counts", "<u4"), ("offsets", "<u4"), ("sizes", "<u4"), ("crcs", "<u4")]
)
PageRows = npt.NDArray[np.void]


def encode_pages(pages: Iterable[PageRef]) -> bytes:
    """The rows of the pages in a sidecar."""
    return b"".join(
        _PAGE.pack(
            page.first_llsn,
            page.count | JUNK_BIT if page.is_junk else page.count,
            page.offset,
            page.size,
            page.crc,
        )
        for page in pages
    )


def sidecar_rows(encoded: bytes | bytearray) -> PageRows:
    return np.frombuffer(bytes(encoded), PAGE_TYPE)


def encode_sidecar(segment: int, segment_bytes: int, encoded: bytes | bytearray) -> bytes:
    """The sidecar of a segment that was closed at `segment_bytes`, with its pages' rows."""
    head = _HEADER.pack(_MAGIC, _FORMAT_VERSION, 0, segment, segment_bytes, len(encoded) // _PAGE.size)
    return head + _CRC.pack(crc32c(head + encoded)) + encoded


def decode_sidecar(content: bytes, segment: int, segment_bytes: int) -> PageRows | None:
    """The pages in a sidecar, or None if it is damaged or not of the segment as it is: then it must be rebuilt."""
    return sidecar_rows(content[_PAGES_AT:]) if closed_bytes(content, segment) == segment_bytes else None


def closed_bytes(content: bytes, segment: int) -> int | None:
    """How long the segment was when it was closed; None if the sidecar is damaged or of another segment."""
    if len(content) < _PAGES_AT:
        return None
    head, pages = content[: _HEADER.size], content[_PAGES_AT:]
    magic, version, reserved, number, size, count = _HEADER.unpack(head)
    (crc,) = _CRC.unpack_from(content, _HEADER.size)
    if (magic, version, reserved, number) != (_MAGIC, _FORMAT_VERSION, 0, segment):
        return None
    intact = len(pages) == _PAGE.size * count and crc == crc32c(head + pages)
    return int(size) if intact else None
