"""O3: one client could fill the waiting places of all: the others were refused for as long as it kept asking."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import pytest

from varlog.model.batch import pack, parse_header
from varlog.model.errors import NotAccepted
from varlog.model.ids import LogStreamID, ProducerID
from varlog.runtime.fair_places import FairPlaces
from varlog.storagenode.log_stream import intake as intake_module
from varlog.storagenode.log_stream.intake import Arrival, Intake


class Waits:
    """A call of a connection; `ended` is what it was answered."""

    def __init__(self, connection: str) -> None:
        self.connection: Any = connection
        self.ended: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        assert self.ended is None, "a call is answered once"
        self.ended = error

    def reply(self, message: object, payload: object = b"") -> None:
        raise AssertionError("nothing is answered here")


def arrival(call: Waits, sequence: int) -> Arrival:
    batch = pack([b"x"], producer=ProducerID(1), sequence=sequence, time_us=0)
    return Arrival(call, parse_header(batch, signed=False), batch)


def join(intake: Intake, connection: str, sequence: int) -> tuple[Waits, bool]:
    call = Waits(connection)
    try:
        intake.join(arrival(call, sequence))
    except NotAccepted:
        return call, False
    return call, True


def test_a_client_that_fills_the_line_makes_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "UNCOMMITTED_BATCHES_MAX", 12)
    intake = Intake(LogStreamID(1))
    flood = [join(intake, "flood", n) for n in range(20)]
    assert [taken for _, taken in flood] == [True] * 12 + [False] * 8
    others = [join(intake, name, n) for n in range(4) for name in ("a", "b")]
    assert all(taken for _, taken in others)
    # The newest of the flood left, and was told that it is not in the log; the oldest stayed.
    assert [call.ended is not None for call, _ in flood[:12]] == [False] * 4 + [True] * 8
    assert all(isinstance(call.ended, NotAccepted) for call, _ in flood[4:12])
    assert len(intake) == 12
    # Each has its share: nobody gets more at the cost of who has as much.
    assert not join(intake, "a", 9)[1]


def test_connections_are_served_in_turns_and_each_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    intake = Intake(LogStreamID(1))
    for n in range(4):
        join(intake, "flood", n)
    for n in range(2):
        join(intake, "a", n)
    taken = [intake.pop() for _ in range(6)]
    names = [str(one.call.connection) for one in taken]
    assert names == ["flood", "a", "flood", "a", "flood", "flood"]
    assert [one.header.sequence for one, name in zip(taken, names, strict=True) if name == "flood"] == [
        0,
        1,
        2,
        3,
    ]
    assert len(intake) == 0


def test_those_that_go_first_stay_in_front_of_all_lines() -> None:
    intake = Intake(LogStreamID(1))
    join(intake, "a", 1)
    first = [arrival(Waits("b"), 2), arrival(Waits("b"), 3)]
    intake.go_first(first)
    assert intake.first is first[0]
    assert [intake.pop().header.sequence for _ in range(3)] == [2, 3, 1]


def test_waiting_places_are_shared_whatever_the_order_of_arrival(seed: int) -> None:
    rng, places, displaced = Random(seed), FairPlaces[int, str](), 0
    for key in range(2_000):
        client = rng.choice(["flood"] * 20 + ["a", "b"])
        left = places.make_room(client, 30)
        if left is not None:
            displaced += len(left)
            places.put(key, client, client)
        assert len(places) <= 30
        if rng.random() < 0.1 and places:
            del places[rng.choice(list(places))]
        counts = Counter(places.values())
        assert {client: len(keys) for client, keys in places._keys_of.items()} == counts
    assert displaced > 0
    for key in range(2_000, 2_100):
        if places.make_room("late", 30) is not None:
            places.put(key, "late", "late")
    assert Counter(places.values())["late"] >= 30 // 4


def test_a_client_alone_may_use_every_place() -> None:
    places: FairPlaces[int, str] = FairPlaces()
    for key in range(10):
        assert places.make_room("only", 10) == []
        places.put(key, "only", "waits")
    assert places.make_room("only", 10) is None
    assert places.make_room("other", 10) == ["waits"]
    places.clear()
    assert places.make_room("only", 10) == []
