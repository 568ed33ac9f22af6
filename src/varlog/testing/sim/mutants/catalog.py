"""Mutants: bugs planted in the production code, each found by the simulator.

They prove that the simulator can fail.
"""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.core.plan import FaultKind
from varlog.testing.sim.mutants.harm_mutants import HARM_MUTANTS
from varlog.testing.sim.mutants.patch import Mutant
from varlog.testing.sim.mutants.position_mutants import NAMED_MUTANTS, ORDER_MUTANTS, WRITE_MUTANTS
from varlog.testing.sim.mutants.recipe_mutants import RECIPE_MUTANTS
from varlog.testing.sim.mutants.repair_mutants import REPAIR_MUTANTS
from varlog.testing.sim.mutants.repository_mutants import STORE_MUTANTS, WITNESS_MUTANTS
from varlog.testing.sim.mutants.sequenced_mutants import SEQUENCED_MUTANTS

__all__ = ["MUTANTS", "Mutant", "find", "plant"]

_REPLICA = "varlog.storagenode.committed.replica:Replica"
_MACHINE = "varlog.storagenode.committed.replica_machine:ReplicaMachine"
_STORE = "varlog.storage.committed.log_store:LogStore"

MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "report-before-fsync",
        "A replica reports a batch as durable that was written but not synced (law 1).",
        (
            (
                "varlog.storage.committed.segment:Segment.write",
                "        file.write_at(part, offset)\n        offset += sum(map(len, part))\n    file.sync()",
                "        file.write_at(part, offset)\n        offset += sum(map(len, part))",
            ),
        ),
    ),
    Mutant(
        "ack-before-commit",
        "A primary answers an append when its own disk has it, with the position it expects it to get (law 2).",
        (
            (
                f"{_REPLICA}._written",
                "if moved:\n",
                (
                    "if moved:\n"
                    "        while self._acks._waiting and self._acks._waiting[0][1] <= end:\n"
                    "            first, _, size, call, *_ = self._acks._waiting.popleft()\n"
                    "            self._acks.bytes_waiting -= size\n"
                    "            ahead = 1 + first - self.store.committed_end\n"
                    "            from varlog.rpc.messages import Appended\n"
                    "            call.reply(Appended(GLSN(self.store.high_watermark + ahead), first))\n"
                ),
            ),
        ),
    ),
    Mutant(
        "keep-tail-on-seal",
        "A seal keeps its epoch but leaves the tail above the sealed position on disk (law 6, R-SEAL-5).",
        (
            (
                f"{_REPLICA}._carry_out",
                "store.cut(effect.epoch, effect.end)",
                "store.set_epoch(effect.epoch, effect.end)",
            ),
        ),
    ),
    Mutant(
        "forget-trim-point",
        "A storage node applies a trim but does not keep the trim point, so that a restart forgets it (law 9).",
        (
            (
                f"{_STORE}.trim",
                "self._set_state(msgspec.structs.replace(self._state, trimmed=glsn, low_llsn=low))",
                "self._state = msgspec.structs.replace(self._state, trimmed=glsn, low_llsn=low)",
            ),
        ),
    ),
    Mutant(
        "push-before-persist",
        "The repository sends the order to the nodes before it is durable (law 3).",
        (
            (
                "varlog.metarepo.ordering.commit_loop:CommitLoop.run",
                "if plan.changes:\n                    await self._store.commit(plan.changes)\n                self._apply(plan)",
                "self._apply(plan)\n                if plan.changes:\n                    await self._store.commit(plan.changes)",
            ),
        ),
    ),
    Mutant(
        "order-by-any-replica",
        "The repository orders what one replica of a stream holds instead of every one (law 2).",
        (
            (
                "varlog.metarepo.ordering.commit_rules:orderable_end",
                "report.durable_end < end",
                "report.durable_end > end",
            ),
        ),
    ),
    Mutant(
        "ignore-report-epoch",
        "The repository keeps to a report of an older epoch, which may speak of entries that a seal has cut (law 7).",
        (
            (
                "varlog.metarepo.ordering.commit_rules:orderable_end",
                "report is None or report.epoch != epoch",
                "report is None",
            ),
            (
                "varlog.metarepo.ordering.reports:ReportTable.record",
                "        by_node[node] = report\n",
                (
                    "        if node not in by_node or by_node[node].durable_end <= report.durable_end:\n"
                    "            by_node[node] = report\n"
                ),
            ),
        ),
    ),
    Mutant(
        "run-after-restart",
        "A replica restored from disk starts RUNNING instead of SEALING (R-SN-8).",
        (
            (
                f"{_MACHINE}.__post_init__",
                "self.assigned_end = self.durable_end",
                "self.assigned_end = self.durable_end\n    if self.opened:\n        self.state = ReplicaState.RUNNING",
            ),
        ),
    ),
    Mutant(
        "forget-rows-early",
        "The repository forgets commit rows that some replica has not synced yet.",
        (
            (
                "varlog.metarepo.ordering.order:Order.base",
                "if row.llsn_end > synced",
                "if row.llsn_end > max(synced, end - 1)",
            ),
        ),
    ),
    Mutant(
        "lose-last-row-on-restart",
        "A restarted replica takes over one commit row less than it has on disk.",
        (
            (
                "varlog.storage.committed.recovery:_check_rows",
                "kept = rows.within(newest.end_llsn)",
                "kept = max(0, rows.within(newest.end_llsn) - 1)",
            ),
        ),
    ),
    Mutant(
        "rows-shifted-on-restart",
        "A restarted replica believes its last commit row to begin one position later.",
        (
            (
                "varlog.storage.committed.commit_store:CommitStore.restore",
                "self._file_rows = kept\n",
                "self._file_rows = kept\n    if kept > 1 and len(self._index) > 1:\n        self._index.glsns[-1] += 1\n",
            ),
        ),
    ),
    Mutant(
        "subscriber-does-not-wait",
        "A subscriber takes the lowest position that has arrived instead of waiting for the next one (R-READ-3).",
        (
            (
                "varlog.client.merge_rules:Merge.pop_ready",
                "    position = self.next\n",
                "    position = max(self.next, min(self._heads, default=self.next))\n",
            ),
        ),
    ),
    Mutant(
        "subscriber-repeats",
        "A subscriber takes what it has already seen once more, as if it were new (R-READ-3).",
        (
            (
                "varlog.client.merge_rules:Merge.pop_ready",
                "self.next = position\n",
                (
                    "self.next = position\n"
                    "    if taken and taken[-1].last and taken[-1].length > 1:\n"
                    "        taken.append(taken[-1])\n"
                ),
            ),
        ),
    ),
    Mutant(
        "retry-unknown-append",
        "A client sends an append again whose outcome is not known (law 10, R-ORD-7).",
        (("varlog.client.append_rules:classify", "return ErrorClass.UNKNOWN", "return ErrorClass.AGAIN"),),
    ),
    Mutant(
        "refused-append-sent-later",
        "A client reports of an append that it is not in the log, and sends it later with the others of its batch (law 10).",
        (
            (
                "varlog.client.batcher:Batcher._expire",
                "self._leave_out(inflight)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "refuse-while-undecided",
        "A primary that seals itself refuses its waiting appends although they may still be ordered (law 10, R-SEAL-6).",
        (
            (
                f"{_REPLICA}._break",
                "self._machine.broken(trouble)\n",
                "self._machine.broken(trouble)\n    self._acks.fail(Sealed(self.log_stream))\n",
            ),
        ),
    ),
    Mutant(
        "trim-one-too-many",
        "A trim removes the entry above the trim point as well (R-TRIM-1).",
        (
            (
                f"{_STORE}._raise_trim_floor",
                "self._commits.llsn_from(GLSN(self._trim_floor + 1))",
                "self._commits.llsn_from(GLSN(self._trim_floor + 2))",
            ),
        ),
    ),
    Mutant(
        "trim-answered-before-applied",
        "The repository answers a trim before the nodes have applied it (R-TRIM-1).",
        (
            (
                "varlog.metarepo.service:RepositoryService._confirm_trim",
                "waits.await_trim(request.topic, request.glsn, applied)",
                "applied()",
            ),
        ),
    ),
    Mutant(
        "cut-divides-batches",
        "The repository orders all but the last entry of what is durable, so that a batch is ordered in two parts (R-ORD-5).",
        (
            (
                "varlog.metarepo.ordering.commit_rules:next_cut",
                "count = orderable_end(stream, committed_end, reports) - committed_end",
                "count = orderable_end(stream, committed_end, reports) - committed_end\n        count -= count > 1",
            ),
        ),
    ),
    Mutant(
        "forget-directory-sync",
        "A new segment's name is not made durable before entries in it are reported (law 1).",
        (("varlog.storage.committed.segment:Segment.create", "    disk.sync_directory(directory)\n", ""),),
    ),
    Mutant(
        "report-rows-before-sync",
        "A replica reports commit rows as synced that a power loss can still take, and the repository forgets them.",
        (("varlog.storage.committed.commit_store:CommitStore.sync", "file.sync()", "None"),),
    ),
    Mutant(
        "seal-without-new-epoch",
        "The repository seals a stream without beginning a new epoch (law 7).",
        (("varlog.metarepo.membership.rules:seal_stream", "Epoch(stream.epoch + 1)", "Epoch(stream.epoch)"),),
    ),
    Mutant(
        "run-without-backup",
        "A primary that loses a backup continues to accept appends (R-SEAL-6).",
        (
            (
                "varlog.storagenode.committed.replicator:Replicator._broken",
                'self._on_broken(f"replication broke: {what}")',
                "pass",
            ),
        ),
    ),
    Mutant(
        "visible-before-ordered",
        "A primary shows entries to readers when its own disk has them, at the positions it expects (law 5).",
        (
            (
                f"{_REPLICA}._written",
                "if moved:\n",
                (
                    "if moved:\n"
                    "        store = self.store\n"
                    "        if self._machine.primary and end > store.committed_end:\n"
                    "            high, count = store.high_watermark, end - store.committed_end\n"
                    "            store.commit(CommitRow(0, high + count, high, high + 1, store.committed_end, count, epoch))\n"
                    "            self.reader.wake()\n"
                ),
            ),
            (
                f"{_REPLICA}.commit",
                "self.store.commit(new)",
                "self.store.commit(new) if new.llsn_begin == self.store.committed_end else None",
            ),
        ),
    ),
    Mutant(
        "late-seal-accepted",
        "A replica takes a seal of an epoch in which it runs already, as one that was delayed on the way (law 6).",
        (
            (
                f"{_MACHINE}.seal",
                "epoch < self.epoch or (epoch == self.epoch and self.opened)",
                "epoch < self.epoch",
            ),
        ),
    ),
    Mutant(
        "seal-before-what-was-reported",
        "The repository seals a stream below what it orders in the same moment (R-SEAL-3).",
        (("varlog.metarepo.ordering.commit_loop:_facts_after", "if cut is None:", "if True:"),),
    ),
    Mutant(
        "refuse-at-the-seal",
        "A primary that is sealed refuses its waiting appends before it knows which of them are ordered (law 10).",
        (
            (
                f"{_REPLICA}._stop_appends",
                "self._writer.drop_queue()\n",
                "self._writer.drop_queue()\n    self._acks.fail(Sealed(self.log_stream))\n",
            ),
        ),
        needs=(FaultKind.LOSS,),
    ),
    Mutant(
        "trim-without-rows",
        "A trim survives a power loss that takes the commit rows which say where it is (law 9).",
        ((f"{_STORE}.trim", "    self.sync_rows()\n", ""),),
    ),
    Mutant(
        "frame-checksum-not-checked",
        "A frame whose message was changed on its way is believed.",
        (("varlog.rpc.framing:FrameReader.received", "head_crc) != crc:", "head_crc) < 0:"),),
    ),
    *REPAIR_MUTANTS,
    *HARM_MUTANTS,
    *ORDER_MUTANTS,
    *NAMED_MUTANTS,
    *WRITE_MUTANTS,
    *STORE_MUTANTS,
    *WITNESS_MUTANTS,
    *SEQUENCED_MUTANTS,
    *RECIPE_MUTANTS,
)

# Finding one of these takes so long that `make test` leaves them to `make sim-mutants`.
RARE: Final = frozenset(
    {
        "answers-after-the-lease",
        "chain-pending-kept-over-a-seal",
        "commit-not-fenced",
        "first-position-forgotten",
        "forget-rows-early",
        "leases-counted-short",
        "lost-topic-adopts-itself",
        "lost-topic-has-a-tail",
        "refuse-at-the-seal",
        "replace-the-last-copy",
        "seal-cancels-nothing",
        "sequencer-without-lease",
        "stopped-topic-sealed-at-the-older-end",
        "trim-answered-before-applied",
        "trim-waits-for-nobody",
        "trim-without-rows",
        "unit-says-done-to-another-value",
        "unit-without-lease",
    }
)


def find(name: str) -> Mutant:
    """The planted bug of that name."""
    for mutant in MUTANTS:
        if mutant.name == name:
            return mutant
    raise LookupError(
        f"there is no planted bug {name!r}; there are: {', '.join(one.name for one in MUTANTS)}"
    )


def plant(name: str) -> Mutant:
    """Plant the bug of that name in this process."""
    mutant = find(name)
    mutant.plant()
    return mutant
