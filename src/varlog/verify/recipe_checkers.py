"""Recipe checkers: one class per promise of a recipe (R-USE-2).

Each describes what was violated.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from varlog.verify.checkers import REPORTED_MAX
from varlog.verify.history import CallOutcome
from varlog.verify.linearizability import CounterModel, KeyModel, explain
from varlog.verify.recipe_history import RecipeCall, RecipeHistory
from varlog.verify.serializability import violations
from varlog.verify.transaction_history import TransactionHistory, history_of_lists


class RecipeChecker(ABC):
    """One promise. `check` yields one sentence for each violation."""

    law: ClassVar[str] = "R-USE-2"

    @property
    def name(self) -> str:
        return type(self).__name__

    @abstractmethod
    def check(self, history: RecipeHistory) -> Iterator[str]: ...


class ReplicasOfOneState(RecipeChecker):
    """Replicas of a machine that have applied the same position have the same state."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        yield from history.disagreements


class CommandsOnce(RecipeChecker):
    """A command that was executed is in the ledger once, where it was said to be; a refused one is nowhere; commands keep the order
    of real time, and a look after a barrier shows all that was executed before."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        ledger = history.ledger
        if ledger is None:
            return
        calls = list(history.of("ledger", "execute"))
        for call in calls:
            count = ledger.count(call.given)
            if count > 1:
                yield f"{call}, and it is there {count} times"
            elif count and not call.possible:
                yield f"{call}, and it is there"
            elif call.done and ledger[call.got : call.got + 1] != [call.given]:
                yield f"{call}, and there is {ledger[call.got : call.got + 1] or 'nothing'}"
        yield from self._in_order(calls)
        for look in history.of("ledger", "look"):
            if look.done:
                yield from self._look(look, ledger, calls)

    def _in_order(self, calls: list[RecipeCall]) -> Iterator[str]:
        latest: RecipeCall | None = None
        for call in sorted((call for call in calls if call.done), key=lambda call: call.got):
            if latest is not None and call.ended is not None and call.ended < latest.started:
                yield f"{call} ended before {latest} began, and is behind it"
            if latest is None or call.started > latest.started:
                latest = call

    def _look(self, look: RecipeCall, ledger: list[bytes], calls: list[RecipeCall]) -> Iterator[str]:
        seen = list(look.got)
        if ledger[: len(seen)] != seen:
            yield f"{look} is no beginning of what is there at the end"
        for call in calls:
            if call.done and call.ended is not None and call.ended < look.started and call.given not in seen:
                yield f"{look} began behind the end of {call}, and did not see it"


class CountsExactly(RecipeChecker):
    """A counter is linearizable: every add counts once, where it was not refused."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for key in sorted({call.key for call in history.of("counter")}):
            wrong = explain([call for call in history.of("counter") if call.key == key], CounterModel())
            if wrong:
                yield f"counter {key}: {wrong}"


class KeysLinearizable(RecipeChecker):
    """Every key of the map is a register: puts, deletes, compare-and-sets and reads have one order. A read that may be old never
    goes back."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        calls = list(history.of("kv", "put", "get", "cas", "delete"))
        for key in sorted({call.key for call in calls}):
            mine = [call for call in calls if call.key == key]
            if wrong := explain(mine, KeyModel(mine)):
                yield f"key {key}: {wrong}"
        newest: dict[tuple[str, str], int] = {}
        for call in history.of("kv", "stale"):
            if call.done and call.got is not None:
                before = newest.setdefault((call.client, call.key), call.got[1])
                if call.got[1] < before:
                    yield f"{call}, although this client has seen revision {before} before"
                newest[call.client, call.key] = max(before, call.got[1])


class WatchesWhole(RecipeChecker):
    """A watch delivers every change of its keys after its revision, in order, each once."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        if history.changes is None:
            return
        for watch in history.watches:
            due = [
                one
                for one in history.changes
                if one.key.startswith(watch.prefix) and one.revision > watch.after
            ]
            got = watch.changes
            for at, change in enumerate(got):
                if at >= len(due) or due[at] != change:
                    expected = due[at] if at < len(due) else "nothing"
                    yield f"{watch.client} watches {watch.prefix!r} after {watch.after}: {change}, expected {expected}"
                    break
            else:
                missed = [one for one in due[len(got) :] if one.revision <= watch.until]
                if missed:
                    yield f"{watch.client} watches {watch.prefix!r} until {watch.until} and did not get {missed[0]}"


