"""Mutants of sequenced topics: units, leases, tokens and chains.

Units that forget or overwrite, leases that do not hold, tokens given twice, chains out of order.
"""

from __future__ import annotations

from typing import Final

from varlog.model.cluster import Ordering
from varlog.testing.sim.core.plan import FaultKind
from varlog.testing.sim.mutants.patch import Mutant

_UNIT = "varlog.storagenode.sequenced.unit:LogUnit"
_UNIT_MACHINE = "varlog.storagenode.sequenced.unit_machine:UnitMachine"
_UNIT_SYNC = "varlog.storagenode.sequenced.sync:_UnitSync"
_PAGES = "varlog.storage.sequenced.page_store:PageStore"
_LEASES = "varlog.metarepo.membership.leases:Leases"
_SEQUENCER = "varlog.sequencer.sequencer:Sequencer"
_SENDER = "varlog.client.sequenced.sender:SequencedBatchSender"
_REPAIR = "varlog.client.sequenced.repair:Repair"
_RULES = "varlog.reconfiguration.rules"
_RECONFIGURER = "varlog.reconfiguration.reconfigurer:Reconfigurer"


def _mutant(name: str, wrong: str, *edits: tuple[str, str, str], needs: tuple[FaultKind, ...] = ()) -> Mutant:
    return Mutant(name, wrong, edits, needs, Ordering.SEQUENCED)


