"""The demo's verdicts can fail: each kind of violation is found by its own claim."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from varlog.cli.demo import History, judge
from varlog.cli.spark_demo import INSTALL, ROWS, SparkFigures, SparkTask, run_spark
from varlog.model.entry import Entry
from varlog.model.ids import LogStreamID
from varlog.model.lsn import GLSN, LLSN

LOST, GAP, DOUBLED, DISORDER, FOLLOWED = range(5)


class Story:
    """Two clients, four entries, all told as it was."""

    def __init__(self) -> None:
        self.history = History()
        self.data = [b"client 1 entry 1", b"client 2 entry 1", b"client 1 entry 2", b"client 2 entry 2"]
        for glsn, data in enumerate(self.data, 1):
            self.history.acknowledge(glsn, data)
        self.newest = 4
        self.followed = list(self.data)
        self.positions = [1, 2, 3, 4]
        self.filled = frozenset[int]()

    def broken(self) -> list[int]:
        """The claims that do not hold."""
        entries = [
            Entry(GLSN(glsn), LLSN(glsn), LogStreamID(1), 0, data)
            for glsn, data in zip(self.positions, self.data, strict=True)
        ]
        verdicts = judge(self.history, entries, self.newest, self.followed, self.filled)
        return [number for number, verdict in enumerate(verdicts) if verdict.violations]


def lose_the_last(story: Story) -> None:
    del story.data[-1], story.positions[-1], story.followed[-1]
    story.newest = 3


def leave_a_gap(story: Story) -> None:
    story.positions[-1] = story.newest = 5
    story.history.acknowledged[5] = story.history.acknowledged.pop(4)


def swap_a_clients_entries(story: Story) -> None:
    story.data[0], story.data[2] = story.data[2], story.data[0]
    story.followed = list(story.data)
    story.history.acknowledged = dict(enumerate(story.data, 1))


def store_one_twice(story: Story) -> None:
    story.data.append(b"client 2 entry 2")
    story.positions.append(5)
    story.followed.append(b"client 2 entry 2")
    story.newest = 5


def store_a_refused_one(story: Story) -> None:
    story.history.refused.append(story.data[3])


def give_one_position_twice(story: Story) -> None:
    story.history.acknowledge(4, story.data[3])


def skip_one_for_the_follower(story: Story) -> None:
    del story.followed[1]


def test_what_was_told_as_it_is_has_no_violation() -> None:
    assert Story().broken() == []


@pytest.mark.parametrize(
    ("spoil", "claims"),
    [
        (lose_the_last, [LOST]),
        (leave_a_gap, [GAP]),
        (swap_a_clients_entries, [DISORDER]),
        (store_one_twice, [DOUBLED, DISORDER]),
        (store_a_refused_one, [DOUBLED]),
        (give_one_position_twice, [LOST]),
        (skip_one_for_the_follower, [FOLLOWED]),
    ],
)
def test_each_violation_is_found(spoil: Callable[[Story], None], claims: list[int]) -> None:
    story = Story()
    spoil(story)
    assert story.broken() == claims


def test_an_append_without_an_answer_may_be_there_or_not() -> None:
    """Law 10: both are honest."""
    story = Story()
    story.history.unknown += [b"client 1 entry 3", b"client 2 entry 3"]
    story.data.append(b"client 1 entry 3")
    story.followed.append(b"client 1 entry 3")
    story.positions.append(5)
    story.newest = 5
    assert story.broken() == []


def test_a_position_that_was_given_up_for_good_is_no_gap() -> None:
    """Junk counts as a position; one that says nothing of itself is a gap."""
    story = Story()
    leave_a_gap(story)
    story.filled = frozenset({4})
    assert story.broken() == []
    story.filled = frozenset({3, 4})
    assert story.broken() == [GAP]


# --- the step on Spark ---------------------------------------------------------------------------------------------------


def test_what_spark_saw_is_judged_by_what_was_there() -> None:
    right = SparkFigures(read=40, positions=40, written=ROWS, distinct=ROWS, newest=40 + ROWS)
    assert right.violations(40, 40) == ([], [])


@pytest.mark.parametrize(
    ("changed", "claims"),
    [
        ({"read": 39}, [True, False]),
        ({"positions": 39}, [True, False]),
        ({"written": 2 * ROWS, "newest": 40 + 2 * ROWS}, [False, True]),
        ({"distinct": ROWS - 1}, [False, True]),
        ({"newest": 40}, [False, True]),
        ({"failed": "Java is gone"}, [True, True]),
    ],
)
def test_each_violation_that_spark_sees_is_found(changed: dict[str, int | str], claims: list[bool]) -> None:
    right = SparkFigures(read=40, positions=40, written=ROWS, distinct=ROWS, newest=40 + ROWS)
    wrong = replace(right, **changed)  # type: ignore[arg-type]
    assert [bool(violations) for violations in wrong.violations(40, 40)] == claims


def test_without_spark_the_demo_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert asyncio.run(run_spark(SparkTask("127.0.0.1:1", "demo", 1, "demo", 1), tmp_path)).skipped == INSTALL


@pytest.mark.process
def test_a_spark_that_ends_badly_is_told_by_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho first >&2\necho 'it broke' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert (
        asyncio.run(run_spark(SparkTask("127.0.0.1:1", "demo", 1, "demo", 1), tmp_path)).failed == "it broke"
    )
