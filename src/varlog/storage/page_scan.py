"""[Q5] Walks the pages of a segment in the order of their arrival and checks every checksum: where the good ones end, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from varlog.model.batch import BatchHeader
from varlog.model.errors import CorruptBatch
from varlog.model.lsn import LLSN
from varlog.storage.page_index import Page
from varlog.storage.scan import Read, all_batches, only_zeros


@dataclass(slots=True)
class PageScan:
    """The good pages of a segment, and what comes behind them."""

    pages: list[Page] = field(default_factory=list)
    size: int = 0
    problem: str = ""  # why the next bytes are no page; empty where the file ends or only zeros follow
    corrupt_ranges: list[tuple[LLSN, LLSN]] = field(
        default_factory=list
    )  # synced pages whose bytes have rotted


def scan_pages(read: Read, file_bytes: int, synced: int, number: int = 0) -> PageScan:
    """Check the segment from its first byte on; stop at the first page that is damaged.

    A rotten body before `synced` is stepped over: no crash spoils what was synced, and its header still says where the next
    page begins. It is noted, and the other nodes of the chain have its bytes.
    """
    found = PageScan()
    try:
        for at, header, problem in all_batches(read, file_bytes, None):
            if problem is not None:
                if at + header.size > min(synced, file_bytes):
                    raise problem
                found.corrupt_ranges.append((header.first_llsn, header.end_llsn))
            found.pages.append(_page(header, number, at))
            found.size = at + header.size
    except CorruptBatch as problem:
        if not only_zeros(read, file_bytes, found.size):
            found.problem = problem.what
    return found


def _page(header: BatchHeader, segment: int, offset: int) -> Page:
    return Page(header.first_llsn, header.count, header.size, header.crc, segment, offset, header.is_junk)
