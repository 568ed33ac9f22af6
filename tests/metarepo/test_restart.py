"""Whatever was done, and wherever it stopped: what a restart loads is exactly what was known (laws 3, 9)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metarepo.helpers import CLUSTER, settle
from varlog.metarepo import records
from varlog.metarepo.membership import named_rules
from varlog.metarepo.membership import rules as rules
from varlog.metarepo.membership.rules import Members
from varlog.metarepo.ordering import commit_loop
from varlog.metarepo.ordering import order as orders
from varlog.metarepo.ordering.commit_loop import CommitLoop, Facts, MembershipOperation, newest_position
from varlog.metarepo.ordering.reports import ReportTable
from varlog.metarepo.state import RepositoryState, load_state
from varlog.metarepo.store.base import PutItem, StoreChange
from varlog.metarepo.store.memory import MemoryMetadata, MemoryStore
from varlog.model.cluster import Ordering
from varlog.model.commit import Report
from varlog.model.epoch import Epoch
from varlog.model.errors import StartupError
from varlog.model.ids import ClusterID, LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.rpc.messages import Done, Message

NODES = (NodeID(1), NodeID(2))
Decide = Callable[[Members, Facts], tuple[Members, Message]]


class Trial:
    """A commit loop on a memory store, without a network."""

    def __init__(self, metadata: MemoryMetadata) -> None:
        self.metadata = metadata
        self.reports = ReportTable()
        self.state: RepositoryState

    async def start(self) -> None:
        store = MemoryStore(self.metadata)
        opened = await store.open()
        self.state, first = load_state(opened.items, CLUSTER, "memory")
        if first:
            await store.commit(first)
        self.loop = CommitLoop(self.state, self.reports, store, lambda cut, before: None)
        self.task = asyncio.create_task(self.loop.run())

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    def submit(self, decide: Decide) -> None:
        self.loop.submit(MembershipOperation(decide, lambda answer: None))

    def report(self, node: NodeID, log_stream: int, end: int, synced: int) -> None:
        stream = self.state.streams.get(LogStreamID(log_stream))
        epoch = stream.epoch if stream is not None else Epoch(1)
        self.reports.record(node, [Report(LogStreamID(log_stream), epoch, LLSN(end), LLSN(synced))])
        self.loop.wake()

    def check_reload(self) -> None:
        loaded, first = load_state(dict(self.metadata.items), CLUSTER, "memory")
        assert first == []
        assert loaded.members == self.state.members
        assert loaded.order == self.state.order
        for name in ("topics", "streams", "streams_on", "holders"):
            assert getattr(loaded, name) == getattr(self.state, name)


def _prepare(trial: Trial, topics: int = 2, streams: int = 3) -> None:
    def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
        for node in NODES:
            members = rules.register_node(members, node, f"n{node}", (), ())
        for number in range(topics):
            first = GLSN(1 + 1000 * number)  # the second begins where another one was cut off
            members, _ = rules.register_topic(members, f"t{number}", Ordering.COMMITTED, first)
        for number in range(streams):
            members, log_stream = rules.new_log_stream_id(members)
            topic = TopicID(1 + number % topics)
            members, _ = rules.register_log_stream(members, topic, log_stream, NODES)
            members, _ = rules.unseal_stream(members, log_stream, Epoch(1))
        return members, Done()

    trial.submit(decide)


LOG_STREAMS = st.integers(1, 4)
STEPS = st.one_of(
    st.tuples(st.just("report"), st.sampled_from(NODES), LOG_STREAMS, st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.just("report both"), LOG_STREAMS, st.integers(1, 30), st.integers(1, 30)),
    st.tuples(st.just("seal"), LOG_STREAMS),
    st.tuples(st.just("unseal"), LOG_STREAMS),
    st.tuples(st.just("trim"), st.integers(1, 3), st.integers(0, 20)),
    st.tuples(st.just("delete"), st.integers(1, 3)),
    st.tuples(st.just("id"), st.just(0)),
    st.tuples(st.just("begin"), st.integers(1, 3), st.integers(0, 5)),
    st.tuples(st.just("end"), st.integers(1, 3), st.integers(0, 5)),
    st.tuples(st.just("read"), st.integers(1, 3), st.integers(0, 20)),
    st.tuples(st.just("forget"), st.integers(1, 3)),
)


def _step(trial: Trial, step: tuple[str, *tuple[int, ...]]) -> None:
    kind, *facts = step
    if kind == "report":
        node, log_stream, end, synced = facts
        trial.report(NodeID(node), log_stream, end, synced)
    elif kind == "report both":
        log_stream, end, synced = facts
        for node in NODES:
            trial.report(node, log_stream, end, synced)
    elif kind == "seal":
        number = LogStreamID(facts[0])
        trial.submit(
            lambda members, f: (rules.seal_stream(members, number, f.committed_end(number))[0], Done())
        )
    elif kind == "unseal":
        number = LogStreamID(facts[0])
        known = trial.state.streams.get(number)
        epoch = known.epoch if known is not None else Epoch(1)
        trial.submit(lambda members, f: (rules.unseal_stream(members, number, epoch)[0], Done()))
    elif kind == "trim":
        topic, glsn = TopicID(facts[0]), GLSN(facts[1])
        trial.submit(
            lambda members, f: (rules.trim_topic(members, topic, glsn, f.high_watermark(topic)), Done())
        )
    elif kind in ("begin", "end", "read", "forget"):
        trial.submit(_named(kind, TopicID(facts[0]), facts[-1]))
    elif kind == "delete":
        trial.submit(lambda members, f: (rules.unregister_topic(members, TopicID(facts[0])), Done()))
    else:
        trial.submit(lambda members, f: (rules.new_log_stream_id(members)[0], Done()))


def _named(kind: str, topic: TopicID, number: int) -> Decide:
    def decide(members: Members, facts: Facts) -> tuple[Members, Message]:
        newest = newest_position(members, facts, topic)
        streams = tuple(found.log_stream for found in members.view.streams_of(topic))
        if kind == "begin":
            return named_rules.begin_write(members, topic, "job", number, streams, newest)[0], Done()
        if kind == "end":
            return named_rules.end_write(members, topic, "job", number)[0], Done()
        if kind == "read":
            position = GLSN(newest - number)
            return named_rules.set_reader(members, topic, "nightly", position, newest)[0], Done()
        return named_rules.forget_reader(members, topic, "nightly"), Done()

    return decide


@pytest.fixture(params=[1, 3, 512])
def cuts_per_base(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(commit_loop, "CUTS_PER_BASE", request.param)
    return int(request.param)


@pytest.mark.parametrize("restart_every", [1, 5, 1000])
def test_a_restart_loads_exactly_what_was_known(cuts_per_base: int, restart_every: int) -> None:
    @settings(max_examples=40)
    @given(st.lists(STEPS, max_size=25))
    def examples(steps: list[tuple[str, *tuple[int, ...]]]) -> None:
        asyncio.run(_check(steps, restart_every))

    examples()


async def _check(steps: list[tuple[str, *tuple[int, ...]]], restart_every: int) -> None:
    trial = Trial(MemoryMetadata())
    await trial.start()
    _prepare(trial)
    tops: dict[TopicID, GLSN] = {}
    for number, step in enumerate(steps, 1):
        _step(trial, step)
        if number % 2 == 0:
            await settle()
            trial.check_reload()
            order = trial.state.order
            for topic, top in order.high_watermarks.items():
                assert top >= tops.get(topic, 0), "law 3: the order never goes back"
            tops.update(order.high_watermarks)
        if number % restart_every == 0:
            await trial.stop()
            trial = Trial(trial.metadata)
            await trial.start()
    await settle()
    trial.check_reload()
    await trial.stop()


@pytest.mark.parametrize("applied", [False, True], ids=["before it took effect", "after it took effect"])
def test_a_commit_that_was_interrupted_is_whole_or_absent(applied: bool) -> None:
    """A crash in the middle of a commit: the restarted repository continues from one of two states, and never from between."""

    async def body() -> None:
        trial = Trial(MemoryMetadata())
        await trial.start()
        _prepare(trial)
        await settle()
        before = trial.state.order.version
        stuck = asyncio.Event()

        async def never() -> None:
            stuck.set()
            await asyncio.Event().wait()

        if applied:
            trial.metadata.after_commit = never
        else:
            trial.metadata.before_commit = never
        for node in NODES:
            trial.report(node, 1, 5, 1)
        _step(trial, ("seal", 1))
        await stuck.wait()
        await trial.stop()
        assert trial.state.order.version == before, "nothing is applied before the store says so"
        fresh = MemoryMetadata()
        fresh.items = trial.metadata.items
        loaded, _ = load_state(fresh.items, CLUSTER, "memory")
        stream = loaded.streams[LogStreamID(1)]
        assert (loaded.order.committed_end(LogStreamID(1)), stream.sealed_end, stream.epoch) == (
            (5, 5, 2) if applied else (1, 1, 1)
        )

    asyncio.run(body())


def test_a_dead_replica_pins_its_own_rows_and_no_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stream 1 has a replica that never synced its rows; stream 2 never stops: the store stays small."""
    monkeypatch.setattr(commit_loop, "CUTS_PER_BASE", 8)

    async def body() -> None:
        trial = Trial(MemoryMetadata())
        await trial.start()
        _prepare(trial, topics=1, streams=2)
        await settle()
        for node in NODES:
            trial.report(node, 1, 4, 1)
        await settle()
        for end in range(2, 200):
            for node in NODES:
                trial.report(node, 2, end, end - 1)
            await settle()
        cuts = [key for key in trial.metadata.items if key.startswith("cut/")]
        assert len(cuts) <= 9
        (kept,) = trial.state.order.kept_rows(LogStreamID(1))
        assert (kept.llsn_begin, kept.llsn_end) == (1, 4)
        assert len(trial.state.order.kept_rows(LogStreamID(2))) <= 10
        trial.check_reload()
        await trial.stop()

    asyncio.run(body())