class OneHolder(RecipeChecker):
    """Once a client was granted a lock, or the lead, no client with an older token considers itself the holder;
    no token is given twice; tokens grow in real time."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for recipe in ("lock", "election"):
            for key in sorted({call.key for call in history.of(recipe, "acquire")}):
                grants = [
                    call
                    for call in history.of(recipe, "acquire")
                    if call.key == key and call.done and call.got
                ]
                grants.sort(key=lambda call: call.ended or 0)
                yield from self._tokens(grants)
                yield from self._beliefs(recipe, key, grants, history)

    def _tokens(self, grants: list[RecipeCall]) -> Iterator[str]:
        given: dict[int, RecipeCall] = {}
        for grant in grants:
            first = given.setdefault(grant.got, grant)
            if first is not grant:
                yield f"one token, two holders: {first} and {grant}"
        for at, grant in enumerate(grants):
            for later in grants[at + 1 :]:
                if grant.ended is not None and grant.ended < later.started and later.got < grant.got:
                    yield f"{later} is behind {grant} in time, and its token is older"

    def _beliefs(
        self, recipe: str, key: str, grants: list[RecipeCall], history: RecipeHistory
    ) -> Iterator[str]:
        for hold in history.holds:
            if (hold.recipe, hold.key) != (recipe, key):
                continue
            for grant in grants:
                if grant.ended is not None and grant.ended < hold.event and grant.got > hold.token:
                    yield f"{hold.client} considers itself the holder of {recipe} {key} by token {hold.token}, and {grant}"
                    break


class FencesHold(RecipeChecker):
    """What is behind a fence takes no older token than one it took before."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        newest: dict[str, int] = {}
        for passed in history.passed:
            if passed.token < newest.get(passed.key, 0):
                yield f"{passed.client} passed the fence of {passed.key} by {passed.token}, behind {newest[passed.key]}"
            newest[passed.key] = max(passed.token, newest.get(passed.key, 0))


