"""Every checker of recipes takes a good history and finds a small bad one: one that never fires would prove nothing."""

from __future__ import annotations

from typing import Any

import pytest

from varlog.verify import recipe_checkers
from varlog.verify.history import CallOutcome
from varlog.verify.linearizability import CounterModel, KeyModel, explain
from varlog.verify.recipe_checkers import RECIPE_CHECKERS, RecipeChecker, check_recipes
from varlog.verify.recipe_history import (
    Changed,
    HoldSeen,
    LeaderSeen,
    Passed,
    RecipeCall,
    RecipeHistory,
    Watching,
)
from varlog.verify.transaction_history import (
    ListRead,
    ListTransaction,
    RecordedTransaction,
    read_op,
    write_op,
)


class Tale(RecipeHistory):
    """A history written by hand: an operation starts after the one before it ended, unless times are given."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0

    def tick(self) -> int:
        self.now += 1
        return self.now

    def add(
        self, recipe: str, what: str, key: str = "k", given: Any = None, got: Any = None, client: str = "c1",
        outcome: CallOutcome = CallOutcome.DONE, during: tuple[int, int] | None = None,
    ) -> RecipeCall:  # fmt: skip
        started, ended = during or (self.tick(), self.tick())
        call = RecipeCall(
            recipe=recipe, client=client, what=what, key=key, given=given, got=got,
            started=started, ended=ended, ended_s=1.0, outcome=outcome,
        )  # fmt: skip
        self.calls.append(call)
        return call


def violations(tale: RecipeHistory) -> set[str]:
    return {checker.name for checker, _ in check_recipes(tale)}


def good() -> Tale:
    tale = Tale()
    for position, state in ((3, b"a"), (4, b"b"), (3, b"a")):
        tale.record_state("m", position, state, "c1")
    tale.add("ledger", "execute", given=b"1", got=0)
    tale.add("ledger", "execute", given=b"2", outcome=CallOutcome.UNKNOWN)
    tale.add("ledger", "execute", given=b"x", outcome=CallOutcome.REJECTED)
    tale.add("ledger", "look", got=(b"1", b"2"))
    tale.ledger = [b"1", b"2"]
    tale.add("counter", "add", given=5, got=5)
    tale.add("counter", "add", given=7, outcome=CallOutcome.UNKNOWN)
    tale.add("counter", "get", got=12)
    tale.add("kv", "put", given=b"a", got=10)
    tale.add("kv", "cas", given=(b"b", 10), got=11)
    tale.add("kv", "cas", given=(b"c", 10), got=None)
    tale.add("kv", "get", got=(b"b", 11))
    tale.add("kv", "stale", got=(b"a", 10))
    tale.add("kv", "delete", got=12)
    tale.add("kv", "delete", got=None)
    tale.add("kv", "get", got=None)
    tale.changes = [Changed("k", b"a", 10), Changed("k", b"b", 11), Changed("k", None, 12)]
    tale.watches.append(Watching("c1", "k", 10, tale.changes[1:], until=12))
    for recipe in ("lock", "election"):
        tale.add(recipe, "acquire", given="c1", got=20)
        tale.holds.append(HoldSeen(tale.tick(), recipe, "k", "c1", 20))
        tale.add(recipe, "acquire", given="c2", got=25, client="c2")
        tale.holds.append(HoldSeen(tale.tick(), recipe, "k", "c2", 25))
    tale.passed += [Passed(tale.tick(), "k", "c1", 20), Passed(tale.tick(), "k", "c2", 25)]
    tale.leaders += [
        LeaderSeen(tale.tick(), "k", "c3", 20, "c1"),
        LeaderSeen(tale.tick(), "k", "c3", 25, "c2"),
    ]
    tale.add("queue", "put", given=b"1")
    tale.add("queue", "put", given=b"2")
    tale.add("queue", "take", got=(b"1", 30, 1))
    tale.add("queue", "take", got=(b"2", 31, 1))
    tale.add("queue", "take", got=(b"1", 32, 2))  # its first claim was given up
    tale.add("queue", "done", given=(b"1", 30), got=False)
    tale.add("queue", "done", given=(b"1", 32), got=True)
    tale.add("queue", "done", given=(b"2", 31), got=True)
    tale.add("queue", "drained")
    tale.lists["serializable"] = [
        ListTransaction("T1", [ListRead("x", ()), ("x", 1)], began=1, ended=2),
        ListTransaction("T2", [ListRead("x", (1,))], began=3, ended=4),
    ]
    tale.registers["read_committed"] = [
        RecordedTransaction("T1", [write_op("r", 1)]),
        RecordedTransaction("T2", [read_op("r", 1)]),
    ]
    tale.revisions = [("r", 1, 1)]
    return tale


def test_a_good_history_is_taken_by_every_checker() -> None:
    assert check_recipes(good()) == []


def test_every_checker_cites_its_rule_and_is_in_the_list() -> None:
    made = {
        kind
        for kind in vars(recipe_checkers).values()
        if isinstance(kind, type) and issubclass(kind, RecipeChecker)
    } - {RecipeChecker}
    assert {type(checker) for checker in RECIPE_CHECKERS} == made
    assert all(checker.law and type(checker).__doc__ for checker in RECIPE_CHECKERS)


def _two_states(tale: Tale) -> None:
    tale.record_state("m", 4, b"c", "c9")


def _twice_in_the_ledger(tale: Tale) -> None:
    tale.ledger = [b"1", b"2", b"2"]


def _refused_and_there(tale: Tale) -> None:
    tale.ledger = [b"1", b"x"]


def _elsewhere_in_the_ledger(tale: Tale) -> None:
    tale.ledger = [b"2", b"1"]


def _looked_and_missed(tale: Tale) -> None:
    tale.add("ledger", "look", got=())


def _ledger_out_of_order(tale: Tale) -> None:
    tale.add("ledger", "execute", given=b"3", got=3)
    tale.add("ledger", "execute", given=b"4", got=2)
    tale.ledger = [b"1", b"2", b"4", b"3"]


def _counted_twice(tale: Tale) -> None:
    tale.add("counter", "get", got=17)


def _counted_and_forgotten(tale: Tale) -> None:
    tale.add("counter", "get", got=7)


def _read_old(tale: Tale) -> None:
    tale.add("kv", "put", given=b"z", got=40)
    tale.add("kv", "get", got=None)


def _both_compared(tale: Tale) -> None:
    tale.add("kv", "cas", given=(b"y", 0), got=40)
    tale.add("kv", "cas", given=(b"z", 0), got=41)


def _stale_goes_back(tale: Tale) -> None:
    tale.add("kv", "stale", got=(b"b", 11))
    tale.add("kv", "stale", got=(b"a", 10))


def _watch_skips(tale: Tale) -> None:
    tale.watches[0].changes = tale.watches[0].changes[1:]


def _watch_repeats(tale: Tale) -> None:
    tale.watches[0].changes = [tale.watches[0].changes[0], *tale.watches[0].changes]


def _watch_ends_early(tale: Tale) -> None:
    tale.watches[0].changes = tale.watches[0].changes[:1]


def _believes_too_long(tale: Tale) -> None:
    tale.holds.append(HoldSeen(tale.tick(), "lock", "k", "c1", 20))


def _one_token_twice(tale: Tale) -> None:
    tale.add("lock", "acquire", given="c3", got=25, client="c3")


def _token_goes_back(tale: Tale) -> None:
    tale.add("lock", "acquire", given="c3", got=22, client="c3")


def _fence_open(tale: Tale) -> None:
    tale.passed.append(Passed(tale.tick(), "k", "c1", 20))


def _two_leaders(tale: Tale) -> None:
    tale.leaders.append(LeaderSeen(tale.tick(), "k", "c4", 25, "c1"))


def _terms_go_back(tale: Tale) -> None:
    tale.leaders.append(LeaderSeen(tale.tick(), "k", "c3", 20, "c1"))


def _item_lost(tale: Tale) -> None:
    tale.add("queue", "put", given=b"3")


def _item_done_twice(tale: Tale) -> None:
    tale.add("queue", "done", given=(b"1", 30), got=True)


def _item_comes_again(tale: Tale) -> None:
    tale.add("queue", "take", got=(b"1", 40, 3))


def _item_from_nowhere(tale: Tale) -> None:
    tale.add("queue", "take", got=(b"9", 40, 1))


def _item_held_by_two(tale: Tale) -> None:
    tale.holds.append(HoldSeen(tale.tick(), "queue", "1", "c1", 30))


def _item_out_of_order(tale: Tale) -> None:
    for item in (b"4", b"5"):
        tale.add("queue", "put", given=item)
    for item, token in ((b"5", 41), (b"4", 42)):
        tale.add("queue", "take", got=(item, token, 1))
        tale.add("queue", "done", given=(item, token), got=True)


def _write_skew(tale: Tale) -> None:
    tale.lists["serializable"] += [
        ListTransaction("T3", [ListRead("x", (1,)), ListRead("y", ()), ("x", 2)], began=5, ended=9),
        ListTransaction("T4", [ListRead("x", (1,)), ListRead("y", ()), ("y", 3)], began=6, ended=8),
        ListTransaction("T5", [ListRead("x", (1, 2)), ListRead("y", (3,))], began=10, ended=11),
    ]


def _lost_update(tale: Tale) -> None:
    tale.lists["snapshot"] = [
        ListTransaction("T3", [ListRead("x", ()), ("x", 1)], began=1, ended=5),
        ListTransaction("T4", [ListRead("x", ()), ("x", 2)], began=2, ended=6),
        ListTransaction("T5", [ListRead("x", (2,))], began=7, ended=8),
    ]


def _aborted_read(tale: Tale) -> None:
    tale.registers["read_committed"] += [
        RecordedTransaction("T3", [write_op("r", 5)], committed=False),
        RecordedTransaction("T4", [read_op("r", 5)]),
    ]


def _too_late(tale: Tale) -> None:
    tale.add("counter", "get", key="other", got=0).deadline_s = 0.5


def _calm_fails(tale: Tale) -> None:
    tale.calm = True


BAD = [
    (_two_states, "ReplicasOfOneState"),
    (_twice_in_the_ledger, "CommandsOnce"),
    (_refused_and_there, "CommandsOnce"),
    (_elsewhere_in_the_ledger, "CommandsOnce"),
    (_looked_and_missed, "CommandsOnce"),
    (_ledger_out_of_order, "CommandsOnce"),
    (_counted_twice, "CountsExactly"),
    (_counted_and_forgotten, "CountsExactly"),
    (_read_old, "KeysLinearizable"),
    (_both_compared, "KeysLinearizable"),
    (_stale_goes_back, "KeysLinearizable"),
    (_watch_skips, "WatchesWhole"),
    (_watch_repeats, "WatchesWhole"),
    (_watch_ends_early, "WatchesWhole"),
    (_believes_too_long, "OneHolder"),
    (_one_token_twice, "OneHolder"),
    (_token_goes_back, "OneHolder"),
    (_fence_open, "FencesHold"),
    (_two_leaders, "OneLeaderPerTerm"),
    (_terms_go_back, "OneLeaderPerTerm"),
    (_item_lost, "QueuesKeep"),
    (_item_done_twice, "QueuesKeep"),
    (_item_comes_again, "QueuesKeep"),
    (_item_from_nowhere, "QueuesKeep"),
    (_item_out_of_order, "QueuesKeep"),
    (_item_held_by_two, "QueuesKeep"),
    (_write_skew, "Isolated"),
    (_lost_update, "Isolated"),
    (_aborted_read, "Isolated"),
    (_too_late, "RecipesInTime"),
    (_calm_fails, "RecipesInTime"),
]


@pytest.mark.parametrize(("spoil", "name"), BAD, ids=[spoil.__name__[1:] for spoil, _ in BAD])
def test_what_is_wrong_is_found_by_the_checker_it_is_for(spoil: Any, name: str) -> None:
    tale = good()
    spoil(tale)
    assert violations(tale) == {name}


def test_every_checker_is_shown_to_find_something() -> None:
    assert {name for _, name in BAD} == {checker.name for checker in RECIPE_CHECKERS}


def test_calls_that_overlap_may_come_in_any_order_and_others_not() -> None:
    tale = Tale()
    tale.add("counter", "add", given=1, got=3, during=(1, 4))
    tale.add("counter", "add", given=2, got=2, during=(2, 3))
    assert explain(tale.calls, CounterModel()) == ""
    tale.calls[1].started, tale.calls[1].ended = 5, 6
    assert "no order explains 2 calls" in explain(tale.calls, CounterModel())


def test_a_call_without_an_answer_may_happen_late_or_never() -> None:
    tale = Tale()
    tale.add("kv", "put", given=b"a", outcome=CallOutcome.UNKNOWN)
    tale.add("kv", "get", got=None)
    tale.add("kv", "get", got=(b"a", 7))
    assert explain(tale.calls, KeyModel(tale.calls)) == ""
    tale.add("kv", "get", got=None)
    assert "can be placed" in explain(tale.calls, KeyModel(tale.calls))


def test_a_refused_call_has_no_effect() -> None:
    tale = Tale()
    tale.add("kv", "put", given=b"a", outcome=CallOutcome.REJECTED)
    tale.add("kv", "get", got=(b"a", 7))
    assert explain(tale.calls, KeyModel(tale.calls)) != ""


def test_two_histories_with_the_same_digest_are_the_same() -> None:
    assert good().digest() == good().digest()
    other = good()
    other.add("counter", "get", got=12)
    assert other.digest() != good().digest()
