"""Claims about what a proxy lets in: bounded appends, bytes and subscriptions; one too many costs nothing and is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.proxy.helpers import Proxy, with_proxy
from varlog.proxy.admission import ProxyAdmission
from varlog.proxy.errors import TooBusy
from varlog.proxy.limits import ProxyLimits
from varlog.proxy.meters import ProxyMeters


def admission(**limits: int) -> ProxyAdmission:
    return ProxyAdmission(ProxyLimits(**limits), ProxyMeters())


@contextmanager
def append(door: ProxyAdmission, size: int, client: str = "a") -> Iterator[None]:
    """One append whose body is all here."""
    release = door.begin_append(size, client)
    try:
        yield
    finally:
        release()


def test_as_many_appends_as_allowed_are_under_way_and_no_more() -> None:
    door = admission(appends_max=2)
    with append(door, 1), append(door, 1), pytest.raises(TooBusy, match="appends"), append(door, 1):
        pass
    with append(door, 1), append(door, 1):
        assert door.appends == 2
    assert (door.appends, door.append_bytes) == (0, 0)


def test_bytes_count_but_one_append_alone_is_never_too_large() -> None:
    """Else one that the limit of a body allows could never be made."""
    door = admission(append_bytes_max=100)
    with append(door, 1_000), pytest.raises(TooBusy, match="bytes of appends"), append(door, 1):
        pass
    with append(door, 60), append(door, 40, "b"), pytest.raises(TooBusy), append(door, 1, "c"):
        pass
    assert (door.appends, door.append_bytes) == (0, 0)


def test_an_append_that_fails_is_not_under_way_any_more() -> None:
    door = admission()

    def fail() -> None:
        with door.arrive("a") as arrival:
            arrival.add(7)
            arrival.place()
            assert (door.appends, door.append_bytes) == (1, 7)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (door.appends, door.append_bytes) == (0, 0)


def test_a_body_takes_room_as_it_arrives_and_a_place_when_it_is_complete() -> None:
    door = admission(append_bytes_max=100, appends_max=1)
    with door.arrive("a") as first, door.arrive("b") as second:
        first.add(60)
        second.add(40)
        with pytest.raises(TooBusy, match="bytes of appends"):
            second.add(1)
        assert (door.appends, door.append_bytes) == (0, 100)
        first.place()
        with pytest.raises(TooBusy, match="appends"):
            second.place()
    assert (door.appends, door.append_bytes) == (0, 0)


def test_one_client_has_no_more_than_its_share() -> None:
    door = admission(appends_max=4, append_bytes_max=100, subscriptions_max=4, connections_max=4)
    for _ in range(3):
        door.connect("a")
        door.subscribe("events", "a")
        door.begin_append(25, "a")
    with pytest.raises(TooBusy):
        door.connect("a")
    with pytest.raises(TooBusy):
        door.subscribe("events", "a")
    with pytest.raises(TooBusy):
        door.begin_append(1, "a")
    door.connect("b")
    door.subscribe("events", "b")
    door.begin_append(25, "b")()
    door.disconnect("a")
    assert door.connections == 3


def test_a_subscription_that_is_given_back_twice_counts_once() -> None:
    door = admission(subscriptions_max=2)
    leave, _ = door.subscribe("events", "a"), door.subscribe("socket", "a")
    with pytest.raises(TooBusy, match="subscriptions"):
        door.subscribe("events", "b")
    leave()
    leave()
    assert door.subscriptions == 1


def test_appends_over_the_limit_are_refused_with_429_and_are_not_in_the_log(tmp_path: Path) -> None:
    """One is in flight until the others were refused: no luck is needed."""

    async def story(proxy: Proxy) -> None:
        release = proxy.app.state.admission.begin_append(1, "another")
        answers = [await proxy.http.post("/v1/topics/orders/entries", content=b"more") for _ in range(3)]
        release()
        assert [answer.status_code for answer in answers] == [429] * 3
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers)
        assert {answer.json()["type"] for answer in answers} == {"urn:varlog:too-busy"}
        assert {answer.json()["outcome"] for answer in answers} == {"none"}
        assert (await proxy.http.post("/v1/topics/orders/entries", content=b"first")).status_code == 201
        assert (await proxy.http.get("/v1/topics/orders/tail")).json()["newest"] == 1

    with_proxy(tmp_path, story, limits=ProxyLimits(appends_max=1))
