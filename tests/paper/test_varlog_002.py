"""Source 002, management in the storage node: states, Seal and Sync."""

from __future__ import annotations

import asyncio
import logging
from itertools import product

import pytest

from tests.paper.cluster import run_story
from tests.paper.executor import (
    EQUAL,
    FORMER,
    LESS,
    PROPOSED,
    START,
    Arrow,
    Executor,
    arrows,
    batch,
)
from tests.paper.varlog import Varlog
from varlog.model.commit import CommitRow
from varlog.model.epoch import Epoch
from varlog.model.errors import (
    NotPrimary,
    PreconditionFailed,
    Sealed,
    StaleEpoch,
    UnknownLogStream,
    VarlogError,
)
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState, SyncState
from varlog.rpc.messages import (
    AddLogStream,
    Append,
    AppendReply,
    Commits,
    OpenSession,
    RemoveLogStream,
    ReplicaStateReply,
    SealReplica,
    SealStream,
    SetReplicas,
    SyncReplica,
    SyncReply,
    UnsealReplica,
    UnsealStream,
)

STATES = (START, *(state.name for state in (ReplicaState.RUNNING, ReplicaState.SEALING, ReplicaState.SEALED)))

# --- Operations -------------------------------------------------------------------------------------------------------


def test_the_management_operations_of_a_storage_node() -> None:
    """002, "Management in StorageNode": AddLogStream creates an executor and its data, RemoveLogStream deletes both.
    Seal, Unseal and Sync are below. An executor is not created twice, nor over existing data (R-SN-6), and what was
    removed is unknown."""

    async def story() -> None:
        varlog = Varlog(1)
        await varlog.start()
        mcl, one = varlog.by_hand("MCL"), LogStreamID(1)
        add = AddLogStream(TopicID(1), one, cluster_uuid=varlog.view.uuid)
        await mcl.ask("SN1", add)
        (made,) = varlog.storage_node("SN1").status().replicas
        assert (made.log_stream, made.committed_end) == (one, 1)
        assert [str(path) for path in varlog.host("SN1").replica_paths()] == [made.path]
        with pytest.raises(PreconditionFailed, match="has data in"):
            await mcl.ask("SN1", add)
        await mcl.ask("SN1", RemoveLogStream(one, cluster_uuid=varlog.view.uuid))
        assert varlog.host("SN1").replica_paths() == []
        assert varlog.storage_node("SN1").status().replicas == ()
        with pytest.raises(UnknownLogStream):
            await mcl.ask("SN1", SealReplica(one, Epoch(1), LLSN(1)))

    run_story(story)


def test_a_storage_node_has_an_executor_for_every_log_stream() -> None:
    """002, "Architecture": ManagementClient -> ManagementService -> StorageNode -> LSEMap. Each executor has a state of its
    own, and Stats are all of them."""

    async def story() -> None:
        executor = await Executor.at("RUNNING", streams=2)
        await executor.seal("SN1")
        assert (await executor.seal("SN2")).state is ReplicaState.SEALED
        for name in ("SN1", "SN2"):
            found = executor.varlog.storage_node(name).status().replicas
            assert [(replica.log_stream, replica.state.name) for replica in found] == [
                (1, "SEALED"),
                (2, "RUNNING"),
            ]
        await executor.cl.do(executor.cl.log.append(b"other", log_stream=2))

    run_story(story)


# --- State diagram ----------------------------------------------------------------------------------------------------


def test_the_diagram_is_the_one_of_000_except_for_its_start() -> None:
    """002 draws what 000, which is newer, replaces: there an executor starts RUNNING, here SEALING (R-SN-8). All other
    arrows are the same, and `test_varlog_000.py` follows each of them."""
    former, proposed = set(arrows(FORMER)), set(arrows(PROPOSED))
    assert former - proposed == {Arrow(START, "RUNNING", "")}
    assert proposed - former == {Arrow(START, "SEALING", "")}


def undrawn() -> list[tuple[str, str]]:
    """Pairs of two states between which there is no arrow."""
    drawn = {(arrow.begin, arrow.end) for arrow in arrows(PROPOSED)}
    return [(a, b) for a, b in product(STATES, STATES[1:]) if a != b and (a, b) not in drawn]


