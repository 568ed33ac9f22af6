"""Mutants of writes by several attempts: chains that are extended twice or wrongly, and copies at the wrong place."""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.patch import Mutant

_CHAINS = "varlog.storagenode.log_stream.producer_sequences:ProducerSequences"
_CHAINED = "varlog.storagenode.log_stream.idempotent_appends:IdempotentAppends"
_CHAIN_RULES = "varlog.storagenode.log_stream.idempotent_rules"

WRITE_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "chain-not-checked",
        "A primary takes a batch of a chain wherever the chain ends (R-USE-4).",
        (
            (
                f"{_CHAINED}._extends",
                "if decision is SequenceDecision.TAKE:",
                "if decision is not SequenceDecision.SAME:",
            ),
        ),
    ),
    Mutant(
        "chain-by-number-alone",
        "A primary knows the batches of a chain by their numbers, and does not look at the checksums (R-USE-4).",
        (
            (
                f"{_CHAIN_RULES}:decide",
                "if sent.sequence ==",
                "sent = sent._replace(previous_crc=last.body_crc, body_crc=last.body_crc)\n    if sent.sequence ==",
            ),
        ),
    ),
    Mutant(
        "chain-pending-kept-over-a-seal",
        "A replica that is opened anew believes that batches which the seal has cut are under way (law 6).",
        ((f"{_CHAINS}.open", "    self._pending.clear()\n    self._pending_of.clear()\n", ""),),
    ),
    Mutant(
        "chain-not-searched",
        "A primary that does not know the end of a chain takes it for one that has not begun, without a look at the disk.",
        ((f"{_CHAINS}.newest", "if floor < searched_floor:", "if False:"),),
    ),
    Mutant(
        "chain-holes-ignored",
        "A replica that got batches by a restart or a sync goes on as if it had noted them.",
        ((f"{_CHAINS}.ordered", "if not noted:", "if False:"),),
    ),
    Mutant(
        "chain-forgotten-unsaid",
        "A replica forgets the oldest chain for lack of room, and does not remember that it did.",
        ((f"{_CHAINS}._remember", "self.known_from = LLSN(oldest.llsn + 1)", "pass"),),
    ),
    Mutant(
        "chain-rows-written-again",
        "An attempt writes rows that another one has written in another order (R-USE-4).",
        (
            (
                "varlog.client.idempotent_writer:IdempotentWriter._leave_out",
                "self._others.leave_out(rows)",
                "rows",
            ),
        ),
    ),
    Mutant(
        "placed-anywhere",
        "A primary takes an entry that was sent for one position at another.",
        (
            (
                f"{_CHAINED}.admits",
                "if request.expected_llsn and request.expected_llsn != machine.assigned_end:",
                "if False:",
            ),
        ),
    ),
)
