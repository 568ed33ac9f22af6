"""`varlog demo --faults`: its account can fail, and its picture shows what is there."""

from __future__ import annotations

import pytest
from rich.console import Console

from varlog.cli.demo_history import DemoHistory
from varlog.cli.fault_report import (
    FaultAccount,
    Killed,
    LivePicture,
    PlainLines,
    ProcessLine,
    Scene,
    account_of,
    fault_display,
    picture,
    sparkline,
)
from varlog.verify.history import AppendCall, CallOutcome, Seen

KILLED = [Killed("the primary of log stream 1", "vsn-1", 0.25, 1.5, 1200)]
DATA = [b"client 1.1 entry 1", b"client 1.1 entry 2", b"client 1.1 entry 3"]


def account(stored: list[bytes], *, followed: list[bytes] | None = None) -> FaultAccount:
    demo = DemoHistory("demo")
    for glsn, data in enumerate(DATA, 1):
        append = AppendCall(topic="demo", client="client 1.1", entries=(data,), started=demo.history.event())
        append.outcome, append.first = CallOutcome.DONE, Seen(glsn, glsn, 1, data)
        append.ended = demo.history.event()
        demo.history.operations.append(append)
        demo.acknowledged += 1
    entries = [Seen(at, at, 1, data) for at, data in enumerate(stored, 1)]
    demo.receive(entries if followed is None else entries[: len(followed)])
    demo.finish(entries, len(stored), set())
    return account_of(demo, KILLED)


def test_everything_in_its_place_holds() -> None:
    found = account(DATA)
    assert found.holds
    assert list(found.rows().values()) == [3, 3, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("stored", "followed", "row"),
    [
        (DATA[:2], None, "lost"),
        ([*DATA, DATA[0]], None, "duplicated"),
        ([DATA[1], DATA[0], DATA[2]], None, "out of order"),
        (DATA, DATA[:2], "out of order"),
    ],
)
def test_what_is_lost_duplicated_or_out_of_order_is_counted(
    stored: list[bytes], followed: list[bytes] | None, row: str
) -> None:
    found = account(stored, followed=followed)
    assert not found.holds
    assert found.rows()[row] > 0
    assert found.violations


def test_the_account_is_rendered_as_text_and_as_json() -> None:
    console = Console(record=True, width=120)
    found = account(DATA[:2])
    found.show(console)
    output = console.export_text()
    assert "Something is wrong." in output and "0.25 s" in output
    assert found.figures()["lost"] == 1
    assert found.figures()["faults"] == [
        {
            "killed": "the primary of log stream 1",
            "process": "vsn-1",
            "longest_pause_s": 0.25,
            "healed_s": 1.5,
            "acknowledged_meanwhile": 1200,
        }
    ]


def test_a_sparkline_distinguishes_zero_from_little() -> None:
    assert sparkline([0.0, 0.1, 50.0, 100.0]) == " ▁▄█"
    assert sparkline([0.0, 0.0]) == "  "


def test_the_picture_names_the_dead() -> None:
    console = Console(record=True, width=100)
    lines = [ProcessLine("vsn-1", None), ProcessLine("vsn-2", 77, "stream 1 running")]
    console.print(picture(Scene(lines, [10.0, 0.0], 10, "killed: vsn-1"), ["seals the stream"], 80))
    output = console.export_text()
    assert all(word in output for word in ("vsn-1", "killed", "77", "stream 1 running", "seals the stream"))


def test_without_a_terminal_there_are_lines() -> None:
    console = Console(record=True, width=100)
    with fault_display(console) as display:
        display.say("kill -9 77 (vsn-1)")
        display.show(Scene())
    assert isinstance(display, PlainLines)
    assert console.export_text().strip().endswith("s  kill -9 77 (vsn-1)")


def test_on_a_terminal_what_happened_stays_above_the_picture() -> None:
    console = Console(record=True, force_terminal=True, width=100)
    with fault_display(console) as display:
        display.say("kill -9 77 (vsn-1)")
        display.show(Scene([ProcessLine("vsn-1", None)]))
    assert isinstance(display, LivePicture)
    assert "kill -9 77 (vsn-1)" in console.export_text()
