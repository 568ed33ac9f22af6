"""Mutants of what is believed although it is harmed."""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.core.plan import FaultKind
from varlog.testing.sim.mutants.patch import Mutant

_READER = "varlog.storagenode.committed.reader:ReplicaReader"
_UNIT_READER = "varlog.storagenode.sequenced.reader:UnitReader"
_RECONFIGURATION = "varlog.reconfiguration.rules"
_JOURNAL = "varlog.metarepo.store.journal"
_SQLITE = "varlog.metarepo.store.sqlite:SqliteStore"
_CONNECTION = "varlog.testing.sim.core.network:SimConnection"
_CANNOT_BE_READ = 'Unavailable(f"log stream {self._store.log_stream} cannot be read here: {error}")'
_UNIT_CANNOT_BE_READ = 'Unavailable(f"log stream {self._machine.log_stream} cannot be read here: {error}")'
_BELIEVED = 'self._break_off("a frame arrived damaged")', "self._take(frame, message)"


def _mutant(
    name: str,
    wrong: str,
    *edits: tuple[str, str, str],
    needs: tuple[FaultKind, ...],
    ordering: Ordering = Ordering.COMMITTED,
) -> Mutant:
    return Mutant(name, wrong, edits, needs, ordering)


HARM_MUTANTS: Final[tuple[Mutant, ...]] = (
    # --- messages
    _mutant(
        "damaged-frame-believed",
        "A message whose frame was changed on its way is believed.",
        (f"{_CONNECTION}._arrive", *_BELIEVED),
        needs=(FaultKind.CORRUPT,),
    ),
    _mutant(
        "damaged-frame-believed-sequenced",
        "A message of a sequenced topic whose frame was changed on its way is believed.",
        (f"{_CONNECTION}._arrive", *_BELIEVED),
        needs=(FaultKind.CORRUPT,),
        ordering=Ordering.SEQUENCED,
    ),
    # --- read errors
    _mutant(
        "read-error-said-as-trimmed",
        "A replica answers a read that its disk refused as if the entry were trimmed (law 9).",
        (f"{_READER}._read_done", _CANNOT_BE_READ, "Trimmed(llsn, LLSN(llsn + 1))"),
        needs=(FaultKind.READ,),
    ),
    _mutant(
        "unit-read-error-said-as-trimmed",
        "A log unit answers a read that its disk refused as if the entry were trimmed (law 9).",
        (
            f"{_UNIT_READER}._failed",
            _UNIT_CANNOT_BE_READ,
            "Trimmed(pages[0].first_llsn, pages[-1].end_llsn)",
        ),
        needs=(FaultKind.READ,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "damage-said-as-trimmed",
        "A replica answers a read of a damaged batch as if the entry were trimmed (law 9).",
        (f"{_READER}._read_done", "call.fail(damaged)", "call.fail(Trimmed(llsn, LLSN(llsn + 1)))"),
        needs=(FaultKind.FLIP,),
    ),
    # --- the repository's files
    _mutant(
        "journal-missing-begins-empty",
        "A repository whose journal is missing continues without the commits that were in it (law 3).",
        (
            f"{_SQLITE}._left_journals",
            'raise JournalDamaged("it is missing, and the newest commits were in it")',
            "pass",
        ),
        needs=(FaultKind.STORE_HARM,),
    ),
    _mutant(
        "journal-second-copy-unused",
        "A repository reads one copy of each record alone, and cuts the journal at the first one that is bad (law 3).",
        (
            f"{_JOURNAL}:_scan",
            "    record = records.setdefault(number,",
            "    if number and place >= start + count:\n            continue\n        record = records.setdefault(number,",
        ),
        (f"{_JOURNAL}:_check_complete", "if known > newest:", "if False:"),
        (
            f"{_JOURNAL}:_check_next_place",
            "if len(lost) > (1 if known else 0):",
            "if False:",
        ),
        needs=(FaultKind.STORE_HARM,),
    ),
    # --- files without a name
    _mutant(
        "deleted-rows-not-noticed",
        "A running replica whose commit rows were deleted or replaced continues with the unlinked file (law 1).",
        (
            "varlog.storage.committed.commit_store:CommitStore.relink",
            "relinked(self._disk, self._open_file(), self.size_bytes)",
            "None",
        ),
        needs=(FaultKind.HARM,),
    ),
    _mutant(
        "deleted-segment-not-noticed",
        "A running replica whose open segment was deleted or replaced continues with the unlinked file (law 1).",
        (
            "varlog.storage.segment_file:SegmentFile.relink",
            "if opened is not None else None",
            "if False else None",
        ),
        needs=(FaultKind.HARM,),
    ),
    _mutant(
        "deleted-segment-of-a-unit-not-noticed",
        "A running log unit whose open segment was deleted or replaced continues with the unlinked file (law 1).",
        (
            "varlog.storage.segment_file:SegmentFile.relink",
            "if opened is not None else None",
            "if False else None",
        ),
        needs=(FaultKind.HARM,),
        ordering=Ordering.SEQUENCED,
    ),
    # --- disks that went back in time
    _mutant(
        "restored-unit-believed",
        "A log unit whose node was restarted counts as whole without a look at its chain (law 10).",
        (
            "varlog.storagenode.sequenced.unit:LogUnit.__init__",
            "self.unverified = restored and store.epoch != NO_EPOCH",
            "self.unverified = False",
        ),
        needs=(FaultKind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "restored-unit-is-answer-enough",
        "The answer of one restarted log unit is enough for the next projection: what the others hold is forgotten (R-SEQ-10).",
        (
            f"{_RECONFIGURATION}:proven",
            "if not answers[node].unverified",
            "if True",
        ),
        needs=(FaultKind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "restored-units-do-not-wait",
        "Restarted log units are compared with those that answer, and the others are not waited for (law 10).",
        (
            f"{_RECONFIGURATION}:to_compare",
            "node not in answers and node not in lost",
            "False",
        ),
        needs=(FaultKind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "restored-units-not-compared",
        "After a restart of all, log units count as whole without having been compared with each other (law 10).",
        (
            "varlog.reconfiguration.reconfigurer:Reconfigurer._compare",
            "for source in sources:",
            "for source in ():",
        ),
        (
            "varlog.storagenode.sequenced.unit:LogUnit.seal",
            "store, unverified = self.store, self.unverified",
            "store, unverified, self.unverified = self.store, self.unverified, False",
        ),
        needs=(FaultKind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "proven-without-a-copy",
        "A log unit that is compared with its chain does not copy what it lacks (R-SEQ-14).",
        (
            "varlog.storagenode.sequenced.sync:_UnitSync._apply_window",
            "for begin, end in _page_ranges(list(theirs.values())):",
            "for begin, end in ():",
        ),
        needs=(FaultKind.REWIND,),
        ordering=Ordering.SEQUENCED,
    ),
    _mutant(
        "rewound-replica-runs",
        "A replica that lacks entries below the seal is opened as it is (R-UNSEAL-1, R-SEAL-4).",
        (
            "varlog.manager.committed.inputs:StreamCondition.is_behind",
            "and status.committed_end < self.stream.sealed_end",
            "and False",
        ),
        (
            "varlog.storagenode.committed.replica_machine:ReplicaMachine.seal",
            "if self.committed_end == committed_end:",
            "if True:",
        ),
        (
            "varlog.storagenode.committed.replica_machine:ReplicaMachine.tail_cut",
            "self.assigned_end = self.durable_end = end",
            "self.assigned_end = self.durable_end = self.committed_end = end",
        ),
        needs=(FaultKind.REWIND,),
    ),
)
