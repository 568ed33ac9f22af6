"""The demo's claims can fail: each kind of violation is found."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from varlog.cli.demo_history import DemoHistory
from varlog.cli.spark_demo import INSTALL, ROWS, SparkFigures, SparkTask, run_spark
from varlog.verify.history import AppendCall, CallOutcome, Seen

LOST, GAP, TWICE, CHANGED, DISORDER, FOLLOWED = range(6)


class Story:
    """Two clients append four entries one after the other, and a reader follows."""

    def __init__(self, *, sequenced: bool = False) -> None:
        self.sequenced = sequenced
        # What was appended, in real time, with the position that was acknowledged; 0: refused, None: unknown.
        self.appends: list[tuple[bytes, int | None]] = [
            (b"client 1 entry 1", 1),
            (b"client 2 entry 1", 2),
            (b"client 1 entry 2", 3),
            (b"client 2 entry 2", 4),
        ]
        self.stored = {at: data for data, at in self.appends if at}
        self.followed = [1, 2, 3, 4]
        self.junk = set[int]()

    def broken(self) -> list[int]:
        """The claims that do not hold."""
        demo = DemoHistory("demo", sequenced=self.sequenced)
        for data, at in self.appends:
            append = AppendCall(topic="demo", client="client", entries=(data,), started=demo.history.event())
            append.ended = demo.history.event()
            append.outcome = {None: CallOutcome.UNKNOWN, 0: CallOutcome.REJECTED}.get(at, CallOutcome.DONE)
            append.first = Seen(at, at, 1, data) if at else None
            demo.history.operations.append(append)
        demo.receive([Seen(at, at, 1, self.stored[at]) for at in self.followed])
        entries = [Seen(at, at, 1, data) for at, data in self.stored.items()]
        demo.finish(entries, max(self.stored), self.junk)
        return [number for number, claim in enumerate(demo.claims()) if claim.violations]

    def store(self, at: int, data: bytes) -> None:
        self.stored[at] = data
        self.followed.append(at)


def lose_the_last(story: Story) -> None:
    del story.stored[4], story.followed[-1]


def leave_a_gap(story: Story) -> None:
    story.appends[-1] = (story.appends[-1][0], 5)
    lose_the_last(story)
    story.store(5, story.appends[-1][0])


def swap_two_entries(story: Story) -> None:
    (first, _), second, (third, _), fourth = story.appends
    story.appends = [(first, 3), second, (third, 1), fourth]
    story.stored = {1: third, 2: second[0], 3: first, 4: fourth[0]}


def store_one_twice(story: Story) -> None:
    story.store(5, story.appends[-1][0])


def store_a_refused_one(story: Story) -> None:
    story.appends[-1] = (story.appends[-1][0], 0)


def assign_one_position_twice(story: Story) -> None:
    story.appends.append((b"client 1 entry 3", 4))


def skip_one_for_the_follower(story: Story) -> None:
    del story.followed[1]


def test_a_correct_history_has_no_violation() -> None:
    assert Story().broken() == []
    assert Story(sequenced=True).broken() == []


@pytest.mark.parametrize(
    ("break_it", "claims"),
    [
        (lose_the_last, [LOST]),
        (leave_a_gap, [GAP, FOLLOWED]),
        (swap_two_entries, [DISORDER]),
        (store_one_twice, [TWICE]),
        (store_a_refused_one, [TWICE]),
        (assign_one_position_twice, [LOST, CHANGED, DISORDER]),
        (skip_one_for_the_follower, [FOLLOWED]),
    ],
)
def test_each_violation_is_found(break_it: Callable[[Story], None], claims: list[int]) -> None:
    story = Story()
    break_it(story)
    assert story.broken() == claims


def test_an_append_with_an_unknown_outcome_may_be_in_the_log_or_not() -> None:
    """Law 10: both are honest."""
    story = Story()
    story.appends += [(b"client 1 entry 3", None), (b"client 2 entry 3", None)]
    story.store(5, b"client 1 entry 3")
    assert story.broken() == []


def test_a_position_filled_with_junk_is_no_gap() -> None:
    """A position of a sequenced topic has an entry or junk, never both and never neither (R-SEQ-7)."""
    story = Story(sequenced=True)
    leave_a_gap(story)
    story.junk = {4}
    assert story.broken() == []
    story.junk = {3, 4}
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


def test_without_spark_the_demo_prints_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert asyncio.run(run_spark(SparkTask("127.0.0.1:1", "demo", 1, "demo", 1), tmp_path)).skipped == INSTALL


@pytest.mark.process
def test_a_spark_job_that_fails_is_reported_by_its_last_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho first >&2\necho 'it broke' >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    assert (
        asyncio.run(run_spark(SparkTask("127.0.0.1:1", "demo", 1, "demo", 1), tmp_path)).failed == "it broke"
    )