@pytest.mark.parametrize(("begin", "end"), undrawn())
def test_there_is_no_transition_without_an_arrow(begin: str, end: str) -> None:
    """002, "State diagram of LogStreamExecutor", R-SEAL-1: from the start to RUNNING or SEALED, and from SEALING to
    RUNNING, by Unseal or a restart; from SEALED to SEALING by a Seal that names more than the epoch was sealed with,
    which freezes the replica."""

    async def story() -> None:
        if begin == START:
            executor = await Executor.at(end)
            executor.varlog.fail("SN2")
            await executor.varlog.boot("SN2")
            assert executor.state == "SEALING"
            with pytest.raises((PreconditionFailed, StaleEpoch)):
                await executor.unseal()
        elif begin == "SEALING":
            executor = await Executor.at(begin, behind=True)
            with pytest.raises(PreconditionFailed, match="not sealed"):
                await executor.unseal()
            assert executor.state == begin
        else:
            executor = await Executor.at(begin)
            stream = executor.varlog.stream
            with pytest.raises(PreconditionFailed, match="an epoch is sealed at one position"):
                await executor.mcl.ask("SN2", SealReplica(stream.log_stream, stream.epoch, LLSN(5)))
            assert executor.state == "FROZEN"
        assert executor.state != end

    run_story(story)


@pytest.mark.parametrize("state", STATES[1:])
def test_a_repeated_request_changes_nothing(state: str) -> None:
    """001 repeats Seal and Unseal until every replica has answered: a Seal of a SEALING or SEALED one and an Unseal of a
    RUNNING one leave it where it is (R-SEAL-1)."""

    async def story() -> None:
        executor = await Executor.at(state, behind=state == "SEALING")
        if state == "RUNNING":
            await executor.seal()
            for _ in range(2):
                assert (await executor.unseal()).state.name == state
        else:
            for _ in range(2):
                assert (await executor.seal()).state.name == state
        assert executor.state == state

    run_story(story)


@pytest.mark.parametrize("state", STATES[1:])
def test_only_a_running_executor_accepts_appends(state: str) -> None:
    """002: "SEALING과 SEALED 상태에서는 Append 요청을 수행할 수 없으며", R-SEAL-1. SN2 is a backup: when it runs it names the
    reason."""

    async def story() -> None:
        executor = await Executor.at(state, behind=state == "SEALING")
        with pytest.raises(NotPrimary if state == "RUNNING" else Sealed):
            await executor.cl.ask("SN2", Append(executor.log_stream), batch(b"entry"))
        if state == "RUNNING":
            answer, _ = await executor.cl.ask("SN1", Append(executor.log_stream), batch(b"entry"))
            assert answer == AppendReply(GLSN(4), LLSN(4))

    run_story(story)


def test_an_epoch_that_was_opened_is_not_sealed_again() -> None:
    """002 knows no epochs: a delayed Seal would cut what was acknowledged since (decision 0003). It is refused, and so
    is an Unseal of an older epoch; also after a restart."""

    async def story() -> None:
        executor = await Executor.at("SEALED")
        stream = executor.varlog.stream
        await executor.unseal()
        for _ in range(2):
            for request in (
                SealReplica(stream.log_stream, stream.epoch, stream.sealed_end),
                UnsealReplica(stream.log_stream, Epoch(1), (executor.varlog.address("SN2"),)),
            ):
                with pytest.raises(StaleEpoch):
                    await executor.mcl.ask("SN2", request)
            executor.varlog.fail("SN2")
            await executor.varlog.boot("SN2")
        assert executor.varlog.replica("SN2").opened

    run_story(story)


def test_a_replica_that_left_and_comes_back_is_sealing_again() -> None:
    """Not drawn: SN2, SEALED, is removed from the log stream, which runs without it; when it is added again it lacks
    entries, and a Seal in that newer epoch makes it SEALING (R-REG-6)."""

    async def story() -> None:
        executor = await Executor.at("SEALED")
        varlog, mcl, one = executor.varlog, executor.mcl, executor.log_stream
        nodes = tuple(varlog.address(name).node for name in ("SN1", "SN2"))
        await mcl.ask("MR", SetReplicas(one, varlog.stream.epoch, nodes[:1]))
        await executor.seal("SN1")
        await executor.mcl.ask("SN1", UnsealReplica(one, varlog.stream.epoch, (varlog.address("SN1"),)))
        await mcl.ask("MR", UnsealStream(one, varlog.stream.epoch))
        await executor.append(2)
        await mcl.ask("MR", SealStream(one))
        await executor.seal("SN1")
        await mcl.ask("MR", SetReplicas(one, varlog.stream.epoch, nodes))
        answer = await executor.seal("SN2")
        assert (answer.state, answer.committed_end, varlog.stream.sealed_end) == (ReplicaState.SEALING, 4, 6)

    run_story(story)


