"""The recipes without async: the same answers, from any thread, over a log that was opened without async."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import varlog
from varlog import recipes
from varlog.model.errors import Unavailable
from varlog.model.lsn import GLSN
from varlog.recipes import blocking, errors


class Words:
    """A machine: words, joined."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def apply(self, at: GLSN, command: bytes) -> int:
        self.words.append(command.decode())
        return len(self.words)

    def snapshot(self) -> bytes:
        return " ".join(self.words).encode()

    def restore(self, snapshot: bytes) -> None:
        self.words = snapshot.decode().split()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[varlog.Log]:
    with varlog.open(tmp_path / "log", topic="machines", sync=False) as opened:
        yield opened


def test_a_machine_executes_looks_waits_and_begins_from_its_snapshot(log: varlog.Log, tmp_path: Path) -> None:
    kept = blocking.DirectorySnapshots(tmp_path / "snapshots")
    with blocking.ReplicatedStateMachine(log, Words(), name="words", snapshots=kept) as words:
        assert [words.execute(word) for word in (b"to", b"be")] == [1, 2]
        assert words.read(lambda machine: list(machine.words)) == ["to", "be"]
        assert words.wait(lambda machine: machine.words[1] if len(machine.words) > 1 else None) == "be"
        with pytest.raises(TimeoutError):
            words.wait(lambda machine: None, timeout_s=0.01)
        assert words.checkpoint(trim=True) == words.applied == 2
        words.execute(b"or")
    with blocking.ReplicatedStateMachine(log, Words(), name="words", snapshots=kept) as again:
        assert again.catch_up() == 3
        assert again.read(lambda machine: machine.snapshot()) == b"to be or"


def test_snapshots_can_be_in_a_topic_of_another_log(log: varlog.Log, tmp_path: Path) -> None:
    with varlog.open(tmp_path / "other", topic="snapshots", sync=False) as apart:
        kept = blocking.TopicSnapshots(apart)
        for expected in (1, 2):
            with blocking.Counter(log, snapshots=kept) as counter:
                assert counter.add() == expected
                counter.checkpoint(trim=True)


def test_a_counter_counts_what_many_threads_count(log: varlog.Log) -> None:
    with blocking.Counter(log) as one, blocking.Counter(log) as two, ThreadPoolExecutor(8) as threads:
        counted = threads.map(lambda number: (one if number % 2 else two).add(), range(100))
        assert sorted(counted) == list(range(1, 101))
        assert one.value() == two.value() == 100
        assert one.compare_and_set(7, expected=100)
        assert not one.compare_and_set(8, expected=100)
        two.set(3)
        assert one.value() == 3
        assert two.value(stale=True) == 3


def test_a_queue_gives_each_item_to_one(log: varlog.Log) -> None:
    with blocking.Queue(log) as queue:
        queue.put_all([b"a", b"b", b"c"])
        with queue.take() as claim:
            assert (claim.body, claim.held, claim.lost) == (b"a", True, False)
        with pytest.raises(ZeroDivisionError), queue.take() as claim:
            raise ZeroDivisionError
        assert claim.lost is False
        again = queue.take_now()
        assert again is not None
        assert (again.body, again.deliveries) == (b"b", 2)
        again.done()
        assert tuple(queue.size()) == (1, 0)
        queue.take().release()
        queue.take(timeout_s=10).done()
        assert queue.take_now() is None
        with pytest.raises(TimeoutError, match="nothing came to queue"):
            queue.take(timeout_s=0.01)


def test_a_lock_is_held_by_one_thread_at_a_time(log: varlog.Log) -> None:
    """R-USE-2: a lock."""
    inside: list[int] = []
    most: list[int] = []

    def work(lock: blocking.Lock) -> int:
        with lock.holding() as hold:
            hold.check()
            inside.append(1)
            most.append(len(inside))
            inside.pop()
            return hold.token

    with blocking.Lock(log, name="l") as one, blocking.Lock(log, name="l", who="two") as two:
        with ThreadPoolExecutor(4) as threads:
            tokens = list(threads.map(work, [one, two] * 5))
        assert (max(most), len(set(tokens))) == (1, 10)
        hold = two.acquire(timeout_s=10)
        assert (two.held, two.token, one.holder()) == (True, hold.token, ("two", hold.token))
        with pytest.raises(errors.LockBusy):
            one.acquire(timeout_s=0.01)
        assert two.release()
        assert not hold.held
        with pytest.raises(errors.NotHeld):
            two.release()


def test_an_election_has_one_leader_and_is_observed(log: varlog.Log) -> None:
    """R-USE-2: leader election."""
    with (
        blocking.Election(log, name="e", candidate="a") as one,
        blocking.Election(log, name="e", candidate="b") as two,
    ):
        leaders = two.observe()
        assert next(leaders) is None
        with one.leading() as leadership:
            assert two.leader() == ("a", leadership.term)
            assert next(leaders) == ("a", leadership.term)
        later = two.campaign(timeout_s=10)
        assert later.term > leadership.term
        leader = next(leaders)
        assert (leader if leader is not None else next(leaders)) == ("b", later.term)
        assert two.resign()
        leaders.close()


def test_a_map_is_written_read_and_watched(log: varlog.Log) -> None:
    with blocking.KeyValue(log) as one, blocking.KeyValue(log) as two:
        first = one.put("a", b"1")
        changes = one.watch("a", after=first)
        assert two.get("a") == ("a", b"1", first)
        second = two.compare_and_set("a", b"2", first)
        assert second is not None
        assert one.compare_and_set("a", b"3", first) is None
        two.write({"a": None, "b": b"4"})
        assert [change.value for change in (next(changes), next(changes))] == [b"2", None]
        changes.close()
        assert [change.key for change in one.range()] == ["b"]
        assert one.delete("b") == one.revision
        assert one.catch_up() == two.catch_up()


def test_transactions_commit_or_conflict(log: varlog.Log) -> None:
    """R-USE-2: transactions over a key/value store."""
    with blocking.KeyValue(log) as kv:
        transactions = blocking.Transactions(kv)
        with transactions.begin() as transaction:
            transaction.put("a", b"1")
            assert transaction.get("a") == b"1"
        clashing = transactions.begin("serializable")
        assert clashing.range() == [("a", b"1")]

        def double(running: recipes.Transaction) -> int:
            value = 2 * int(running.get("a") or b"0")
            running.put("a", b"%d" % value)
            return value

        assert transactions.run(double) == 2
        clashing.put("b", b"x")
        with pytest.raises(errors.Conflict, match="'a'"):
            clashing.commit()
        dropped = transactions.begin()
        dropped.put("c", b"x")
        dropped.abort()
        assert [change.key for change in kv.range()] == ["a"]


def test_after_the_log_was_closed_a_recipe_fails_with_that_and_can_still_be_closed(tmp_path: Path) -> None:
    with varlog.open(tmp_path / "log", sync=False) as log:
        counter = blocking.Counter(log)
    with pytest.raises(Unavailable, match="it is closed"):
        counter.add()
    counter.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "varlog"]


def test_every_public_name_of_the_recipes_resolves() -> None:
    for module in (recipes, blocking):
        assert all(getattr(module, name).__name__ for name in module.__all__)
        assert set(module.__all__) <= set(dir(module))
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            module.nothing  # noqa: B018
    assert recipes.blocking is blocking
