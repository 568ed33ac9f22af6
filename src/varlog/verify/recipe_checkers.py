"""Recipe checkers: one class a promise of a recipe (R-USE-2). Each tells in words what was broken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from varlog.verify.checkers import TOLD_MAX
from varlog.verify.history import Outcome
from varlog.verify.linearizability import CounterModel, KeyModel, explain
from varlog.verify.recipe_history import Deed, RecipeHistory
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


class ReplicasOfOneMind(RecipeChecker):
    """Replicas of a machine that have applied the same position have the same state."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        yield from history.disagreements


class CommandsOnce(RecipeChecker):
    """A command that was executed is in the ledger once, where it was said to be; a refused one is nowhere; commands keep the order
    of real time, and whoever looks after a barrier sees all that was executed before."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        ledger = history.ledger
        if ledger is None:
            return
        deeds = list(history.of("ledger", "execute"))
        for deed in deeds:
            count = ledger.count(deed.given)
            if count > 1:
                yield f"{deed}, and it is there {count} times"
            elif count and not deed.possible:
                yield f"{deed}, and it is there"
            elif deed.done and ledger[deed.got : deed.got + 1] != [deed.given]:
                yield f"{deed}, and there is {ledger[deed.got : deed.got + 1] or 'nothing'}"
        yield from self._in_order(deeds)
        for look in history.of("ledger", "look"):
            if look.done:
                yield from self._look(look, ledger, deeds)

    def _in_order(self, deeds: list[Deed]) -> Iterator[str]:
        latest: Deed | None = None
        for deed in sorted((deed for deed in deeds if deed.done), key=lambda deed: deed.got):
            if latest is not None and deed.ended is not None and deed.ended < latest.started:
                yield f"{deed} ended before {latest} began, and is behind it"
            if latest is None or deed.started > latest.started:
                latest = deed

    def _look(self, look: Deed, ledger: list[bytes], deeds: list[Deed]) -> Iterator[str]:
        seen = list(look.got)
        if ledger[: len(seen)] != seen:
            yield f"{look} is no beginning of what is there at the end"
        for deed in deeds:
            if deed.done and deed.ended is not None and deed.ended < look.started and deed.given not in seen:
                yield f"{look} began behind the end of {deed}, and did not see it"


class CountsExactly(RecipeChecker):
    """A counter is linearizable: every add counts once, where it was not refused."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for key in sorted({deed.key for deed in history.of("counter")}):
            wrong = explain([deed for deed in history.of("counter") if deed.key == key], CounterModel())
            if wrong:
                yield f"counter {key}: {wrong}"


class KeysLinearizable(RecipeChecker):
    """Every key of the map is a register: puts, deletes, compare-and-sets and reads have one order. A read that may be old never
    goes back."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        deeds = list(history.of("kv", "put", "get", "cas", "delete"))
        for key in sorted({deed.key for deed in deeds}):
            mine = [deed for deed in deeds if deed.key == key]
            if wrong := explain(mine, KeyModel(mine)):
                yield f"key {key}: {wrong}"
        newest: dict[tuple[str, str], int] = {}
        for deed in history.of("kv", "stale"):
            if deed.done and deed.got is not None:
                before = newest.setdefault((deed.client, deed.key), deed.got[1])
                if deed.got[1] < before:
                    yield f"{deed}, although this client has seen revision {before} before"
                newest[deed.client, deed.key] = max(before, deed.got[1])


class WatchesWhole(RecipeChecker):
    """A watch tells every change of its keys behind its revision, in order, each once."""

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
                    yield f"{watch.client} watches {watch.prefix!r} until {watch.until} and was not told {missed[0]}"


class OneHolder(RecipeChecker):
    """Once somebody was given a lock, or the lead, nobody with an older token believes to have it; no token is given twice; tokens
    grow in real time."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        for recipe in ("lock", "election"):
            for key in sorted({deed.key for deed in history.of(recipe, "acquire")}):
                grants = [
                    deed
                    for deed in history.of(recipe, "acquire")
                    if deed.key == key and deed.done and deed.got
                ]
                grants.sort(key=lambda deed: deed.ended or 0)
                yield from self._tokens(grants)
                yield from self._beliefs(recipe, key, grants, history)

    def _tokens(self, grants: list[Deed]) -> Iterator[str]:
        given: dict[int, Deed] = {}
        for grant in grants:
            first = given.setdefault(grant.got, grant)
            if first is not grant:
                yield f"one token, two holders: {first} and {grant}"
        for at, grant in enumerate(grants):
            for later in grants[at + 1 :]:
                if grant.ended is not None and grant.ended < later.started and later.got < grant.got:
                    yield f"{later} is behind {grant} in time, and its token is older"

    def _beliefs(self, recipe: str, key: str, grants: list[Deed], history: RecipeHistory) -> Iterator[str]:
        for hold in history.holds:
            if (hold.recipe, hold.key) != (recipe, key):
                continue
            for grant in grants:
                if grant.ended is not None and grant.ended < hold.event and grant.got > hold.token:
                    yield f"{hold.client} believes to hold {recipe} {key} by token {hold.token}, and {grant}"
                    break


