"""Mutants of what is believed although it is harmed: checksums, read errors, missing files, disks that went back in time."""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.patch import Mutant
from varlog.testing.sim.plan import Kind

_READER = "varlog.storagenode.log_stream.reader:Reader"
_UNIT_READER = "varlog.storagenode.log_unit.unit_reader:UnitReader"
_CONNECTION = "varlog.testing.sim.connection:SimConnection"
_CANNOT_BE_READ = 'Unavailable(f"log stream {self._store.log_stream} cannot be read here: {error}")'
_UNIT_CANNOT_BE_READ = 'Unavailable(f"log stream {self._machine.log_stream} cannot be read here: {error}")'
_BELIEVED = 'self._break_off("a frame arrived damaged")', "self._take(frame, message)"


def _mutant(
    name: str,
    wrong: str,
    *edits: tuple[str, str, str],
    needs: tuple[Kind, ...],
    ordering: Ordering = Ordering.COMMITTED,
) -> Mutant:
    return Mutant(name, wrong, edits, needs, ordering)


HARM_MUTANTS: Final[tuple[Mutant, ...]] = (
    # --- messages
    _mutant(
        "damaged-frame-believed",
        "A message whose frame was changed on its way is believed.",
        (f"{_CONNECTION}._arrive", *_BELIEVED),
        needs=(Kind.CORRUPT,),
    ),
    _mutant(
        "damaged-frame-believed-sequenced",
        "A message of a sequenced topic whose frame was changed on its way is believed.",
        (f"{_CONNECTION}._arrive", *_BELIEVED),
        needs=(Kind.CORRUPT,),
        ordering=Ordering.SEQUENCED,
    ),
    # --- checksums of small files
    _mutant(
        "state-checksum-unchecked",
        "A replica believes a state file whose checksum is wrong (laws 6, 9).",
        (
            "varlog.storage.state_file:decode_state",
            "if crc != crc32c(content[: -_CRC.size]):",
            "if False:",
        ),
        needs=(Kind.HARM,),
    ),
    _mutant(
        "rows-checksum-unchecked",
        "A replica believes commit rows whose checksums are wrong (law 3).",
        (
            "varlog.storage.row_file:read_rows",
            'valid = rows["crc"] == _row_crcs(rows)',
            'valid = rows["crc"] == rows["crc"]',
        ),
        needs=(Kind.HARM,),
    ),
    _mutant(
        "sidecar-checksum-unchecked",
        "A replica believes the sidecar of a segment whose checksum is wrong.",
        (
            "varlog.storage.index:decode_index",
            "if len(points) != 8 * count or crc != crc32c(head + points):",
            "if len(points) != 8 * count:",
        ),
        needs=(Kind.HARM,),
    ),
    _mutant(
        "unit-checksum-unchecked",
        "A log unit believes a state file whose checksum is wrong (laws 7, 9).",
        ("varlog.storage.unit_state:decode_unit", "if crc != crc32c(content[: -_CRC.size]):", "if False:"),
        needs=(Kind.HARM,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "page-sidecar-checksum-unchecked",
        "A log unit believes the sidecar of a segment whose checksum is wrong.",
        (
            "varlog.storage.page_sidecar:decode_sidecar",
            "if len(pages) != _PAGE.size * count or crc != crc32c(head + pages):",
            "if len(pages) != _PAGE.size * count:",
        ),
        needs=(Kind.HARM,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "rows-beyond-the-data-kept",
        "A replica keeps commit rows of entries that its disk has lost (R-CTX-3).",
        (
            "varlog.storage.recovery:_judge_rows",
            "kept = rows.within(newest.end_llsn)",
            "kept = len(rows)",
        ),
        needs=(Kind.HARM,),
    ),
    # --- read errors
    _mutant(
        "read-error-said-as-not-written",
        "A replica answers a read that its disk refused as if nothing were written there (R-READ-1).",
        (f"{_READER}._read_done", _CANNOT_BE_READ, "NotWritten(llsn, LLSN(llsn - 1))"),
        needs=(Kind.READ,),
    ),
    _mutant(
        "read-error-said-as-trimmed",
        "A replica answers a read that its disk refused as if the entry were trimmed (law 9).",
        (f"{_READER}._read_done", _CANNOT_BE_READ, "Trimmed(llsn, LLSN(llsn + 1))"),
        needs=(Kind.READ,),
    ),
    _mutant(
        "unit-read-error-said-as-a-hole",
        "A log unit answers a read that its disk refused as if nothing were written there (R-SEQ-8).",
        (
            f"{_UNIT_READER}._failed",
            _UNIT_CANNOT_BE_READ,
            "NotWritten(pages[0].first_llsn, LLSN(pages[0].first_llsn - 1))",
        ),
        needs=(Kind.READ,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "unit-read-error-said-as-trimmed",
        "A log unit answers a read that its disk refused as if the entry were trimmed (law 9).",
        (
            f"{_UNIT_READER}._failed",
            _UNIT_CANNOT_BE_READ,
            "Trimmed(pages[0].first_llsn, pages[-1].end_llsn)",
        ),
        needs=(Kind.READ,),
        ordering=Ordering.SEQUENCED,
    ),
    # --- missing files
    _mutant(
        "missing-segment-said-as-trimmed",
        "A replica says of entries whose file somebody removed that they are trimmed (law 9).",
        ("varlog.storage.log_store:LogStore._opened", "if llsn >= self.low_llsn:", "if False:"),
        needs=(Kind.HARM,),
    ),
    _mutant(
        "missing-page-segment-said-as-trimmed",
        "A log unit says of entries whose file somebody removed that they are trimmed (law 9).",
        (
            "varlog.storage.page_store:PageStore._check_not_missing",
            "if page.end_llsn > self.low:",
            "if False:",
        ),
        needs=(Kind.HARM,),
        ordering=Ordering.SEQUENCED,
    ),
    # --- disks that went back in time
    _mutant(
        "restored-unit-believed",
        "A log unit whose node was restarted counts as whole without a look at its chain (law 10).",
        (
            "varlog.storagenode.log_unit.unit:LogUnit.__init__",
            "self.unproven = parts.restored and store.epoch != NO_EPOCH",
            "self.unproven = False",
        ),
        needs=(Kind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "proven-without-a-copy",
        "A log unit that is compared with its chain does not copy what it lacks (R-SEQ-14).",
        (
            "varlog.storagenode.log_unit.unit_sync:_UnitSync._take_window",
            "for begin, end in _stretches(list(theirs.values())):",
            "for begin, end in ():",
        ),
        needs=(Kind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "rewound-replica-runs",
        "A replica that lacks entries below the seal is opened as it is (R-UNSEAL-1, R-SEAL-4).",
        (
            "varlog.manager.repair_case:Case.is_behind",
            "and status.committed_end < self.stream.sealed_end",
            "and False",
        ),
        (
            "varlog.storagenode.log_stream.replica_machine:ReplicaMachine.seal",
            "if self.committed_end == committed_end:",
            "if True:",
        ),
        (
            "varlog.storagenode.log_stream.replica_machine:ReplicaMachine.tail_cut",
            "self.assigned_end = self.durable_end = end",
            "self.assigned_end = self.durable_end = self.committed_end = end",
        ),
        needs=(Kind.REWIND,),
    ),
)
