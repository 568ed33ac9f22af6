"""O3: waiting places are shared fairly between clients.

One client could occupy all of them: the others were refused for as long as it kept sending requests.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.manager.sim_cluster import SimCluster
from varlog.metarepo.ordering import commit_loop as commit_loop_module
from varlog.metarepo.ordering.commit_loop import CommitLoop, MembershipOperation
from varlog.model.batch import pack, parse_header
from varlog.model.epoch import Epoch
from varlog.model.errors import NotAccepted, Unavailable
from varlog.model.ids import ClusterID, LogStreamID, ProducerID, TopicID
from varlog.rpc.messages import Append, NextTokens
from varlog.rpc.transport import Connection
from varlog.sequencer import sequencer as sequencer_module
from varlog.sequencer.sequencer import Sequencer, SequencerConfig
from varlog.storagenode.committed import ack_queue as waiters_module
from varlog.storagenode.committed import admission_queue as intake_module
from varlog.storagenode.committed import replica as replica_module
from varlog.storagenode.committed import writer as writer_module
from varlog.storagenode.committed.admission_queue import AdmissionQueue, PendingAppend
from varlog.testing.sim.core.loop import run_simulated as run_in_virtual_time


class Waits:
    """A call of a connection; `ended` is its reply."""

    def __init__(self, connection: str) -> None:
        self.connection: Any = connection
        self.ended: BaseException | None = None

    def fail(self, error: BaseException) -> None:
        assert self.ended is None, "a call is answered once"
        self.ended = error

    def reply(self, message: object, payload: object = b"") -> None:
        raise AssertionError("nothing is answered here")


def arrival(call: Waits, sequence: int) -> PendingAppend:
    batch = pack([b"x"], producer=ProducerID(1), sequence=sequence, time_us=0)
    return PendingAppend(call, parse_header(batch, signed=False), batch)


def join(admission_queue: AdmissionQueue, connection: str, sequence: int) -> tuple[Waits, bool]:
    call = Waits(connection)
    try:
        admission_queue.join(arrival(call, sequence))
    except NotAccepted:
        return call, False
    return call, True


def test_o3_a_client_that_floods_a_node_leaves_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In virtual time, on a real node; nothing is ordered in the meantime, so that its places stay taken."""
    for module in (intake_module, replica_module):
        monkeypatch.setattr(module, "UNCOMMITTED_BATCHES_MAX", 64)

    async def story() -> list[Any]:
        cluster = SimCluster(nodes=1, replicas=1)
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"first")
        await log.close()
        stream = (await cluster.view()).streams[0]
        append = Append(stream.log_stream, epoch=stream.epoch)
        cluster.repository.crash()
        asked: list[asyncio.Future[Any]] = []
        for client, count in ((1, 400), (2, 4), (3, 4)):
            connection = await cluster.transport.connect("sn1:7110", timeout_s=10.0)
            for sequence in range(1, count + 1):
                batch = pack([b"x"], producer=ProducerID(client), sequence=sequence, time_us=0)
                asked.append(asyncio.ensure_future(connection.call(append, batch, timeout_s=600.0)))
            await asyncio.sleep(1.0)
        cluster.repository.boot()
        return await asyncio.gather(*asked, return_exceptions=True)

    answers = run_in_virtual_time(story())
    refused = [isinstance(answer, NotAccepted) for answer in answers]
    assert any(refused[:400]), "the flood is larger than what there is room for"
    assert refused[400:] == [False] * 8, "the others are refused for what one client does"
    assert all(isinstance(answer, tuple) for answer in answers[400:]), answers[400:]


def test_a_client_that_fills_the_queue_makes_room_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_module, "UNCOMMITTED_BATCHES_MAX", 12)
    admission_queue = AdmissionQueue(LogStreamID(1))
    flood = [join(admission_queue, "flood", n) for n in range(20)]
    assert [taken for _, taken in flood] == [True] * 12 + [False] * 8
    others = [join(admission_queue, name, n) for n in range(4) for name in ("a", "b")]
    assert all(taken for _, taken in others)
    # The newest of the flood was refused as certainly not in the log; the oldest stayed.
    assert [call.ended is not None for call, _ in flood[:12]] == [False] * 4 + [True] * 8
    assert all(isinstance(call.ended, NotAccepted) for call, _ in flood[4:12])
    assert len(admission_queue) == 12
    # Each has its share: no client gets more at the cost of one that has as much.
    assert not join(admission_queue, "a", 9)[1]


def test_connections_are_served_in_turns_and_each_in_its_own_order(monkeypatch: pytest.MonkeyPatch) -> None:
    admission_queue = AdmissionQueue(LogStreamID(1))
    for n in range(4):
        join(admission_queue, "flood", n)
    for n in range(2):
        join(admission_queue, "a", n)
    taken = [admission_queue.pop() for _ in range(6)]
    names = [str(one.call.connection) for one in taken]
    assert names == ["flood", "a", "flood", "a", "flood", "flood"]
    assert [one.header.sequence for one, name in zip(taken, names, strict=True) if name == "flood"] == [
        0,
        1,
        2,
        3,
    ]
    assert len(admission_queue) == 0


def test_requeued_batches_stay_in_front_of_all_queues() -> None:
    admission_queue = AdmissionQueue(LogStreamID(1))
    join(admission_queue, "a", 1)
    first = [arrival(Waits("b"), 2), arrival(Waits("b"), 3)]
    admission_queue.requeue(first)
    assert admission_queue.first is first[0]
    assert [admission_queue.pop().header.sequence for _ in range(3)] == [2, 3, 1]


