"""PURE. Walk: verifies one replica while it is read.

Checksums, LLSNs without a gap, order; and a digest to compare with other replicas. Nothing here runs per entry. Replicas are
equal byte for byte, so equal headers (which hold the bodies' checksums) and equal commit rows mean equal entries: a block's
digest is of these. Where a digest differs the block is read once more, batch by batch.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain

from varlog.model.batch import (
    HEADER_BYTES,
    BatchHeader,
    Buffer,
    check_body,
    check_offsets,
    parse_header,
)
from varlog.model.errors import CorruptBatch
from varlog.spark.audit.parts import (
    AuditRange,
    Batch,
    Block,
    CommittedRun,
    Finding,
    FindingKind,
    TaskFindings,
    cut,
    edges_of,
    merged_runs,
)

# A replica that is wrong at one point is often wrong everywhere behind it: one task lists this many findings, then counts.
FINDINGS_A_TASK_MAX = 50
AS_WRITTEN = "the bytes that were written"


@dataclass(slots=True)
class _Open:
    """The block being read."""

    begin: int
    end: int
    size: int = 0
    complete: bool = True
    trimmed: bool = False
    headers: list[bytes] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)


class Walk:
    """Verifies what one replica serves for a range, piece by piece, and records what is wrong.

    `next_llsn` is where to continue. `stuck`: the end of the batch there is unknown; find the next one that can be read, and
    `skip_to` it.
    """

    def __init__(self, reading: AuditRange) -> None:
        self.reading = reading
        self.next_llsn = reading.begin
        self.stuck = ""
        self.findings: list[Finding] = []
        self.more_findings = 0
        self.blocks: list[Block] = []
        self._runs: list[CommittedRun] = []  # of the open block, and what has come behind it
        self._ordered_end = reading.begin
        self._glsn = 0  # of the newest entry
        self._open = _Open(reading.begin, self._block_end(reading.begin))

    def add(self, rows: Sequence[tuple[int, int, int]], payload: Buffer) -> None:
        """Batches back to back, and the rows that order them from `next_llsn` on."""
        runs = [CommittedRun(*row) for row in rows]
        self._add_runs(runs)
        self._check_whole(runs, self._add_batches(payload, runs))

    def damaged(self, what: str) -> None:
        """The node itself reports damage at `next_llsn`."""
        self.stuck = what

    def skip_to(self, llsn: int) -> None:
        """The entries up to `llsn` cannot be read."""
        last = min(llsn, self.reading.end) - 1
        lost = f"; LLSNs {self.next_llsn} to {last} cannot be read" if last > self.next_llsn else ""
        self._note(FindingKind.DAMAGE, self.next_llsn, self._next_glsn(), self.stuck + lost, AS_WRITTEN)
        self.stuck = ""
        self._skip_to(llsn)

    def trimmed(self) -> None:
        """The rest was trimmed in the meantime, which is not an error."""
        self._skip_to(self.reading.end, trimmed=True)

    def ends(self, llsn: int) -> None:
        """The replica reports that it ends at `llsn`."""
        found, expected = f"the replica ends before LLSN {llsn}", f"entries up to LLSN {self.reading.end - 1}"
        self._note(FindingKind.GAP, self.next_llsn, self._next_glsn(), found, expected)
        self._skip_to(self.reading.end)

    def unread(self, why: str) -> None:
        """The rest of the range could not be read."""
        expected = f"entries up to LLSN {self.reading.end - 1}"
        self._note(FindingKind.UNREAD, self.next_llsn, self._next_glsn(), why, expected)
        self._skip_to(self.reading.end)

    def outcome(self) -> TaskFindings:
        """The findings, at the end."""
        self._close_up_to(self.next_llsn)
        return TaskFindings(tuple(self.blocks), tuple(self.findings), self.more_findings)

    # --- batches -------------------------------------------------------------------------------------------------------

    def _add_batches(self, payload: Buffer, runs: list[CommittedRun]) -> set[int]:
        """Returns where batches begin."""
        firsts: set[int] = set()
        at = 0
        while at < len(payload) and self.next_llsn < self.reading.end:
            try:
                header = parse_header(payload, at)
            except CorruptBatch as damage:
                self.stuck = damage.what
                break
            if not self._in_place(header, runs, leading=at == 0):
                break
            self._close_up_to(header.first_llsn)
            self._add_batch(payload, at, header, runs)
            firsts.add(header.first_llsn)
            self.next_llsn = header.end_llsn
            at += header.size
        return firsts

    def _in_place(self, header: BatchHeader, runs: list[CommittedRun], *, leading: bool) -> bool:
        """Whether the batch follows the last one. The first of a piece may begin before what was asked for."""
        expected, first = self.next_llsn, header.first_llsn
        if first == expected or (leading and first < expected < header.end_llsn):
            return True
        found = f"the batch of LLSNs {first} to {header.end_llsn - 1}"
        if first < expected:
            self.stuck = f"{found} comes where LLSN {expected} was next"
            return False
        self._note(
            FindingKind.GAP,
            expected,
            _glsn_at(runs, expected),
            found,
            f"a batch that begins at LLSN {expected}",
        )
        self._skip_to(first)
        return True

    def _add_batch(self, payload: Buffer, at: int, header: BatchHeader, runs: list[CommittedRun]) -> None:
        try:
            check_body(payload, header, at)
            check_offsets(payload, header, at)
        except CorruptBatch as damage:
            llsn = max(header.first_llsn, self.reading.begin)
            what = f"{damage.what} (the batch of LLSNs {header.first_llsn} to {header.end_llsn - 1})"
            self._note(FindingKind.DAMAGE, llsn, _glsn_at(runs, llsn), what, AS_WRITTEN)
        if header.first_llsn < self.reading.begin and not self.reading.first:
            return  # of the reading before this one
        signed = bytes(memoryview(payload)[at : at + HEADER_BYTES])
        self._open.size += header.size
        self._open.headers.append(signed)
        if self.reading.listing:
            crc = int.from_bytes(signed[60:64], "little")
            self._open.batches.append(Batch(header.first_llsn, header.count, header.body_crc, crc))

    # --- order ---------------------------------------------------------------------------------------------------------

    def _add_runs(self, runs: list[CommittedRun]) -> None:
        for run in cut(runs, self._ordered_end, self.reading.end):
            if run.llsn != self._ordered_end:
                found = f"no order for LLSNs {self._ordered_end} to {run.llsn - 1}"
                self._note(FindingKind.GAP, self._ordered_end, 0, found, "a GLSN for each")
            if run.glsn <= self._glsn:
                found = f"LLSN {run.llsn} is at GLSN {run.glsn}"
                self._note(FindingKind.ORDER, run.llsn, run.glsn, found, f"a GLSN above {self._glsn}")
            self._glsn = max(self._glsn, run.glsn + run.entries - 1)
            self._ordered_end = run.llsn + run.entries
            self._runs.append(run)

    def _check_whole(self, runs: list[CommittedRun], firsts: set[int]) -> None:
        """A run that is not the first of its piece begins with a batch: a batch is never ordered in pieces (R-ORD-5)."""
        for run in runs[1:]:
            if run.llsn not in firsts and run.llsn < self.next_llsn:
                found = "the batch that holds this LLSN is ordered in two pieces"
                self._note(FindingKind.ORDER, run.llsn, run.glsn, found, "consecutive GLSNs")

    # --- blocks --------------------------------------------------------------------------------------------------------

    def _block_end(self, llsn: int) -> int:
        size = self.reading.block_entries
        return min(self.reading.end, (llsn // size + 1) * size)

    def _close_up_to(self, llsn: int) -> None:
        while self._open.end <= llsn and self._open.begin < self.reading.end:
            self._close()

    def _close(self) -> None:
        """The block is read: its digest, and the next one begins."""
        reading, block = self.reading, self._open
        runs = merged_runs(cut(self._runs, block.begin, block.end))
        self._runs = cut(self._runs, block.end, reading.end)
        digest = blake2b(b"".join(block.headers), digest_size=16)
        digest.update(array("q", chain.from_iterable(runs)))
        entries = sum(run.entries for run in runs)
        self.blocks.append(
            Block(
                reading.log_stream,
                reading.node,
                block.begin,
                block.end,
                entries,
                block.size,
                digest.digest(),
                edges_of(runs),
                runs[0].glsn if runs else 0,
                runs[-1].glsn + runs[-1].entries - 1 if runs else 0,
                block.complete and entries == block.end - block.begin,
                block.trimmed,
                tuple(block.batches),
                tuple(runs) if reading.listing else (),
            )
        )
        self._open = _Open(block.end, self._block_end(block.end))

    def _skip_to(self, llsn: int, *, trimmed: bool = False) -> None:
        """Continue at `llsn`: what is before it is not read."""
        llsn = min(llsn, self.reading.end)
        self._close_up_to(self.next_llsn)
        while self._open.begin < llsn:
            self._open.complete, self._open.trimmed = False, trimmed
            if self._open.end > llsn:
                break
            self._close()
        self.next_llsn, self._ordered_end = llsn, max(llsn, self._ordered_end)

    # --- findings ------------------------------------------------------------------------------------------------------

    def _next_glsn(self) -> int:
        """Of the next LLSN, if its row has come; else 0."""
        return _glsn_at(self._runs, self.next_llsn)

    def _note(self, kind: FindingKind, llsn: int, glsn: int, found: str, expected: str) -> None:
        if len(self.findings) >= FINDINGS_A_TASK_MAX:
            self.more_findings += 1
            return
        reading = self.reading
        self.findings.append(
            Finding(
                kind,
                reading.topic,
                reading.log_stream,
                reading.node,
                reading.path,
                llsn,
                glsn,
                found,
                expected,
            )
        )


def _glsn_at(runs: Sequence[CommittedRun], llsn: int) -> int:
    """Where the rows say that an LLSN is; 0 if they do not."""
    index = bisect_right(runs, llsn, key=lambda run: run.llsn) - 1
    if index < 0:
        return 0
    run = runs[index]
    return run.glsn + llsn - run.llsn if llsn < run.llsn + run.entries else 0
