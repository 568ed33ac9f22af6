"""Source 001, management: every diagram, message by message.

The tables have a line of the diagram on the left and what is sent here on the right (see `check_drawn`); `OURS` in `varlog.py` maps
the names. SEALED 3 in an answer is a state and the last position of the log stream, which the diagrams call LSN. What participants
do at the same time is compared for each of them.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.paper.cluster import TOPIC, Client, node_address
from tests.paper.executor import batch
from tests.paper.varlog import Varlog, check_drawn, of, run_story
from varlog.model.cluster import StorageNode, StreamState
from varlog.model.errors import (
    AlreadySyncing,
    PreconditionFailed,
    Sealed,
    Trimmed,
    Unavailable,
    VarlogError,
)
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc.messages import (
    AddLogStream,
    AddNode,
    AddStream,
    Append,
    AppendReply,
    CopyFrom,
    Fetch,
    GetNodeStatus,
    GetView,
    NewLogStreamID,
    OpenSession,
    RegisterLogStream,
    RegisterNode,
    RemoveLogStream,
    Replicate,
    Reports,
    SealReplica,
    SealStream,
    SetReplicas,
    StreamReply,
    Suspect,
    SyncReplica,
    UnregisterTopic,
    UnsealReplica,
    UnsealStream,
)
from varlog.storagenode.committed import sync
from varlog.storagenode.committed import sync as copy_source
from varlog.testing.sim.core.host import VOLUME

SEAL = (GetNodeStatus, SealStream, SealReplica)
UNSEAL = (UnsealReplica, UnsealStream)
APPEND = (Append, Suspect, GetView)


async def append(varlog: Varlog, cl: Client, entries: int, *, ordered: bool = True) -> None:
    """Append entries to the first log stream, one at a time; `ordered`: wait until every replica knows that they are
    ordered."""
    for number in range(entries):
        await cl.do(cl.log.append(b"%d" % number, log_stream=varlog.stream.log_stream))
    if ordered:
        await varlog.wait(lambda: committed_ends(varlog) == {entries + 1})
    varlog.take()


def committed_ends(varlog: Varlog) -> set[int]:
    """Of all replicas of the first log stream."""
    return {varlog.replica(varlog.name(node)).committed_end for node in varlog.stream.replicas}


# --- Registration -----------------------------------------------------------------------------------------------------


def test_a_storage_node_is_registered() -> None:
    """001, "Storage Node 등록", R-REG-1. Before it is registered only the manager's request reaches a storage node, and
    clients do not see it; afterwards the repository opens a session with it, in which the node reports without further
    requests (decision 0001)."""

    async def story() -> None:
        varlog = Varlog(1, registered=False)
        await varlog.start()
        await asyncio.sleep(10)
        assert varlog.take(words=[GetNodeStatus, RegisterNode, OpenSession]) == []
        assert not varlog.view.nodes

        await varlog.operate(lambda admin: admin.add_node(node_address(1)))
        await varlog.wait(lambda: varlog.said("SN1 -> MR Reports"))
        check_drawn(
            varlog.take(words=[GetNodeStatus, RegisterNode, OpenSession, Reports]),
            """
            MCL->>+SN: GetStorageNodeID; SN-->>-MCL: SNID              | MCL -> SN1 GetNodeStatus ok
            MCL->>+MR: RegisterStorageNode; MR-->>-MCL: OK             | MCL -> MR RegisterNode ok
            MR->>+SN: GetReport                                        | MR -> SN1 OpenSession ok
            SN-->>-MR: Report                                          | SN1 -> MR Reports
            """,
        )
        assert varlog.view.nodes == (StorageNode(NodeID(1), node_address(1), (str(VOLUME),)),)

    run_story(story)


def test_a_storage_node_of_another_cluster_is_not_registered() -> None:
    """001, "Storage Node 시작": the cluster id keeps a storage node out of another cluster (R-REG-1)."""

    async def story() -> None:
        varlog = Varlog(1, registered=False, node_settings={"cluster": 2})
        await varlog.start()
        mcl = varlog.by_hand("MCL")
        with pytest.raises(VarlogError, match="cluster"):
            await mcl.ask("MCL", AddNode(node_address(1)), timeout_s=10)
        assert varlog.take(words=[RegisterNode, OpenSession]) == []
        assert varlog.view.nodes == ()

    run_story(story)


def test_a_log_stream_is_registered() -> None:
    """001, "Log Stream 등록", R-REG-2. The repository assigns the id, so that no two are equal, whatever happens to a
    manager. The replicas are created at the same time. They begin SEALING (R-SN-8) and so are sealed and unsealed
    before the log stream runs, which 001, whose log streams begin RUNNING, does not draw. Until it is registered no
    client can see it."""

    async def story() -> None:
        varlog = Varlog(2)
        await varlog.start()
        varlog.take()
        varlog.transcript.poll_again(GetView)
        seen: list[object] = []

        def look() -> None:
            seen.append(varlog.view.streams)
            seen.extend(varlog.storage_node(name).status().replicas[0].state for name in ("SN1", "SN2"))

        varlog.transcript.at("MCL -> MR RegisterLogStream", look)
        await varlog.create()
        check_drawn(
            varlog.take(
                "MCL", words=[GetView, NewLogStreamID, AddLogStream, RegisterLogStream, *SEAL[1:], *UNSEAL]
            ),
            """
            MCL->>+MR: GetMetadata; MR->>-MCL: Metadata                | MCL -> MR GetView ok
            MCL->>MCL: Generate LSID                                   | MCL -> MR NewLogStreamID ok
            MCL->>+SN1: AddLogStream(CID, SNID, LSID, Path); OK        | MCL -> SN1 AddLogStream ok
            MCL->>+SN2: AddLogStream(CID, SNID, LSID, Path); OK        | MCL -> SN2 AddLogStream ok
            MCL->>+MR: RegisterLogStream(CID, LSID, SNIDs, Paths); OK  | MCL -> MR RegisterLogStream SEALED 0
                                                                       | MCL -> SN1 SealReplica e1 SEALED 0
                                                                       | MCL -> SN2 SealReplica e1 SEALED 0
                                                                       | MCL -> SN2 UnsealReplica e1 RUNNING 0
                                                                       | MCL -> SN1 UnsealReplica e1 RUNNING 0
                                                                       | MCL -> MR UnsealStream e1 RUNNING 0
            """,
        )
        assert seen == [(), ReplicaState.SEALING, ReplicaState.SEALING]
        assert varlog.all_running()

    run_story(story)


def test_the_manager_crashes_and_its_zombie_is_removed() -> None:
    """001, "MCL crash", R-REG-4. The manager dies when SN1 has its replica of LSID1 and SN2 has none: nothing can be
    appended to it or read from it, because the repository does not know it. The next manager gets a new id. It compares
    what each storage node has with what is registered, and after a grace time removes LSID1; LSID2 is registered, and
    stays."""

    async def story() -> None:
        varlog = Varlog(2, zombie_grace_s=5.0)
        varlog.transcript.streams = True
        await varlog.start()
        varlog.take()
        varlog.transcript.at("MCL -> SN2 AddLogStream", lambda: varlog.cut("MCL", "SN2"))
        operator = asyncio.ensure_future(varlog.create())
        await varlog.wait(lambda: varlog.storage_node("SN1").status().replicas)
        varlog.fail("MCL")
        cl = varlog.by_hand("CL")
        one = varlog.storage_node("SN1").status().replicas[0].log_stream
        assert not varlog.view.streams and not varlog.storage_node("SN2").status().replicas
        with pytest.raises(Sealed):
            await cl.ask("SN1", Append(one), batch(b"entry"))
        with pytest.raises(Unavailable):
            await cl.ask("SN1", Fetch(one, LLSN(1)))
        check_drawn(
            varlog.take("MCL", words=[AddLogStream, RegisterLogStream]),
            """
            MCL->>+SN1: AddLogStream(LSID1); OK                        | MCL -> SN1 AddLogStream ls1 ok
                                                                       | MCL -> SN2 AddLogStream ls1 ×
            """,
        )

        varlog.network.reunite()
        varlog.transcript.poll_again()
        await varlog.boot("MCL")  # MCL->>MCL: Failure recovery
        await operator
        await varlog.wait(lambda: len(varlog.storage_node("SN1").status().replicas) == 1)
        spoken = varlog.take("MCL", words=[AddLogStream, RegisterLogStream, GetNodeStatus, RemoveLogStream])
        check_drawn(
            [line for line in spoken if " GetNodeStatus" not in line],
            """
            MCL->>+SN1: AddLogStream(LSID2); OK                        | MCL -> SN1 AddLogStream ls2 ok
            MCL->>+SN2: AddLogStream(LSID2); OK                        | MCL -> SN2 AddLogStream ls2 ok
            MCL->>+MR: RegisterLogStream(CID, LSID, SNIDs, Paths); OK  | MCL -> MR RegisterLogStream ls2 SEALED 0
            MCL->>+SN1: RemoveLogStream(LSID1); OK                     | MCL -> SN1 RemoveLogStream ls1 ok
            """,
        )
        assert "MCL -> SN1 GetNodeStatus ok" in spoken  # MCL->>+SN1: GetInfo, with every heartbeat
        await asyncio.sleep(60)
        assert varlog.take(words=[RemoveLogStream]) == []
        assert [stream.log_stream for stream in varlog.view.streams] == [2]
        assert varlog.all_running()

    run_story(story)


def test_a_storage_node_has_a_limit_of_log_streams() -> None:
    """001, "SN마다 최적의 LS 수", R-REG-3. 001 leaves open which process enforces the limit: here the storage node refuses,
    and the manager, which gets the limit with every heartbeat, does not ask a node that is at it."""

    async def story() -> None:
        varlog = await Varlog(3, replicas=1, streams=2, node_settings={"streams_max": 1}).drawn()
        mcl = varlog.by_hand("MCL")
        with pytest.raises(PreconditionFailed, match="limit of 1 log streams"):
            await mcl.ask("SN1", AddLogStream(TopicID(1), LogStreamID(9)))
        varlog.take()
        await varlog.operate(lambda admin: admin.add_stream(TOPIC, replicas=1))
        assert varlog.take(words=[AddLogStream]) == ["MCL -> SN3 AddLogStream ok"]
        with pytest.raises(PreconditionFailed):
            await mcl.ask("MCL", AddStream(TOPIC), timeout_s=30)
        assert varlog.take(words=[AddLogStream]) == []

    run_story(story)


def test_unregister_keeps_the_data_and_remove_deletes_it() -> None:
    """000, `UnregisterLogStream`, and 001, `RemoveLogStream`, disagree on what happens to data (R-REG-5): data that
    left the repository are kept for the grace time, and then removed with their directory."""

    async def story() -> None:
        varlog = await Varlog(2, zombie_grace_s=20.0).drawn()
        cl = await varlog.client("CL")
        await append(varlog, cl, 3)
        path = varlog.host("SN1").replica_paths()
        mcl = varlog.by_hand("MCL")
        await mcl.ask("MR", UnregisterTopic(varlog.stream.topic))
        await asyncio.sleep(15)
        assert varlog.view.streams == ()
        assert [status.committed_end for status in varlog.storage_node("SN1").status().replicas] == [4]
        assert varlog.host("SN1").replica_paths() == path != []
        await varlog.wait(lambda: not varlog.host("SN1").replica_paths())
        assert [line for line in varlog.take("MCL", words=[RemoveLogStream]) if "SN1" in line] == [
            "MCL -> SN1 RemoveLogStream e1 ok"
        ]
        assert not varlog.storage_node("SN1").status().replicas

    run_story(story)


# --- Seal -------------------------------------------------------------------------------------------------------------


def test_the_primary_fails() -> None:
    """001, "Primary SN failure", R-SEAL-2: the heartbeat finds it, and only the manager asks the repository to seal.
    The client puts SN1 on its deny list and shares that with the repository; it learns of the seal from the next view,
    and appends elsewhere. It also determines the outcome of the append that was not answered (decision 0008)."""

    async def story() -> None:
        varlog = await Varlog(4, streams=2).drawn()
        cl = await varlog.client("CL")
        await append(varlog, cl, 3)
        varlog.fail("SN1")
        with pytest.raises(Sealed):
            await cl.do(cl.log.append(b"lost", log_stream=varlog.stream.log_stream, timeout_s=2))
        spoken = varlog.take(words=[*SEAL, *APPEND])
        check_drawn(
            [line for number, line in enumerate(of(spoken, "CL")) if line not in of(spoken, "CL")[:number]],
            """
            CL->>SN1: Append                                           | CL -> SN1 Append e1 ×
            CL->>CL: SetBlacklist(SN1)                                 | CL -> MR Suspect ok
            CL->>+MR: GetMetadata(); MR-->>-CL: Metadata               | CL -> MR GetView ok
            """,
        )
        check_drawn(
            [line for line in of(spoken, "MCL") if " GetView" not in line],
            """
            MCL->>SN1: Heartbeat                                       | MCL -> SN1 GetNodeStatus ×
            MCL->>MCL: Trigger sealing                                 |
            MCL->>+MR: Seal(CID, LSID); MR-->>-MCL: Last Committed LSN | MCL -> MR SealStream SEALED 3
            MCL->>+SN2: Seal(CID, LSID, LSN); SEALING (or SEALED), LSN | MCL -> SN2 SealReplica e2 SEALED 3
            """,
        )
        assert not of(spoken, "SN2")
        await cl.do(cl.log.append(b"elsewhere"))
        assert varlog.take("CL", words=[Append]) == ["CL -> SN3 Append e1 ok"]

    run_story(story)


def test_reports_before_the_seal_are_committed_and_later_ones_are_ignored() -> None:
    """001: "Seal 이전에 받은 Report는 Commit이 수행되고, Seal 이후에 받은 Report에 있는 새로운 Commit 요청은 무시된다", R-SEAL-3.
    SN2 has written a fourth entry, and its report is in flight while the log stream is sealed: it comes too late."""

    async def story() -> None:
        varlog = await Varlog(2).unmanaged()
        cl, mcl = await varlog.client("CL"), varlog.by_hand("MCL")
        await append(varlog, cl, 3)
        loop = asyncio.get_running_loop()
        varlog.network.cut_off(varlog.place("SN2"), "mr", loop.time() + 5, one_way=True)
        appending = cl.start(cl.log.append(b"late", timeout_s=30))
        await varlog.wait(lambda: varlog.replica("SN2").durable_end == 5)
        sealed, _ = await mcl.ask("MR", SealStream(varlog.stream.log_stream))
        assert isinstance(sealed, StreamReply)
        assert (sealed.stream.state, sealed.stream.sealed_end) == (StreamState.SEALED, 4)
        varlog.take()
        await varlog.wait(lambda: varlog.said("SN2 -> MR Reports"))
        await asyncio.sleep(5)
        assert varlog.stream == sealed.stream
        assert [varlog.replica(name).committed_end for name in ("SN1", "SN2")] == [4, 4]
        again, _ = await mcl.ask("MR", SealStream(varlog.stream.log_stream))
        assert again == sealed
        appending.cancel()

    run_story(story)


def test_the_backup_fails() -> None:
    """001, "Backup SN failure": SN1 cannot replicate, seals itself, and refuses appends (R-SEAL-6); the heartbeat finds
    that (R-SEAL-2). The append that SN1 had already accepted is not refused immediately, as drawn, but when SN1 is
    sealed: until then it is not known whether it is in the log (decision 0008). Appends that come to SN1 in between
    are."""

    async def story() -> None:
        varlog = await Varlog(4, streams=2, heartbeat_s=2.0).drawn()
        cl = await varlog.client("CL")
        await append(varlog, cl, 3)
        varlog.cut("SN2", "SN1")
        taken = cl.start(cl.log.append(b"taken", log_stream=varlog.stream.log_stream, timeout_s=60))
        await varlog.wait(lambda: varlog.replica("SN1").state is ReplicaState.SEALING)
        assert not taken.done()
        assert "replication broke" in varlog.replica("SN1").trouble
        assert of(varlog.take(words=[Append, Replicate, SealStream]), "SN1") == ["SN1 -> SN2 Replicate e1"]
        with pytest.raises(Sealed):  # SN1->>SN1: SEALING; SN1-->>-CL: ErrSealed
            await cl.ask("SN1", Append(varlog.stream.log_stream), batch(b"entry"))
        varlog.take("CL")
        await cl.do(cl.log.append(b"elsewhere"))  # CL->>CL: SetBlacklist(SN1)
        assert varlog.take("CL", words=[Append]) == ["CL -> SN3 Append e1 ok"]
        await varlog.wait(
            lambda: varlog.replica("SN2").epoch == 2 and varlog.replica("SN2").state is ReplicaState.RUNNING
        )
        check_drawn(
            varlog.take("MCL", words=SEAL),
            """
            MCL->>+SN1: Heartbeat; SN1-->>-MCL: ErrSealed              | MCL -> SN1 GetNodeStatus SEALING
            MCL->>+MR: Seal(CID, LSID); MR-->>-MCL: Last Committed LSN | MCL -> MR SealStream SEALED 3
            MCL->>+SN1: Seal(CID, LSID, LSN); SEALING (or SEALED), LSN | MCL -> SN1 SealReplica e2 SEALED 3
            MCL->>+SN2: Seal(CID, LSID, LSN); SEALING (or SEALED), LSN | MCL -> SN2 SealReplica e2 SEALED 3
            """,
        )
        varlog.network.reunite()
        assert (await taken).llsn == 4

    run_story(story)


@pytest.mark.parametrize("failures", [1, 1_000_000])
def test_log_io_faults(failures: int) -> None:
    """001, "Log I/O fault": SN1 cannot write, and seals itself (R-SEAL-6). One write that fails is as drawn. A disk
    that keeps failing refuses the seal too, until it works again: a seal that is not on disk is not a seal (R-SEAL-5),
    and SN2 is sealed without SN1."""

    async def story() -> None:
        varlog = await Varlog(4, streams=2).drawn()
        cl = await varlog.client("CL")
        await append(varlog, cl, 3)
        drive = varlog.host("SN1").drive
        drive.fail_writes = failures
        appending = cl.start(cl.log.append(b"retried", log_stream=varlog.stream.log_stream, timeout_s=60))
        refused = failures > 1
        answer = "Unavailable" if refused else "SEALED 3"
        await varlog.wait(lambda: varlog.said(f"MCL -> SN1 SealReplica e2 {answer}"))
        await varlog.wait(lambda: varlog.said("MCL -> SN2 SealReplica e2 SEALED 3"))
        check_drawn(
            varlog.take("MCL", words=SEAL),
            f"""
            MCL->>+SN1: Heartbeat; SN1-->>-MCL: ErrSealed              | MCL -> SN1 GetNodeStatus SEALING
            MCL->>+MR: Seal(CID, LSID); MR-->>-MCL: Last Committed LSN | MCL -> MR SealStream SEALED 3
            MCL->>+SN1: Seal(CID, LSID, LSN); SEALING (or SEALED), LSN | MCL -> SN1 SealReplica e2 {answer}
            MCL->>+SN2: Seal(CID, LSID, LSN); SEALING (or SEALED), LSN | MCL -> SN2 SealReplica e2 SEALED 3
            """,
        )
        if refused:
            assert varlog.replica("SN1").state is ReplicaState.SEALING
            await cl.do(cl.log.append(b"elsewhere"))  # CL->>CL: SetBlacklist(SN1, LS)
            assert varlog.take("CL", words=[Append]) == ["CL -> SN3 Append e1 ok"]
        drive.heal()
        await varlog.wait(varlog.all_running)
        assert (await appending).llsn == 4
        await varlog.wait(lambda: committed_ends(varlog) == {5})

    run_story(story)


# --- Sync -------------------------------------------------------------------------------------------------------------


async def lag(varlog: Varlog, cl: Client) -> None:
    """Three entries, whose order SN2 does not know, and SN2 is down."""
    varlog.network.cut_off("mr", varlog.place("SN2"), asyncio.get_running_loop().time() + 30, one_way=True)
    await append(varlog, cl, 3, ordered=False)
    varlog.fail("SN2")


def test_seal_is_repeated_until_every_replica_has_answered() -> None:
    """001, "Sync", first diagram, by hand: a replica that is SEALED replies so every time; one that comes back and
    lacks entries replies SEALING (R-SEAL-4)."""

    async def story() -> None:
        varlog = await Varlog(2).unmanaged()
        cl, mcl = await varlog.client("CL"), varlog.by_hand("MCL")
        await lag(varlog, cl)
        await mcl.ask("MR", SealStream(varlog.stream.log_stream))
        seal = SealReplica(varlog.stream.log_stream, varlog.stream.epoch, varlog.stream.sealed_end)
        varlog.take()
        for _ in range(2):
            await mcl.ask("SN1", seal)
            with pytest.raises(Unavailable):
                await mcl.ask("SN2", seal)
        await varlog.boot("SN2")
        await mcl.ask("SN1", seal)
        await mcl.ask("SN2", seal)
        check_drawn(
            varlog.take("MCL"),
            """
            MCL->>+SN1: Seal(CID, LSID, LSN); SN1-->>-MCL: SEALED, LSN | MCL -> SN1 SealReplica e2 SEALED 3
            MCL->>SN2: Seal(CID, LSID, LSN); Error                     | MCL -> SN2 SealReplica e2 ×
            MCL->>+SN1: Seal(CID, LSID, LSN); SN1-->>-MCL: SEALED, LSN | MCL -> SN1 SealReplica e2 SEALED 3
            MCL->>SN2: Seal(CID, LSID, LSN); Error                     | MCL -> SN2 SealReplica e2 ×
            MCL->>+SN1: Seal(CID, LSID, LSN); SN1-->>-MCL: SEALED, LSN | MCL -> SN1 SealReplica e2 SEALED 3
            MCL->>+SN2: Seal(CID, LSID, LSN); SN2-->>MCL: SEALING, LSN | MCL -> SN2 SealReplica e2 SEALING 0
            """,
        )

    run_story(story)


def test_the_manager_seals_each_replica_when_it_can_be_sealed() -> None:
    """The same diagram by our manager, which decides from the heartbeats: a replica that is SEALED is not sealed again,
    and one that does not answer the heartbeat is not asked. Then SN2 is filled, and sealed once more (R-SEAL-4)."""

    async def story() -> None:
        varlog = await Varlog(2).drawn()
        cl = await varlog.client("CL")
        await lag(varlog, cl)
        await varlog.wait(lambda: varlog.said("MCL -> SN1 SealReplica e2 SEALED 3"))
        await asyncio.sleep(3)
        await varlog.boot("SN2")
        await varlog.wait(lambda: varlog.all_running() and varlog.stream.epoch == 2)
        check_drawn(
            varlog.take("MCL", words=[*SEAL, SyncReplica, *UNSEAL]),
            """
                                                                       | MCL -> SN2 GetNodeStatus ×
                                                                       | MCL -> MR SealStream SEALED 3
            MCL->>+SN1: Seal(CID, LSID, LSN); SN1-->>-MCL: SEALED, LSN | MCL -> SN1 SealReplica e2 SEALED 3
            MCL->>SN2: Seal(CID, LSID, LSN); Error                     |
            MCL->>+SN1: Seal(CID, LSID, LSN); SN1-->>-MCL: SEALED, LSN |
            MCL->>SN2: Seal(CID, LSID, LSN); Error                     |
            MCL->>+SN1: Seal(CID, LSID, LSN); SN1-->>-MCL: SEALED, LSN |
                                                                       | MCL -> SN2 GetNodeStatus SEALING
            MCL->>+SN2: Seal(CID, LSID, LSN); SN2-->>MCL: SEALING, LSN | MCL -> SN2 SealReplica e2 SEALING 0
                                                                       | MCL -> SN2 SyncReplica e2 IN_PROGRESS
                                                                       | MCL -> SN2 SealReplica e2 SEALED 3
                                                                       | MCL -> SN2 UnsealReplica e2 RUNNING 3
                                                                       | MCL -> SN1 UnsealReplica e2 RUNNING 3
                                                                       | MCL -> MR UnsealStream e2 RUNNING 3
            """,
        )

    run_story(story)


async def joining(varlog: Varlog, mcl: Client) -> None:
    """SN2 is new in a sealed log stream of SN1 and SN3, and empty."""
    stream = varlog.stream
    await mcl.ask("MR", SealStream(stream.log_stream))
    for name in ("SN1", "SN3"):
        await mcl.ask(name, SealReplica(stream.log_stream, varlog.stream.epoch, varlog.stream.sealed_end))
    await mcl.ask("SN2", AddLogStream(stream.topic, stream.log_stream, cluster_uuid=varlog.view.uuid))
    replicas = tuple(varlog.address(name).node for name in ("SN1", "SN3", "SN2"))
    await mcl.ask("MR", SetReplicas(stream.log_stream, varlog.stream.epoch, replicas))
    varlog.take()


async def three_nodes(entries: int) -> tuple[Varlog, Client, Client]:
    """SN1 and SN3 have these entries, SN2 has no replica; and a client and the manager, whose messages the test
    sends."""
    varlog = await Varlog(3).unmanaged()
    (spare,) = [node for node in varlog.nodes if node not in varlog.stream.replicas]
    varlog.call_in_order([varlog.stream.replicas[0], spare, varlog.stream.replicas[1]])
    cl, mcl = await varlog.client("CL"), varlog.by_hand("MCL")
    await append(varlog, cl, entries)
    return varlog, cl, mcl


def test_a_sync_is_polled_and_a_second_source_is_refused() -> None:
    """001, "Sync", second diagram, R-SYNC-1, R-SYNC-2. The replica that lacks entries pulls them (decision 0009): so
    Sync is sent to SN2 and names SN1, SyncReplicate is SN2's request to SN1, and the error that SN3 gets when it comes
    second, ErrAlreadySync, is sent to the manager that names SN3. Only a SEALED replica is a source."""

    async def story() -> None:
        varlog, _, mcl = await three_nodes(10)
        await joining(varlog, mcl)
        varlog.network.slow_link(varlog.place("SN1"), varlog.place("SN2"), 1e9, 0.9)
        stream = varlog.stream
        seal = SealReplica(stream.log_stream, stream.epoch, stream.sealed_end)

        async def sync(source: str) -> None:
            await mcl.ask("SN2", SyncReplica(stream.log_stream, stream.epoch, varlog.address(source)))

        await mcl.ask("SN1", seal)
        await mcl.ask("SN2", seal)
        await sync("SN1")
        await varlog.wait(lambda: any("CopyFrom" in line.word for line in varlog.transcript.lines))
        with pytest.raises(AlreadySyncing):
            await sync("SN3")
        await sync("SN1")
        await sync("SN1")
        await varlog.wait(lambda: varlog.said("SN2 -> SN1 CopyFrom e3 ok"))
        await varlog.wait(lambda: varlog.replica("SN2").committed_end == 11)
        await sync("SN1")
        await mcl.ask("SN2", seal)
        check_drawn(
            varlog.take("MCL", "SN1", "SN2", "SN3", words=[SealReplica, SyncReplica, CopyFrom]),
            """
            MCL->>+SN1: Seal(CID, LSID, LLSN); SEALED, LLSN(10)        | MCL -> SN1 SealReplica e3 SEALED 10
            MCL->>+SN2: Seal(CID, LSID, LLSN); SEALING, LLSN(NULL)     | MCL -> SN2 SealReplica e3 SEALING 0
            MCL->>+SN1: Sync(CID, LSID, LLSN, SN2, ...); INPROGRESS    | MCL -> SN2 SyncReplica e3 IN_PROGRESS
            SN1->>+SN2: SyncReplicate; SN2-->>-SN1: OK                 | SN2 -> SN1 CopyFrom e3 ok
            SN3->>+SN2: SyncReplicate; SN2->>-SN3: ErrAlreadySync      | MCL -> SN2 SyncReplica e3 AlreadySyncing
            MCL->>+SN1: Sync(CID, LSID, LLSN, SN2, ...); INPROGRESS    | MCL -> SN2 SyncReplica e3 IN_PROGRESS
            MCL->>+SN1: Sync(CID, LSID, LLSN, SN2, ...); INPROGRESS    | MCL -> SN2 SyncReplica e3 IN_PROGRESS
            MCL->>+SN1: Sync(CID, LSID, LLSN, SN2, ...); SYNC_DONE     | MCL -> SN2 SyncReplica e3 COMPLETE
            MCL->>+SN2: Seal(CID, LSID, LLSN); SEALED, LLSN(10)        | MCL -> SN2 SealReplica e3 SEALED 10
            """,
        )

    run_story(story)


def test_only_a_sealed_replica_is_the_source_of_a_sync() -> None:
    """001: "SEALED 상태가 아닌 LS는 Sync RPC를 수행할 수 없다", R-SYNC-2: neither one that runs nor one that is SEALING sends
    entries."""

    async def story() -> None:
        varlog, _, mcl = await three_nodes(10)
        one = varlog.stream.log_stream
        for name in ("SN1", "SN3"):
            with pytest.raises(VarlogError):
                await mcl.ask(name, CopyFrom(one, varlog.stream.epoch, LLSN(1)))
        await joining(varlog, mcl)
        await mcl.ask("SN2", SealReplica(one, varlog.stream.epoch, varlog.stream.sealed_end))
        assert varlog.replica("SN2").state is ReplicaState.SEALING
        with pytest.raises(PreconditionFailed):
            await mcl.ask("SN2", CopyFrom(one, varlog.stream.epoch, LLSN(1)))
        varlog.take()
        with pytest.raises(PreconditionFailed):  # SN3 was not sealed in this epoch yet
            await mcl.ask("SN3", CopyFrom(one, varlog.stream.epoch, LLSN(1)))
        assert varlog.take("MCL") == ["MCL -> SN3 CopyFrom e3 PreconditionFailed"]

    run_story(story)


def test_the_manager_replaces_a_replica() -> None:
    """001, "새롭게 추가된 LS", R-REG-6: the replica set of a sealed log stream is changed at the repository, the new
    replica is filled, and the log stream is unsealed. With the new set comes a new epoch, which SN1 is sealed in as well."""

    async def story() -> None:
        varlog = await Varlog(3).drawn()
        cl = await varlog.client("CL")
        await append(varlog, cl, 10)
        old, new = varlog.address("SN2").node, varlog.address("SN3").node
        await varlog.operate(lambda admin: admin.replace_replica(varlog.stream.log_stream, old, new))
        await varlog.wait(varlog.all_running)
        check_drawn(
            varlog.take(
                "MCL", "SN3", words=[AddLogStream, SetReplicas, *SEAL, SyncReplica, CopyFrom, *UNSEAL]
            ),
            """
                                                                       | MCL -> MR SealStream SEALED 10
                                                                       | MCL -> SN1 SealReplica e2 SEALED 10
                                                                       | MCL -> SN2 SealReplica e2 SEALED 10
                                                                       | MCL -> SN3 AddLogStream ok
                                                                       | MCL -> MR SetReplicas e2 SEALED 10
            MCL->>+SN1: Seal(CID, LSID, LLSN); SEALED, LLSN(10)        | MCL -> SN1 SealReplica e3 SEALED 10
            MCL->>+SN2: Seal(CID, LSID, LLSN); SEALING, LLSN(NULL)     | MCL -> SN3 SealReplica e3 SEALING 0
            MCL->>+SN1: Sync(CID, LSID, LLSN, SN2, ...); INPROGRESS    | MCL -> SN3 SyncReplica e3 IN_PROGRESS
            SN1->>+SN2: SyncReplicate; SN2-->>-SN1: OK                 | SN3 -> SN1 CopyFrom e3 ok
            MCL->>+SN2: Seal(CID, LSID, LLSN); SEALED, LLSN(10)        | MCL -> SN3 SealReplica e3 SEALED 10
                                                                       | MCL -> SN3 UnsealReplica e3 RUNNING 10
                                                                       | MCL -> SN1 UnsealReplica e3 RUNNING 10
                                                                       | MCL -> MR UnsealStream e3 RUNNING 10
            """,
        )
        assert varlog.stream.replicas == (varlog.address("SN1").node, new)
        assert [entry.data async for entry in cl.log.subscribe(1, 11)] == [
            b"%d" % number for number in range(10)
        ]

    run_story(story)


@pytest.mark.parametrize("side", ["SN1", "SN2"])
def test_a_sync_survives_a_crash_of_either_side(side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """001: "Sync는 오래 걸릴 수 있는 작업", R-SYNC-3: whichever side crashes, it continues where it stopped, and does not start
    again."""
    for module in (sync, copy_source):
        monkeypatch.setattr(module, "COPY_BYTES_MAX", 300)

    async def story() -> None:
        varlog, _, mcl = await three_nodes(10)
        await joining(varlog, mcl)
        asked: list[int] = []
        varlog.network.on_message = lambda _, message: (
            asked.append(message.llsn) if isinstance(message, CopyFrom) else None
        )
        varlog.network.slow_link(varlog.place("SN1"), varlog.place("SN2"), 1e9, 0.5)
        stream = varlog.stream
        seal = SealReplica(stream.log_stream, stream.epoch, stream.sealed_end)
        fill = SyncReplica(stream.log_stream, stream.epoch, varlog.address("SN1"))
        for name in ("SN1", "SN2"):
            await mcl.ask(name, seal)
        await mcl.ask("SN2", fill)
        await varlog.wait(lambda: 4 < varlog.replica("SN2").committed_end < 9)
        await asyncio.sleep(0.25)  # its rows are on disk as well
        before = varlog.replica("SN2").committed_end
        varlog.fail(side)
        await varlog.boot(side)
        first = len(asked)
        async with asyncio.timeout(60):
            while varlog.replica("SN2").state is not ReplicaState.SEALED:
                for name in ("SN1", "SN2"):
                    await mcl.ask(name, seal)
                await mcl.ask("SN2", fill)
                await asyncio.sleep(1)
        assert asked[first] >= before > asked[0] == 1
        assert varlog.replica("SN2").committed_end == varlog.replica("SN1").committed_end == 11

    run_story(story)


def test_a_sync_carries_trims() -> None:
    """R-SYNC-3: what was trimmed while a replica was away does not come back with it."""

    async def story() -> None:
        varlog, cl, mcl = await three_nodes(10)
        varlog.fail("SN2")
        await cl.do(cl.log.trim(5))
        varlog.cut("MR", "SN2")  # only SN1 can send it the trim
        await varlog.boot("SN2")
        await joining(varlog, mcl)
        stream = varlog.stream
        for name in ("SN1", "SN2"):
            await mcl.ask(name, SealReplica(stream.log_stream, stream.epoch, stream.sealed_end))
        await mcl.ask("SN2", SyncReplica(stream.log_stream, stream.epoch, varlog.address("SN1")))
        await varlog.wait(lambda: varlog.replica("SN2").committed_end == 11)
        assert varlog.replica("SN2").low_watermark == 5
        varlog.network.reunite()  # a started storage node serves no read before the repository has sent it the tail
        await varlog.wait(lambda: varlog.said("MR -> SN2 OpenSession ok"))
        await varlog.wait(lambda: varlog.said("MR -> SN2 Commits"))
        await asyncio.sleep(1)
        with pytest.raises(Trimmed):
            await cl.ask("SN2", Fetch(stream.log_stream, LLSN(5)))

    run_story(story)


# --- Unseal -----------------------------------------------------------------------------------------------------------


def test_unseal() -> None:
    """001, "Unseal", R-UNSEAL-1: every replica, then the repository, and each replies with its state. The primary,
    which is drawn first, comes last of the replicas: it opens its connections to the backups, which must run by then,
    and refuses to run before. An append in between is ordered when the repository is unsealed."""

    async def story() -> None:
        varlog = await Varlog(2).unmanaged()
        cl, mcl = await varlog.client("CL"), varlog.by_hand("MCL")
        await append(varlog, cl, 3)
        one = varlog.stream.log_stream
        await mcl.ask("MR", SealStream(one))
        epoch = varlog.stream.epoch
        unseal = UnsealReplica(one, epoch, (varlog.address("SN1"), varlog.address("SN2")))
        with pytest.raises(VarlogError):  # it is not sealed in this epoch
            await mcl.ask("SN2", unseal)
        for name in ("SN1", "SN2"):
            await mcl.ask(name, SealReplica(one, epoch, varlog.stream.sealed_end))
        with pytest.raises(Sealed):
            await mcl.ask("SN1", unseal)
        assert varlog.replica("SN1").state is ReplicaState.SEALED
        with pytest.raises(Sealed):
            await cl.ask("SN1", Append(one), batch(b"entry"))
        varlog.take()
        await mcl.ask("SN2", unseal)
        await mcl.ask("SN1", unseal)
        between = cl.start(cl.ask("SN1", Append(one, epoch), batch(b"entry"), timeout_s=30))
        await asyncio.sleep(5)
        assert not between.done()
        await mcl.ask("MR", UnsealStream(one, epoch))
        check_drawn(
            varlog.take("MCL"),
            """
            MCL->>+SN2: Unseal(CID, LSID); SN2-->>-MCL: OK, RUNNING    | MCL -> SN2 UnsealReplica e2 RUNNING 3
            MCL->>+SN1: Unseal(CID, LSID); SN1-->>-MCL: OK, RUNNING    | MCL -> SN1 UnsealReplica e2 RUNNING 3
            MCL->>+MR: Unseal(CID, LSID); MR-->>-MCL: OK               | MCL -> MR UnsealStream e2 RUNNING 3
            """,
        )
        assert (await between)[0] == AppendReply(GLSN(4), LLSN(4))

    run_story(story)


def test_a_replica_that_lacks_entries_is_not_unsealed() -> None:
    """001: "Commit된 로그가 Last Committed LSN보다 작다면 Unseal될 수 없다", R-UNSEAL-1."""

    async def story() -> None:
        varlog, _, mcl = await three_nodes(10)
        await joining(varlog, mcl)
        stream = varlog.stream
        for name in ("SN1", "SN2", "SN3"):
            await mcl.ask(name, SealReplica(stream.log_stream, stream.epoch, stream.sealed_end))
        replicas = tuple(varlog.address(name) for name in ("SN1", "SN2", "SN3"))
        with pytest.raises(PreconditionFailed, match="sealing"):
            await mcl.ask("SN2", UnsealReplica(stream.log_stream, stream.epoch, replicas))
        assert varlog.replica("SN2").state is ReplicaState.SEALING

    run_story(story)