def test_cuts_of_many_streams_are_replaced_by_a_base_before_they_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By rows: thousands of streams would else fill the memory long before CUTS_PER_BASE."""
    monkeypatch.setattr(orders, "ROWS_PER_BASE_MIN", 12)
    monkeypatch.setattr(orders, "CUTS_PER_BASE_MIN", 2)

    async def body() -> None:
        trial = Trial(MemoryMetadata())
        await trial.start()
        _prepare(trial, streams=3)
        await settle()
        for end in range(2, 40):
            for node in NODES:
                trial.reports.record(node, [_report(log_stream, end) for log_stream in (1, 2, 3)])
            trial.loop.wake()
            await settle()
        assert trial.state.order.version == 38
        assert len([key for key in trial.metadata.items if key.startswith("cut/")]) <= 5
        assert len(trial.state.order.kept_rows(LogStreamID(1))) <= 6
        trial.check_reload()
        await trial.stop()

    asyncio.run(body())


def test_after_a_cut_of_many_reports_gather_for_as_long_as_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    pauses: list[float] = []

    async def body() -> None:
        gathered = asyncio.Event()

        async def sleep(seconds: float) -> None:
            pauses.append(seconds)
            await gathered.wait()

        monkeypatch.setattr(commit_loop, "ROWS_GATHERED_MIN", 3)
        monkeypatch.setattr(commit_loop, "_now_s", lambda: next(ticks) * 0.01)
        monkeypatch.setattr(commit_loop, "_sleep", sleep)
        trial = Trial(MemoryMetadata())
        await trial.start()
        _prepare(trial, streams=3)
        await settle()
        for node in NODES:
            trial.reports.record(node, [_report(log_stream, 2) for log_stream in (1, 2, 3)])
        trial.loop.wake()
        await settle()
        assert trial.state.order.version == 1
        assert not trial.loop.asleep(), "it looks at what comes by itself"
        for end in (3, 4, 5):
            for node in NODES:
                trial.report(node, 1, end, 1)
            await settle()
        assert trial.state.order.version == 1, "nothing was ordered meanwhile"
        assert pauses == [pytest.approx(0.02)], "once to make the cut and once to send it"
        gathered.set()
        await settle()
        assert trial.state.order.version == 2, "all that came meanwhile is one cut"
        for end in (6, 7):
            for node in NODES:
                trial.report(node, 1, end, 1)
            await settle()
        assert trial.state.order.version == 4, "after a cut of one stream nobody waits"
        await trial.stop()

    asyncio.run(body())


def _report(log_stream: int, end: int) -> Report:
    return Report(LogStreamID(log_stream), Epoch(1), LLSN(end), LLSN(end))


# --- Items that are not ours ---------------------------------------------------------------------------------------------


def _items(changes: list[StoreChange]) -> dict[str, bytes]:
    return {change.key: change.value for change in changes if isinstance(change, PutItem)}


def test_a_new_store_gets_its_cluster_and_format() -> None:
    state, first = load_state({}, ClusterID(4), "here")
    again, nothing = load_state(_items(first), ClusterID(4), "here")
    assert (again.members, nothing) == (state.members, [])
    assert again.view.revision == 1


def test_metadata_of_a_newer_format_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(records, "FORMAT_VERSION", 4)
        items = _items(load_state({}, CLUSTER, "here")[1])
    with pytest.raises(
        StartupError, match="here holds metadata of format version 4, this program knows version 3"
    ):
        load_state(items, CLUSTER, "here")


@pytest.mark.parametrize(
    "items", [{"cluster": b""}, {"cluster": b"\x01"}, {"cluster": b"\x80"}, {"node/1": b"x"}]
)
def test_metadata_that_cannot_be_read_are_refused(items: dict[str, bytes]) -> None:
    with pytest.raises(StartupError, match="here is damaged"):
        load_state(items, CLUSTER, "here")
