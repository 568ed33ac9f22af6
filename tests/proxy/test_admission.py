"""Claims about admission: bounded appends, bytes and subscriptions; one too many costs nothing and is refused."""

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
def append(admitted: ProxyAdmission, size: int, client: str = "a") -> Iterator[None]:
    """One append whose body is all here."""
    release = admitted.begin_append(size, client)
    try:
        yield
    finally:
        release()


def test_as_many_appends_as_allowed_are_in_flight_and_no_more() -> None:
    admitted = admission(appends_max=2)
    with (
        append(admitted, 1),
        append(admitted, 1),
        pytest.raises(TooBusy, match="appends"),
        append(admitted, 1),
    ):
        pass
    with append(admitted, 1), append(admitted, 1):
        assert admitted.appends == 2
    assert (admitted.appends, admitted.append_bytes) == (0, 0)


def test_bytes_count_but_one_append_alone_is_never_too_large() -> None:
    """Otherwise one that the limit of a body allows could never be made."""
    admitted = admission(append_bytes_max=100)
    with append(admitted, 1_000), pytest.raises(TooBusy, match="bytes of appends"), append(admitted, 1):
        pass
    with append(admitted, 60), append(admitted, 40, "b"), pytest.raises(TooBusy), append(admitted, 1, "c"):
        pass
    assert (admitted.appends, admitted.append_bytes) == (0, 0)


def test_an_append_that_fails_is_not_in_flight_any_more() -> None:
    admitted = admission()

    def fail() -> None:
        with admitted.reserve_append("a") as reservation:
            reservation.add(7)
            reservation.count_append()
            assert (admitted.appends, admitted.append_bytes) == (1, 7)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert (admitted.appends, admitted.append_bytes) == (0, 0)


def test_a_body_counts_its_bytes_as_they_arrive_and_one_append_when_it_is_complete() -> None:
    admitted = admission(append_bytes_max=100, appends_max=1)
    with admitted.reserve_append("a") as first, admitted.reserve_append("b") as second:
        first.add(60)
        second.add(40)
        with pytest.raises(TooBusy, match="bytes of appends"):
            second.add(1)
        assert (admitted.appends, admitted.append_bytes) == (0, 100)
        first.count_append()
        with pytest.raises(TooBusy, match="appends"):
            second.count_append()
    assert (admitted.appends, admitted.append_bytes) == (0, 0)


def test_one_client_has_no_more_than_its_share() -> None:
    admitted = admission(appends_max=4, append_bytes_max=100, subscriptions_max=4, connections_max=4)
    for _ in range(3):
        admitted.connect("a")
        admitted.subscribe("events", "a")
        admitted.begin_append(25, "a")
    with pytest.raises(TooBusy):
        admitted.connect("a")
    with pytest.raises(TooBusy):
        admitted.subscribe("events", "a")
    with pytest.raises(TooBusy):
        admitted.begin_append(1, "a")
    admitted.connect("b")
    admitted.subscribe("events", "b")
    admitted.begin_append(25, "b")()
    admitted.disconnect("a")
    assert admitted.connections == 3


def test_a_subscription_that_is_given_back_twice_counts_once() -> None:
    admitted = admission(subscriptions_max=2)
    leave, _ = admitted.subscribe("events", "a"), admitted.subscribe("socket", "a")
    with pytest.raises(TooBusy, match="subscriptions"):
        admitted.subscribe("events", "b")
    leave()
    leave()
    assert admitted.subscriptions == 1


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