class FencesHold(RecipeChecker):
    """What is behind a fence takes no older token than one it took before."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        newest: dict[str, int] = {}
        for passed in history.passed:
            if passed.token < newest.get(passed.key, 0):
                yield f"{passed.client} passed the fence of {passed.key} by {passed.token}, behind {newest[passed.key]}"
            newest[passed.key] = max(passed.token, newest.get(passed.key, 0))


class OneLeaderATerm(RecipeChecker):
    """Whoever looks sees the same leader for the same term; for one who looks, terms never go back; a leader is who was told so."""

    def check(self, history: RecipeHistory) -> Iterator[str]:
        leaders: dict[tuple[str, int], str] = {
            (deed.key, deed.got): str(deed.given)
            for deed in history.of("election", "acquire")
            if deed.done and deed.got
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
        for key in sorted({deed.key for deed in history.of("queue")}):
            deeds = [deed for deed in history.of("queue") if deed.key == key]
            puts = {deed.given: deed for deed in deeds if deed.what == "put"}
            takes = [deed for deed in deeds if deed.what == "take" and deed.done and deed.got]
            yield from self._nothing_new(puts, takes)
            yield from self._done_once(deeds)
            if any(deed.what == "drained" for deed in deeds):
                yield from self._nothing_lost(puts, deeds)
            yield from self._in_order(puts, takes)
            yield from self._one_at_a_time(takes, history)

    def _nothing_new(self, puts: dict[object, Deed], takes: list[Deed]) -> Iterator[str]:
        tokens: dict[int, Deed] = {}
        for take in takes:
            item, token, _ = take.got
            put = puts.get(item)
            if put is None or not put.possible:
                yield f"{take}, and {put or 'nobody put it'}"
            first = tokens.setdefault(token, take)
            if first is not take:
                yield f"one claim, two holders: {first} and {take}"

    def _one_at_a_time(self, takes: list[Deed], history: RecipeHistory) -> Iterator[str]:
        """Who has an item by his own clock has it alone."""
        for hold in history.holds:
            for take in takes if hold.recipe == "queue" else ():
                item, token, _ = take.got
                if hold.key == item.decode() and token > hold.token and (take.ended or 0) < hold.event:
                    yield f"{hold.client} believes to have {hold.key} by claim {hold.token}, and {take}"

    def _done_once(self, deeds: list[Deed]) -> Iterator[str]:
        """A claim that was told done ends its item: nobody else is told so, and nobody takes it later."""
        done: dict[object, Deed] = {}
        for deed in deeds:
            if deed.what == "done" and deed.done and deed.got:
                first = done.setdefault(deed.given[0], deed)
                if first is not deed and first.given != deed.given:
                    yield f"done twice: {first} and {deed}"
        for take in (deed for deed in deeds if deed.what == "take" and deed.done and deed.got):
            end = done.get(take.got[0])
            if end is not None and end.ended is not None and end.ended < take.started:
                yield f"{take}, and it was done before: {end}"

    def _nothing_lost(self, puts: dict[object, Deed], deeds: list[Deed]) -> Iterator[str]:
        """At the end all is taken and done: by somebody who was told so, or may have been without hearing of it."""
        ended = {deed.given[0] for deed in deeds if deed.what == "done" and deed.possible}
        for item, put in puts.items():
            if put.done and item not in ended:
                yield f"{put}, and it is lost"

    def _in_order(self, puts: dict[object, Deed], takes: list[Deed]) -> Iterator[str]:
        """What nobody had before is given in the order in which it was put; claims have the order of their tokens."""
        latest: Deed | None = None
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
        for deed in history.deeds:
            late = deed.ended_s is not None and deed.ended_s > deed.deadline_s + history.deadline_slack_s
            if late and deed.client.partition(".")[0] not in history.paused:
                yield f"{deed} was to end by {deed.deadline_s:.3f} s and ended at {deed.ended_s:.3f} s"
            if history.calm and deed.outcome in (
                Outcome.UNKNOWN,
                Outcome.FAILED,
                Outcome.REJECTED,
                Outcome.OPEN,
            ):
                yield f"{deed}, although nothing was broken"


RECIPE_CHECKERS: tuple[RecipeChecker, ...] = (
    ReplicasOfOneMind(),
    CommandsOnce(),
    CountsExactly(),
    KeysLinearizable(),
    WatchesWhole(),
    OneHolder(),
    FencesHold(),
    OneLeaderATerm(),
    QueuesKeep(),
    Isolated(),
    RecipesInTime(),
)


def check_recipes(history: RecipeHistory) -> list[tuple[RecipeChecker, str]]:
    """Every violation, by promise; the first few of each."""
    found: list[tuple[RecipeChecker, str]] = []
    for checker in RECIPE_CHECKERS:
        for number, violation in enumerate(checker.check(history)):
            if number == TOLD_MAX:
                break
            found.append((checker, violation))
    return found