def test_waiting_places_are_shared_whatever_the_order_of_arrival(seed: int) -> None:
    from varlog.runtime.fair_places import FairPlaces

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
    from varlog.runtime.fair_places import FairPlaces

    places: FairPlaces[int, str] = FairPlaces()
    for key in range(10):
        assert places.make_room("only", 10) == []
        places.put(key, "only", "waits")
    assert places.make_room("only", 10) is None
    assert places.make_room("other", 10) == ["waits"]
    places.clear()
    assert places.make_room("only", 10) == []


def test_changes_that_wait_for_the_repository_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """One client could have 10 000 waiting changes, and every other one was refused, including the manager and the
    nodes."""
    monkeypatch.setattr(commit_loop_module, "OPERATIONS_WAITING_MAX", 6)
    nothing: Any = None
    commits = CommitLoop(nothing, nothing, nothing, nothing)
    answers: list[tuple[str | None, object]] = []

    def submit(client: str | None) -> None:
        commits.submit(
            MembershipOperation(nothing, lambda answer: answers.append((client, answer)), client=client)
        )

    for _ in range(6):
        submit("flood")
    with pytest.raises(Unavailable):
        submit("flood")
    for client in ("a", None, "b"):
        submit(client)
    assert [client for client, _ in answers] == ["flood"] * 3
    assert all(isinstance(answer, Unavailable) for _, answer in answers)
    # The oldest stayed, and all are decided in the order of arrival.
    assert [operation.client for operation in commits._operations.values()] == ["flood"] * 3 + [
        "a",
        None,
        "b",
    ]


def test_requests_that_wait_for_the_sequencer_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequencer_module, "WAITING_MAX", 4)
    nothing: Any = None
    config = SequencerConfig(cluster=ClusterID(1), listen="memory:1", repository="memory:2")
    sequencer, request = Sequencer(config, nothing, nothing), NextTokens(TopicID(1), Epoch(1), 1)
    flood: list[Any] = [Waits("flood") for _ in range(4)]
    other: Any = Waits("other")
    for call in flood:
        sequencer._wait(call, request)
    with pytest.raises(Unavailable):
        sequencer._wait(flood[0], request)
    sequencer._wait(other, request)
    assert [call.ended is not None for call in flood] == [False, False, False, True]
    assert list(sequencer._waiting) == [*flood[:3], other]


def test_calls_that_wait_for_the_nodes_to_report_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    from varlog.metarepo.recovery import witnesses as witnesses_module
    from varlog.metarepo.recovery.witnesses import Witnesses
    from varlog.runtime.fair_places import FairPlaces

    monkeypatch.setattr(witnesses_module, "CALLS_WAITING_MAX", 4)
    witnesses = Witnesses.__new__(Witnesses)
    witnesses._state = SimpleNamespace(witnessed=False)  # type: ignore[assignment]
    witnesses._waiting = FairPlaces()
    flood: list[Any] = [Waits("flood") for _ in range(4)]
    other: Any = Waits("other")
    for call in flood:
        witnesses.when_reported(call, lambda: None)
    witnesses.when_reported(other, lambda: None)
    assert [call.ended is not None for call in flood] == [False, False, False, True]
    assert list(witnesses._waiting) == [*flood[:3], other]


# --- two hostile clients and an honest one, on a real node in virtual time ---------------------------------------------------


def test_an_honest_client_is_served_beside_two_that_flood_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The floods name no deadline, ignore refusals, and occupy every place before the honest client comes."""
    monkeypatch.setattr(writer_module, "GROUP_BYTES_MAX", 4096)
    monkeypatch.setattr(waiters_module, "GROUP_BYTES_MAX", 4096)
    for module in (replica_module, intake_module):
        monkeypatch.setattr(module, "UNCOMMITTED_BATCHES_MAX", 24)

    async def story() -> None:
        cluster, ended = SimCluster(nodes=1, replicas=1), Counter[str]()
        cluster.network.slow = 0.0
        cluster.start()
        log = await cluster.log(create=True)
        await cluster.wait_whole()
        await log.append(b"first")
        (stream,) = (await cluster.view()).streams
        (host,) = cluster.nodes.values()
        host.delay = lambda rng: 0.02
        flooding = True

        async def flood(producer: int, connection: Connection, first: int) -> None:
            sequence = first
            while flooding:
                batch = pack([bytes(1000)], producer=ProducerID(producer), sequence=sequence + 1, time_us=0)
                try:
                    await connection.call(Append(stream.log_stream, stream.epoch), batch, timeout_s=600.0)
                    ended[f"flood {producer}"] += 1
                except NotAccepted:
                    ended["refused"] += 1
                    await asyncio.sleep(0.05)
                sequence += 100

        floods = []
        for producer in (1, 2):
            connection = await cluster.transport.connect("sn1:7110", timeout_s=3.0)
            floods += [asyncio.create_task(flood(producer, connection, first)) for first in range(40)]
        end = asyncio.get_running_loop().time() + 8.0
        while asyncio.get_running_loop().time() < end:
            # Each is accepted in time: none of them raises.
            await log.append(bytes(1000), timeout_s=5.0)
            ended["honest"] += 1
        flooding = False
        await asyncio.gather(*floods)
        await log.close()
        # One at a time, each behind what was accepted before it came, and one turn of each flood.
        assert ended["refused"] > 100
        assert ended["flood 1"] + ended["flood 2"] <= (24 + 8) * (ended["honest"] + 1)

    run_in_virtual_time(story())
