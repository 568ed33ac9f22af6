"""Mutants of recipes: at least one planted bug in each.

The results that their users got show them.
"""

from __future__ import annotations

from typing import Final

from varlog.testing.sim.mutants.patch import Mutant
from varlog.testing.sim.recipes.plan import Work

_RULES = "varlog.recipes.kv.transaction_rules"
_TRANSACTION = "varlog.recipes.kv.transactions:Transaction"
_REPLICA = "varlog.recipes.core.replicated:ReplicatedStateMachine"

RECIPE_MUTANTS: Final[tuple[Mutant, ...]] = (
    Mutant(
        "command-applied-again",
        "A command that is in the log twice, because nobody knew what had become of it, is applied twice.",
        (
            (
                "varlog.recipes.core.command_rules:Session.has",
                "return sequence < self.floor or sequence in self.above",
                "return False",
            ),
        ),
        recipe=Work.LEDGER,
    ),
    Mutant(
        "noise-stops-a-replica",
        "A replica stops at bytes that look like a command of a newer version, whatever machine they name.",
        (
            (
                "varlog.recipes.core.envelope:newer_command",
                "if not values or not isinstance(values[0], str):\n        return None",
                "if not values:\n        return 'counter', data[len(MAGIC)]",
            ),
        ),
        recipe=Work.COUNTER,
    ),
    Mutant(
        "impossible-envelope-applied",
        "A command is applied from an envelope that no client can have made.",
        (("varlog.recipes.core.envelope:Envelope.possible_at", "return (\n", "return True or (\n"),),
        recipe=Work.COUNTER,
    ),
    Mutant(
        "malformed-command-stops-a-replica",
        "A machine fails at a command that has no command's fields, and so does every replica of it.",
        (
            (
                "varlog.recipes.core.replicated:ReplicatedStateMachine._apply",
                "except MalformedCommand as error:",
                "except KeyError as error:",
            ),
        ),
        recipe=Work.QUEUE,
    ),
    Mutant(
        "read-without-barrier",
        "A caller that wants to catch up does not wait for what is in the log and not applied here.",
        ((f"{_REPLICA}.catch_up", "if tail > self.applied:", "if False:"),),
        recipe=Work.LEDGER,
    ),
    Mutant(
        "snapshot-says-too-much",
        "A snapshot claims one position more than it has: a copy that resumes from it never applies that one.",
        (
            (
                f"{_REPLICA}.checkpoint",
                "encode_snapshot(self.name, position,",
                "encode_snapshot(self.name, GLSN(position + 1),",
            ),
        ),
        recipe=Work.LEDGER,
    ),
    Mutant(
        "counter-read-here",
        "The value of a counter is what this process has applied.",
        (("varlog.recipes.core.counter:Counter.value", "if not stale:", "if stale:"),),
        recipe=Work.COUNTER,
    ),
    Mutant(
        "queue-last-in-first-out",
        "A take gives what was put last.",
        (
            (
                "varlog.recipes.queue.queue_machine:QueueMachine.take",
                "heapq.heappop(self._ready)",
                "self._ready.pop()",
            ),
        ),
        recipe=Work.QUEUE,
    ),
    Mutant(
        "queue-loses-what-is-given-back",
        "An item whose claim is over is never given to a client again.",
        (
            (
                "varlog.recipes.queue.queue_machine:QueueMachine.release",
                "heapq.heappush(self._ready, known.number)",
                "del self._items[known.number]",
            ),
        ),
        recipe=Work.QUEUE,
    ),
    Mutant(
        "lock-expired-over-a-sign",
        "A claim is expired although it sent a heartbeat since.",
        (
            (
                "varlog.recipes.lock.lock_machine:LockMachine.execute",
                "and known.heartbeat == command.heartbeat",
                "",
            ),
            ("varlog.recipes.core.lease_rules:Watch.overdue", "now_us >= self.due_us(who)", "True"),
        ),
        recipe=Work.LOCK,
    ),
    Mutant(
        "lock-believed-too-long",
        "A lease is valid for longer than others wait for the next heartbeat.",
        (("varlog.recipes.core.lease_rules:validity_us", "(1 - 2 * CLOCK_DRIFT_MAX)", "9"),),
        recipe=Work.LOCK,
    ),
    Mutant(
        "leader-is-who-came-last",
        "The last candidate in the line is returned as the leader of the term.",
        (
            (
                "varlog.recipes.lock.election:_leader",
                "Leader(holder.who, machine.token)",
                "Leader([*machine][-1].who, machine.token)",
            ),
        ),
        recipe=Work.ELECTION,
    ),
    Mutant(
        "map-read-here",
        "A read of the map sees what this process has applied.",
        (("varlog.recipes.kv.key_value:KeyValue.get", "await self.wait_fresh(stale, timeout_s)", "pass"),),
        recipe=Work.KV,
    ),
    Mutant(
        "compare-without-looking",
        "A compare-and-set of a key that is there writes whatever its revision is.",
        (
            (
                "varlog.recipes.kv.kv_machine:KvMachine.compare_and_set",
                "(found.revision if found else NO_GLSN) != expected",
                "found is None and expected",
            ),
        ),
        recipe=Work.KV,
    ),
    Mutant(
        "watch-skips",
        "A watch delivers only the first of the changes that have come at once.",
        (
            (
                "varlog.recipes.kv.key_value:KeyValue._changes",
                "for change in news:",
                "for change in news[:1]:",
            ),
        ),
        recipe=Work.KV,
    ),
    Mutant(
        "committed-key-by-key",
        "What a transaction writes gets into the log key by key: others come in between.",
        (
            (
                f"{_TRANSACTION}.commit",
                "self._over = True\n",
                (
                    "self._over = True\n"
                    "    for key in sorted(self._writes, reverse=self.snapshot % 2 == 0):\n"
                    "        one = Footprint(self.isolation, self.snapshot, (), (), {key: self._writes[key]})\n"
                    "        last = await self._replica.execute(encode_commit(one), timeout_s=timeout_s)\n"
                    "    if self._writes:\n"
                    "        return last\n"
                ),
            ),
        ),
        recipe=Work.READ_COMMITTED,
    ),
    Mutant(
        "second-committer-wins",
        "A transaction at snapshot isolation writes over what another one has committed since it began.",
        (
            (
                f"{_RULES}:find_clash",
                "return _clash_in_keys(state, footprint.writes, footprint.snapshot)",
                "return None",
            ),
        ),
        recipe=Work.SNAPSHOT,
    ),
    Mutant(
        "snapshot-moves",
        "A transaction at snapshot isolation reads what was committed after it began.",
        ((f"{_TRANSACTION}.get", "machine.get_at(key, self.snapshot)", "machine.get(key)"),),
        recipe=Work.SNAPSHOT,
    ),
    Mutant(
        "write-skew-under-serializable",
        "A serializable transaction is judged by what it writes, as one at snapshot isolation.",
        (
            (
                f"{_RULES}:find_clash",
                "_clash_in_keys(state, footprint.reads,",
                "_clash_in_keys(state, footprint.writes,",
            ),
        ),
        recipe=Work.SERIALIZABLE,
    ),
    Mutant(
        "phantoms-under-serializable",
        "A serializable transaction is not judged by the ranges that it read.",
        ((f"{_RULES}:find_clash", " or _clash_in_ranges(state, footprint)", ""),),
        recipe=Work.SERIALIZABLE,
    ),
)