class OneLeaderPerTerm(RecipeChecker):
    """All clients see the same leader for a term; for each client terms never decrease; a leader was granted its term."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        leaders: dict[tuple[str, int], str] = {
            (call.key, call.got): str(call.given)
            for call in history.of("election", "acquire")
            if call.done and call.got
        }
        newest: dict[tuple[str, str], int] = {}
        for seen in history.leaders:
            first = leaders.setdefault((seen.key, seen.term), seen.leader)
            if first != seen.leader:
                yield f"term {seen.term} of {seen.key} is led by {first}, and {seen.client} sees {seen.leader}"
            before = newest.get((seen.key, seen.client), 0)
            if seen.term < before:
                yield f"{seen.client} sees term {seen.term} of {seen.key} behind term {before}"
            newest[seen.key, seen.client] = max(before, seen.term)


class QueuesKeep(RecipeChecker):
    """Nothing that was put is lost, nothing is done twice, nothing comes that was not put; what was put first is taken first."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for key in sorted({call.key for call in history.of("queue")}):
            calls = [call for call in history.of("queue") if call.key == key]
            puts = {call.given: call for call in calls if call.what == "put"}
            takes = [call for call in calls if call.what == "take" and call.done and call.got]
            yield from self._nothing_new(puts, takes)
            yield from self._done_once(calls)
            if any(call.what == "drained" for call in calls):
                yield from self._nothing_lost(puts, calls)
            yield from self._in_order(puts, takes)
            yield from self._one_at_a_time(takes, history)

    def _nothing_new(self, puts: dict[object, RecipeCall], takes: list[RecipeCall]) -> Iterator[str]:
        tokens: dict[int, RecipeCall] = {}
        for take in takes:
            item, token, _ = take.got
            put = puts.get(item)
            if put is None or not put.possible:
                yield f"{take}, and {put or 'nobody put it'}"
            first = tokens.setdefault(token, take)
            if first is not take:
                yield f"one claim, two holders: {first} and {take}"

    def _one_at_a_time(self, takes: list[RecipeCall], history: RecipeHistory) -> Iterator[str]:
        """A client that holds an item by its own clock is its only holder."""
        for hold in history.holds:
            for take in takes if hold.recipe == "queue" else ():
                item, token, _ = take.got
                if hold.key == item.decode() and token > hold.token and (take.ended or 0) < hold.event:
                    yield f"{hold.client} considers itself the holder of {hold.key} by claim {hold.token}, and {take}"

    def _done_once(self, calls: list[RecipeCall]) -> Iterator[str]:
        """A claim that was acknowledged as done ends its item: no other claim is, and the item is never claimed again."""
        done: dict[object, RecipeCall] = {}
        for call in calls:
            if call.what == "done" and call.done and call.got:
                first = done.setdefault(call.given[0], call)
                if first is not call and first.given != call.given:
                    yield f"done twice: {first} and {call}"
        for take in (call for call in calls if call.what == "take" and call.done and call.got):
            end = done.get(take.got[0])
            if end is not None and end.ended is not None and end.ended < take.started:
                yield f"{take}, and it was done before: {end}"

    def _nothing_lost(self, puts: dict[object, RecipeCall], calls: list[RecipeCall]) -> Iterator[str]:
        """At the end all is claimed and done: acknowledged, or with an outcome that its client does not know."""
        ended = {call.given[0] for call in calls if call.what == "done" and call.possible}
        for item, put in puts.items():
            if put.done and item not in ended:
                yield f"{put}, and it is lost"

    def _in_order(self, puts: dict[object, RecipeCall], takes: list[RecipeCall]) -> Iterator[str]:
        """What nobody had before is given in the order in which it was put; claims have the order of their tokens."""
        latest: RecipeCall | None = None
        fresh = [take for take in takes if take.got[2] == 1 and take.got[0] in puts]
        for take in sorted(fresh, key=lambda take: take.got[1]):
            put = puts[take.got[0]]
            if latest is not None and put.done and put.ended is not None and put.ended < latest.started:
                yield f"{take} came behind {latest.given!r}, and was put before it: {put}"
            if latest is None or put.started > latest.started:
                latest = put


class Isolated(RecipeChecker):
    """Transactions show no anomaly that their isolation level forbids."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for level, transactions in history.lists.items():
            for anomaly in violations(history_of_lists(transactions), level):
                yield f"{level}: {anomaly}"
        for level, registers in history.registers.items():
            for anomaly in violations(TransactionHistory.of_registers(registers, history.revisions), level):
                yield f"{level}: {anomaly}"


class RecipesInTime(RecipeChecker):
    """Every call ends by its deadline; where nothing was broken on purpose, with what it was to do."""

    law = "law 10, house rule 4"

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for call in history.calls:
            late = call.ended_s is not None and call.ended_s > call.deadline_s + history.deadline_slack_s
            if late and call.client.partition(".")[0] not in history.paused:
                yield f"{call} was to end by {call.deadline_s:.3f} s and ended at {call.ended_s:.3f} s"
            if history.calm and call.outcome in (
                CallOutcome.UNKNOWN,
                CallOutcome.FAILED,
                CallOutcome.REJECTED,
                CallOutcome.OPEN,
            ):
                yield f"{call}, although nothing was broken"


RECIPE_CHECKERS: tuple[RecipeChecker, ...] = (
    ReplicasOfOneState(),
    CommandsOnce(),
    CountsExactly(),
    KeysLinearizable(),
    WatchesWhole(),
    OneHolder(),
    FencesHold(),
    OneLeaderPerTerm(),
    QueuesKeep(),
    Isolated(),
    RecipesInTime(),
)


def check_recipes(history: RecipeHistory) -> list[tuple[RecipeChecker, str]]:
    """Every violation, by promise; the first few of each."""
    found: list[tuple[RecipeChecker, str]] = []
    for checker in RECIPE_CHECKERS:
        for number, violation in enumerate(checker.check(history)):
            if number == REPORTED_MAX:
                break
            found.append((checker, violation))
    return found
