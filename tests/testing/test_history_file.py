"""Histories of many processes: what one wrote, another reads, whole, in one order; a killed writer loses only what is open."""

from __future__ import annotations

import time
from pathlib import Path

from varlog.testing.history_file import HistoryFile, HistoryWriter, RealHistory, merged_history
from varlog.verify.history import (
    AppendCall,
    CallOutcome,
    ClientCall,
    ReadCall,
    Seen,
    SubscribeCall,
    TailCall,
    TrimCall,
)

OPERATIONS: list[ClientCall] = [
    AppendCall(topic="t", client="a", started=3, entries=(b"x", b"y"), first=Seen(1, 1, 2, b"x"), ended=9),
    ReadCall(
        topic="t", client="a", started=4, glsn=1, got=Seen(1, 1, 2, b"x"), ended=5, outcome=CallOutcome.DONE
    ),
    SubscribeCall(
        topic="t", client="a", started=6, begin=1, end=None, got=[(7, Seen(1, 1, 2, b"x"))], ended=8
    ),
    TrimCall(topic="t", client="a", started=10, glsn=1, ended=11, binding=False),
    TailCall(topic="t", client="a", started=12, glsn=2, ended=13),
]


def test_every_kind_of_operation_comes_back_as_it_was(tmp_path: Path) -> None:
    with HistoryWriter(tmp_path / "a") as writer:
        for operation in OPERATIONS:
            writer.write(operation)
        writer.complain("a task died")
    file = HistoryFile(tmp_path / "a")
    file.refresh()
    assert file.operations == OPERATIONS
    assert (file.complaints, file.acknowledged) == (["a task died"], 1)


def test_a_file_is_read_while_it_grows_and_a_torn_record_waits(tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = HistoryFile(path)
    file.refresh()
    assert file.operations == []
    with HistoryWriter(path) as writer:
        writer.write(OPERATIONS[0])
        whole = path.read_bytes()
        writer.write(OPERATIONS[1])
    both = path.read_bytes()
    path.write_bytes(both[:-3])
    file.refresh()
    assert file.operations == OPERATIONS[:1]
    path.write_bytes(both)
    file.refresh()
    assert file.operations == OPERATIONS[:2]
    assert both.startswith(whole)


def test_the_end_of_an_operation_replaces_its_begin(tmp_path: Path) -> None:
    begun = AppendCall(topic="t", client="a", started=3, entries=(b"x",))
    ended = AppendCall(
        topic="t", client="a", started=3, entries=(b"x",), ended=4, outcome=CallOutcome.REJECTED
    )
    left = AppendCall(topic="t", client="a", started=5, entries=(b"z",))
    with HistoryWriter(tmp_path / "a") as writer:
        for operation in (begun, ended, left):
            writer.write(operation)
    found = merged_history([HistoryFile(tmp_path / "a")]).operations
    assert [(one.outcome, one.abandoned) for one in found] == [
        (CallOutcome.REJECTED, False),
        (CallOutcome.OPEN, True),
    ]


def test_clients_are_merged_in_the_order_of_their_clock(tmp_path: Path) -> None:
    for name, starts in (("a", (1, 5)), ("b", (2, 4))):
        with HistoryWriter(tmp_path / name) as writer:
            for started in starts:
                writer.write(TailCall(topic="t", client=name, started=started, glsn=0, ended=started + 1))
    found = merged_history(HistoryFile(tmp_path / name) for name in ("a", "b"))
    assert [(one.client, one.started) for one in found.operations] == [("a", 1), ("b", 2), ("b", 4), ("a", 5)]


def test_real_events_are_the_machines_monotonic_clock() -> None:
    history, before = RealHistory(), time.monotonic_ns()
    first, second = history.event(), history.event()
    assert before <= first <= second <= time.monotonic_ns()