SEQUENCED_MUTANTS: Final[tuple[Mutant, ...]] = (
    # --- log units
    _mutant(
        "unit-takes-an-old-epoch",
        "A log unit takes requests of epochs that are over (law 7, R-SEQ-5).",
        (f"{_UNIT_MACHINE}.check", "if epoch != self.newest_epoch:", "if epoch > self.newest_epoch:"),
        (f"{_UNIT}._answer", "self._admit_written(write.epoch)", "pass"),
    ),
    _mutant(
        "unit-says-done-to-another-value",
        "A log unit answers that a batch is written where another one of its place is (law 8).",
        (
            f"{_UNIT}._submit",
            "        self._compare(call, write, stored)",
            "        from varlog.rpc.messages import Done\n        call.reply(Done())",
        ),
    ),
    _mutant(
        "unit-answers-before-sync",
        "A log unit answers a write before it is on the disk (law 1).",
        ("varlog.storage.sequenced.page_segment:PageSegment.write", "file.sync()", "None"),
    ),
    _mutant(
        "seal-not-kept",
        "A log unit does not keep the epoch that it was sealed for, so that a restart forgets it (R-SEQ-9).",
        (
            f"{_PAGES}.set_epoch",
            "self._set_state(msgspec.structs.replace(self._state, epoch=epoch))",
            "self._state = msgspec.structs.replace(self._state, epoch=epoch)",
        ),
    ),
    _mutant(
        "seal-cancels-nothing",
        "A log unit that is sealed writes what waited with an older epoch, and does not count it in its answer (R-SEQ-9).",
        (f"{_UNIT}._stop_old", "if machine.entering:", "if False:"),
    ),
    _mutant(
        "unit-forgets-its-low-end",
        "A log unit applies a trim and does not keep it, so that a restart forgets it (law 9).",
        (
            f"{_PAGES}.trim",
            "self._set_state(msgspec.structs.replace(self._state, low=low, first_segment=segments[gone].number))",
            "self._state = msgspec.structs.replace(self._state, low=low)\n    gone = 0",
        ),
    ),
    _mutant(
        "sync-keeps-what-the-chain-has-not",
        "A unit that comes back keeps what it holds beside its chain, and joins with it (law 8).",
        (f"{_UNIT_SYNC}._apply_window", "raise ChainContradiction(", "(lambda what: None)("),
        (f"{_UNIT_SYNC}._check_nothing_behind", "raise ChainContradiction(", "(lambda what: None)("),
    ),
    # --- leases
    _mutant(
        "unit-without-lease",
        "A storage node answers for its log units without a lease (R-SEQ-13).",
        (f"{_UNIT}._check_epoch", "    self._owner.check_lease(self.log_stream)", "    pass"),
    ),
    _mutant(
        "sequencer-without-lease",
        "A sequencer answers without a lease (R-SEQ-13).",
        (f"{_SEQUENCER}._grant", "if not self._lease.holds:", "if False:"),
    ),
    _mutant(
        "leases-counted-short",
        "The repository takes a lease for over while its holder may still rely on it (R-SEQ-13).",
        (
            "varlog.metarepo.membership.lease_rules:LeaseBook.grant",
            "now.after(LEASE_US)",
            "now.after(LEASE_US // 4)",
        ),
    ),
    _mutant(
        "trim-waits-for-nobody",
        "The repository answers a trim before the units have applied it (R-TRIM-1).",
        (
            f"{_LEASES}.await_trim",
            "self._wait(lambda: rules.trim_waits_for(self._state.view, topic, glsn, self._reported), done)",
            "done()",
        ),
    ),
    # --- projections and positions
    _mutant(
        "two-projections-of-an-epoch",
        "The repository takes a second projection of the present epoch (R-SEQ-3).",
        (
            "varlog.metarepo.membership.projection_rules:accept",
            "if proposed.epoch != current + 1:",
            "if proposed.epoch not in (current, current + 1):",
        ),
    ),
    _mutant(
        "sequencer-begins-again",
        "A sequencer that takes over counts from the topic's first position (R-SEQ-2).",
        (
            "varlog.sequencer.token_machine:TokenMachine.apply_view",
            "known.next = max(known.next, projection.begin, GLSN(trimmed + 1))",
            "known.next = max(known.next, projection.first)",
        ),
    ),
    _mutant(
        "smallest-slow-tail",
        "A reconfiguration takes the smallest newest position of the units instead of the largest (R-SEQ-2).",
        (f"{_RULES}:slow_tail", "max(newest", "min(newest"),
    ),
    _mutant(
        "token-of-a-lost-sequencer",
        "A client continues to write at a position that its sequencer gave before another one took over (R-SEQ-2).",
        ("varlog.client.sequenced.failure_rules:still_ours", "return ", "return True or "),
    ),
    _mutant(
        "join-without-the-last-copy",
        "A unit joins a chain without what was written since it was filled (R-SEQ-14).",
        (
            f"{_RECONFIGURER}._last_copy",
            "return bool(known) and await self._copy(view, chain, node, known[-1], epoch)",
            "return bool(known)",
        ),
    ),
    # --- clients
    _mutant(
        "acknowledged-at-the-head",
        "A client takes an append for done when the head of the chain has it (R-SEQ-4).",
        (f"{_SENDER}._write", "while chain_write.next < len(chain.nodes):", "while chain_write.next < 1:"),
    ),
    _mutant(
        "tail-first",
        "A client writes along the chain from its tail to its head (law 8).",
        (f"{_SENDER}._write", "chain.nodes[chain_write.next]", "chain.nodes[-1 - chain_write.next]"),
    ),
    _mutant(
        "filled-at-the-tail-alone",
        "A reader fills a hole at the tail, without a look at who comes before it (R-SEQ-7, R-SEQ-8).",
        (
            f"{_REPAIR}._write",
            "if index < first:",
            "if index < first or (not batch and node != projection.chain(place.log_stream).tail):",
        ),
    ),
    _mutant(
        "copied-to-the-tail-alone",
        "A reader copies a half-written position to the tail, past the nodes between (R-SEQ-8).",
        (f"{_REPAIR}.repair", "holder + 1", "len(projection.chain(place.log_stream).nodes) - 1"),
    ),
    _mutant(
        "reader-does-not-ask-the-sequencer",
        "A reader takes a hole for the end of the log (R-SEQ-8).",
        ("varlog.client.sequenced.reader:SequencedReader.read", "if glsn >= given:", "if True:"),
    ),
    _mutant(
        "junk-shown",
        "A subscriber is shown junk as entries (R-SEQ-7).",
        (
            "varlog.client.sequenced.subscriber:SequencedSubscription.merged_ranges",
            "without_junk(taken)",
            "taken",
        ),
    ),
    _mutant(
        "append-twice",
        "A client takes new positions for a batch that the old ones may hold (law 10, R-ORD-7).",
        (f"{_SENDER}._classify", "if certain:", "if True:"),
    ),
)
