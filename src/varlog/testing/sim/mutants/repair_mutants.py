"""Mutants of repair: retries, sync, replacement, failing and corrupt disks.

Also of repositories that take over from each other.
"""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.core.plan import FaultKind
from varlog.testing.sim.mutants.patch import Mutant

_REPLICA = "varlog.storagenode.committed.replica:Replica"
_RETRIES = "varlog.storagenode.committed.duplicate_filter:DuplicateFilter"
_MACHINE = "varlog.storagenode.committed.replica_machine:ReplicaMachine"
_REPLICATED = "varlog.metarepo.store.replicated:ReplicatedStore"

REPAIR_MUTANTS: Final[tuple[Mutant, ...]] = (
    # --- retries: R-ORD-7 ---------------------------------------------------------------------------------------------
    Mutant(
        "retry-taken-as-new",
        "A primary takes an append that is sent again as a new one, without a look at what it has (R-ORD-7).",
        (
            (
                f"{_REPLICA}.append",
                "if (request.is_retry or duplicates.remembered) and duplicates",
                "if False and duplicates",
            ),
        ),
    ),
    Mutant(
        "original-after-retry-doubled",
        "A primary forgets a retry that it took, so that its delayed original is stored as well (R-ORD-7).",
        ((f"{_RETRIES}._searched", "self._remember(key, floor)", "pass"),),
        needs=(FaultKind.STRAGGLE,),
    ),
    Mutant(
        "append-in-a-later-epoch",
        "A primary takes an append that was meant for an older epoch, and was given up there (law 7).",
        ((f"{_REPLICA}._check_running", "if epoch and epoch != machine.epoch:", "if False:"),),
    ),
    Mutant(
        "find-append-before-the-seal",
        "A replica says that a batch is not in the log before its epoch is over there (law 6, R-ORD-7).",
        ((f"{_RETRIES}.find", "if not machine.can_resolve(request.epoch):", "if False:"),),
    ),
    Mutant(
        "find-append-in-vain",
        "A replica never finds a batch that it is asked for, and so says that it is not in the log (R-ORD-7).",
        (
            (
                f"{_RETRIES}._found",
                "FindAppendReply(False) if at is None else",
                "FindAppendReply(False) if True else",
            ),
        ),
    ),
    # --- sync, rebuild, replacement -----------------------------------------------------------------------------------
    Mutant(
        "sync-of-the-tail-only",
        "A sync that finds a gap before the first piece begins behind it, although the entries are not trimmed (law 4).",
        (
            (
                "varlog.storagenode.committed.sync:CopySource.copy",
                "max(request.llsn, self._store.low_llsn)",
                "max(request.llsn, self._store.low_llsn, min(self._store.low_llsn + 3, self._store.committed_end - 1))",
            ),
            (
                "varlog.storagenode.committed.sync:_Sync._begin_at",
                "if machine.committed_end >= copied.low_llsn:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "seal-reported-before-the-sync",
        "A replica that lacks entries below the seal says that it is sealed (R-SEAL-4).",
        (
            (
                f"{_MACHINE}.seal",
                "if self.committed_end == committed_end:",
                "if self.committed_end == committed_end or self.durable_end < committed_end:",
            ),
            (
                f"{_MACHINE}.tail_cut",
                "self.assigned_end = self.durable_end = end",
                "self.assigned_end = self.durable_end = self.committed_end = end",
            ),
        ),
    ),
    Mutant(
        "empty-replica-runs",
        "The manager believes that a replica which was created again has everything, and opens it (R-UNSEAL-1).",
        (
            (
                "varlog.manager.committed.inputs:StreamCondition.is_behind",
                "and status.committed_end < self.stream.sealed_end",
                "and False",
            ),
            (f"{_MACHINE}.seal", "if self.committed_end == committed_end:", "if True:"),
            (
                f"{_MACHINE}.tail_cut",
                "self.assigned_end = self.durable_end = end",
                "self.assigned_end = self.durable_end = self.committed_end = end",
            ),
        ),
    ),
    Mutant(
        "replace-the-last-copy",
        "The manager replaces a replica that stays away although no other one is complete (R-REG-6).",
        (
            (
                "varlog.manager.committed.rules:replacement",
                "if case.inputs.is_lost(node) and case.is_complete_without(node):",
                "if case.inputs.is_lost(node):",
            ),
        ),
        needs=(FaultKind.AWAY,),
    ),
    Mutant(
        "zombies-stay",
        "The manager never removes replicas that belong to no stream (R-REG-4).",
        (
            (
                "varlog.manager.orphan_collector:OrphanCollector.collect",
                "if now - since >= self._config.zombie_grace_s:",
                "if False:",
            ),
        ),
    ),
    # --- disks --------------------------------------------------------------------------------------------------------
    Mutant(
        "failed-fsync-forgotten",
        "A sync that failed is taken for a good one: what the next power loss takes was reported (law 1).",
        (
            (
                "varlog.storage.committed.segment:Segment.write",
                "        offset += sum(map(len, part))\n    file.sync()",
                (
                    "        offset += sum(map(len, part))\n"
                    "    try:\n        file.sync()\n    except OSError:\n        pass"
                ),
            ),
        ),
        needs=(FaultKind.FSYNC,),
    ),
    Mutant(
        "rows-believed-after-a-failed-sync",
        "A store that is opened again after a failed sync believes the rows it can read, which are not on the platter (law 1).",
        (
            (
                "varlog.storage.committed.commit_store:CommitStore.restore",
                "if found.proven < kept:",
                "if False:",
            ),
        ),
        needs=(FaultKind.FSYNC,),
    ),
    Mutant(
        "reader-trusts-bytes",
        "A client hands out what it was sent without a look at the checksums (design 3).",
        (
            (
                "varlog.client.chunk:Chunk.__init__",
                "check_body(payload, header, at)\n        check_offsets(payload, header, at)\n",
                "pass\n",
            ),
        ),
        needs=(FaultKind.FLIP,),
    ),
    Mutant(
        "rot-stays",
        "Damage that was found is forgotten instead of repaired (design 4).",
        (
            (
                "varlog.storagenode.committed.block_repair:BlockRepair._repair_range",
                "if await self._is_intact(blocks):",
                "if True:",
            ),
        ),
        needs=(FaultKind.FLIP,),
    ),
    # --- repositories that take turns -----------------------------------------------------------------------------------
    Mutant(
        "commit-not-fenced",
        "A repository that was deposed can still write to the store that all share (law 7).",
        ((f"{_REPLICATED}._conditions", "return [", "return [] and ["),),
    ),
    Mutant(
        "answers-after-the-lease",
        "A repository that was paused for longer than its lease answers before it has checked the time (law 7).",
        (
            (
                "varlog.metarepo.repository:MetadataRepository._handle",
                "if self._leader_term is None or not self._store.leads:",
                "if self._leader_term is None:",
            ),
        ),
    ),
    # --- slow nodes ---------------------------------------------------------------------------------------------------
    Mutant(
        "streams-in-turns",
        "A client gives each stream its turn, however slow it is, so that all appends are as slow as the slowest stream.",
        (
            (
                "varlog.client.committed.stream_costs:StreamCosts.cheapest",
                "if len(streams) == 1:",
                "if True:\n        return streams[turn % len(streams)]\n    if len(streams) == 1:",
            ),
            (
                "varlog.client.committed.sender:BatchSender.is_probe_next",
                "return stream.log_stream in self._costs.suspects",
                "return False",
            ),
        ),
        gray_watch=True,
    ),
    Mutant(
        "whole-batch-as-a-probe",
        "A client tries a stream that was slow with all appends that wait, so that each of them may be as slow as the last one.",
        (
            (
                "varlog.client.committed.sender:BatchSender.is_probe_next",
                "return stream.log_stream in self._costs.suspects",
                "return False",
            ),
        ),
        gray_watch=True,
    ),
    Mutant(
        "slow-primary-stays",
        "The manager leaves primaries on a node with a slow disk, although another replica is on a sound one.",
        (
            (
                "varlog.manager.committed.rules:SlowPrimaries.primary_for",
                "or not self._is_slow(stream.primary, now)",
                "or True",
            ),
        ),
        gray_watch=True,
    ),
    Mutant(
        "slow-since-the-last-look",
        "The manager counts how long a node has been slow from its last look on, and so never long enough.",
        (
            (
                "varlog.manager.committed.rules:SlowPrimaries.update",
                "self._since.get(node, (now, now))[0]",
                "now",
            ),
        ),
        gray_watch=True,
    ),
)