# --- Seal -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("event", "state", "end"), [(LESS, "SEALING", 1), (EQUAL, "SEALED", 4)])
def test_seal_answers_with_state_and_position(event: str, state: str, end: int) -> None:
    """002, "Seal", R-SEAL-4. Arguments: the log stream and the position that the repository committed last; here it is an
    LLSN, its end is exclusive, and the epoch comes with it. Results: the state and the position that is committed here. 1.
    localHWM < lastCommittedGLSN: SEALING. localHWM == lastCommittedGLSN: SEALED. 2., 3.: the answer has localHWM."""

    async def story() -> None:
        executor = await Executor.at("RUNNING", behind=event == LESS)
        assert await executor.seal() == ReplicaStateReply(ReplicaState[state], LLSN(end))
        assert executor.varlog.take("MCL") == [
            "MCL -> MR SealStream SEALED 3",
            f"MCL -> SN2 SealReplica e2 {state} {end - 1}",
        ]
        assert executor.varlog.replica("SN2").high_watermark == end - 1

    run_story(story)


def test_a_seal_below_what_is_committed_freezes_the_replica(caplog: pytest.LogCaptureFixture) -> None:
    """002, "Seal", 1.: localHWM > lastCommittedGLSN is a panic there. Here the replica refuses, is frozen with its
    files as they are, and reports it; the storage node and its other executors continue (R-SEAL-4, decision 0021)."""

    async def story() -> None:
        executor = await Executor.at("RUNNING", streams=2)
        mcl, one = executor.mcl, executor.log_stream
        with pytest.raises(PreconditionFailed, match="a seal never undoes a commit"):
            await mcl.ask("SN2", SealReplica(one, Epoch(2), LLSN(3)))
        frozen = executor.varlog.replica("SN2")
        assert (frozen.state, frozen.committed_end, frozen.durable_end) == (ReplicaState.FROZEN, 4, 4)
        assert "knows 3 ordered entries" in frozen.evidence
        for request in (
            UnsealReplica(one, Epoch(2), (executor.varlog.address("SN2"),)),
            SyncReplica(one, Epoch(2), executor.varlog.address("SN1")),
            RemoveLogStream(one, cluster_uuid=executor.varlog.view.uuid),
        ):
            with pytest.raises(VarlogError):
                await mcl.ask("SN2", request)
        assert executor.state == "FROZEN"
        await executor.cl.do(executor.cl.log.append(b"other", log_stream=2))

    with caplog.at_level(logging.CRITICAL, "varlog"):
        run_story(story)
    assert "replica frozen" in caplog.text


def test_a_seal_answers_waiting_appends_and_deletes_what_is_not_committed() -> None:
    """002, "Seal", 3., R-SEAL-5. Two appends wait at the primary: the repository has ordered the first, which SN1 does
    not know yet, and never the second. While SN1 is SEALING both wait. The first succeeds when its order comes. On
    SEALED the second fails, its entry is deleted (002: "lastCommittedLLSN 보다 큰 로그 삭제"), and does not come back when
    everything restarts: its place is assigned to another."""

    async def story() -> None:
        executor = await Executor.at("RUNNING")
        varlog, cl, one = executor.varlog, executor.cl, executor.log_stream

        def append(entry: bytes, sequence: int) -> asyncio.Task[object]:
            return cl.start(cl.ask("SN1", Append(one), batch(entry, sequence), timeout_s=60))

        executor.hold("MR", "SN1")
        first = append(b"ordered", 1)
        await varlog.wait(lambda: executor.committed_end == 5)
        executor.hold("SN2", "MR")
        second = append(b"not ordered", 2)
        await varlog.wait(lambda: varlog.replica("SN2").durable_end == 6)

        assert await executor.seal("SN1") == ReplicaStateReply(ReplicaState.SEALING, LLSN(4))
        assert await executor.seal("SN2") == ReplicaStateReply(ReplicaState.SEALED, LLSN(5))
        assert not first.done() and not second.done()
        assert (await first)[0] == AppendReply(GLSN(4), LLSN(4))  # type: ignore[index]
        assert not second.done()
        assert await executor.seal("SN1") == ReplicaStateReply(ReplicaState.SEALED, LLSN(5))
        with pytest.raises(Sealed):
            await second

        for name in ("SN1", "SN2"):
            varlog.fail(name)
            await varlog.boot(name)
            assert varlog.replica(name).durable_end == 5
        for name in ("SN1", "SN2"):
            assert (await executor.seal(name)).state is ReplicaState.SEALED
        for name in ("SN2", "SN1"):
            await executor.unseal(name)
        await executor.mcl.ask("MR", UnsealStream(one, varlog.stream.epoch))
        assert (await cl.do(cl.log.append(b"another", log_stream=one))).llsn == 5
        assert [entry.data async for entry in cl.log.subscribe(4, 6)] == [b"ordered", b"another"]

    run_story(story)


def test_a_commit_beyond_the_sealed_position_is_an_inconsistency(caplog: pytest.LogCaptureFixture) -> None:
    """002: "LastCommittedGLSN보다 큰 로그 위치의 Commit 요청이 왔다면 … data consistency에 문제가 발생했다", R-SEAL-7:
    a repository, by hand,
    that has sealed a replica and then orders more of the epoch that is over is refused, and the replica is frozen."""

    async def story() -> None:
        executor = await Executor.at("SEALED")
        varlog, mr = executor.varlog, executor.varlog.by_hand("MR")
        varlog.fail("MR")
        connection = await mr.transport.connect(
            mr.transport.address_of("SN2"), handler=lambda *_: None, timeout_s=1
        )
        await mr.do(connection.call(OpenSession(99), timeout_s=1))
        row = CommitRow(9, GLSN(4), GLSN(3), GLSN(4), LLSN(4), 1, Epoch(1))
        connection.send(Commits(1, 9, (), ((LogStreamID(1), (row,)),)))
        await varlog.wait(
            lambda: executor.varlog.storage_node("SN2").status().replicas[0].state is ReplicaState.FROZEN
        )
        frozen = varlog.storage_node("SN2").status().replicas[0]
        assert "nothing beyond a seal is ordered" in frozen.trouble
        assert frozen.committed_end == 4

    with caplog.at_level(logging.CRITICAL, "varlog"):
        run_story(story)
    assert "replica frozen" in caplog.text


# --- Sync -------------------------------------------------------------------------------------------------------------


def test_a1_sync_a2() -> None:
    """002, "Sync", R-SYNC-1: A1 has everything that was confirmed, A2 was added and has nothing. The sync, which A2
    runs on its own (decision 0009), reports its progress each time it is asked: SYNC_INPROGRESS, SYNC_COMPLETE; or why
    it failed, which 002 does not have."""

    async def story() -> None:
        varlog = await Varlog(2, replicas=1).unmanaged()
        cl, mcl = await varlog.client("CL"), varlog.by_hand("MCL")
        for number in range(5):
            await cl.do(cl.log.append(b"%d" % number))
        one, topic = varlog.stream.log_stream, varlog.stream.topic
        await mcl.ask("MR", SealStream(one))
        await mcl.ask("SN1", SealReplica(one, varlog.stream.epoch, varlog.stream.sealed_end))
        await mcl.ask("SN2", AddLogStream(topic, one, cluster_uuid=varlog.view.uuid))
        nodes = tuple(varlog.address(name).node for name in ("SN1", "SN2"))
        await mcl.ask("MR", SetReplicas(one, varlog.stream.epoch, nodes))
        epoch, end = varlog.stream.epoch, varlog.stream.sealed_end
        await mcl.ask("SN2", SealReplica(one, epoch, end))

        async def poll() -> SyncState:
            answer, _ = await mcl.ask("SN2", SyncReplica(one, epoch, varlog.address("SN1")))
            assert isinstance(answer, SyncReply)
            assert answer.sync.target_end == end
            return answer.sync.state

        def failed() -> bool:
            sync = varlog.replica("SN2").sync
            return (
                sync is not None
                and sync.state is SyncState.ERROR
                and "only a replica that is sealed" in sync.why
            )

        assert await poll() is SyncState.IN_PROGRESS
        await varlog.wait(failed)  # A1 was not sealed in this epoch
        await mcl.ask("SN1", SealReplica(one, epoch, end))
        assert await poll() is SyncState.IN_PROGRESS
        await varlog.wait(lambda: varlog.replica("SN2").committed_end == end)
        await varlog.wait(lambda: (sync := varlog.replica("SN2").sync) is not None and sync.copied_end == end)
        assert await poll() is SyncState.COMPLETE
        assert varlog.replica("SN2").state is ReplicaState.SEALING  # until it is sealed
        answer, _ = await mcl.ask("SN2", SealReplica(one, epoch, end))
        assert answer == ReplicaStateReply(ReplicaState.SEALED, end)

    run_story(story)
