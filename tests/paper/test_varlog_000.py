"""Source 000, storage node bootstrap: start, layout, state diagrams, contexts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.paper.cluster import Client, run_story
from tests.paper.executor import LESS, PROPOSED, START, Arrow, Executor, arrows, batch
from tests.paper.varlog import Varlog
from varlog.model.batch import walk
from varlog.model.errors import PreconditionFailed, Sealed, StartupError
from varlog.model.ids import LogStreamID, TopicID
from varlog.model.lsn import GLSN, LLSN
from varlog.model.status import ReplicaState
from varlog.rpc.messages import AddLogStream, Append, Fetch, FetchReply, GetNodeFacts, GetNodeFactsReply
from varlog.storage.committed.recovery import ReplicaRecovery, survey
from varlog.testing.sim.core.disk import SimDisk
from varlog.testing.sim.core.drive import Drive, Folder, Inode
from varlog.testing.sim.core.host import VOLUME, Host
from varlog.testing.sim.core.loop import Process

VOLUMES = tuple(Path(f"/volume{number}") for number in (1, 2, 3))
TOPIC = TopicID(1)


# --- Volumes ----------------------------------------------------------------------------------------------------------


async def three_volumes() -> tuple[Varlog, Client]:
    """SN1 with three volumes, and the manager, whose messages the test sends."""
    varlog = Varlog(1, node_settings={"volumes": VOLUMES})
    await varlog.start()
    return varlog, varlog.by_hand("MCL")


async def add(varlog: Varlog, mcl: Client, log_stream: int, volume: str = "") -> None:
    request = AddLogStream(TOPIC, LogStreamID(log_stream), volume, cluster_uuid=varlog.view.uuid)
    await mcl.ask("SN1", request)


def test_the_layout_of_volumes() -> None:
    """000, "Volume", R-SN-2, as drawn there: `/volume1/cid=<cid>/snid=<snid-1>/lsid=<lsid-1>`, and so on. Each log
    stream is complete on one volume: on the one that the manager names, otherwise on the one with the fewest."""

    async def story() -> None:
        varlog, mcl = await three_volumes()
        for log_stream in (1, 2, 3):
            await add(varlog, mcl, log_stream)
        await add(varlog, mcl, 4, "/volume2")
        assert list(map(str, varlog.host("SN1").replica_paths())) == [
            "/volume1/cid=1/snid=1/lsid=1",
            "/volume2/cid=1/snid=1/lsid=2",
            "/volume2/cid=1/snid=1/lsid=4",
            "/volume3/cid=1/snid=1/lsid=3",
        ]
        with pytest.raises(PreconditionFailed, match="/elsewhere is no volume"):
            await add(varlog, mcl, 5, "/elsewhere")

    run_story(story)


def test_add_log_stream_refuses_what_is_on_another_volume_already() -> None:
    """000: a replica that was unregistered leaves its data; one that is added again must not be on two volumes, and the
    storage node ensures that (R-SN-6)."""

    async def story() -> None:
        varlog, mcl = await three_volumes()
        await add(varlog, mcl, 10, "/volume1")
        for volume in ("/volume1", "/volume2", ""):
            with pytest.raises(PreconditionFailed, match="has data in /volume1/cid=1/snid=1/lsid=10"):
                await add(varlog, mcl, 10, volume)
        assert list(map(str, varlog.host("SN1").replica_paths())) == ["/volume1/cid=1/snid=1/lsid=10"]

    run_story(story)


# --- Start ------------------------------------------------------------------------------------------------------------


def copy_folder(drive: Drive, old: Path, new: Path) -> None:
    """As an operator does it, with all files."""
    content = {
        name: Inode(bytes(found.content))
        for name, found in drive.folder(old).entries.items()
        if isinstance(found, Inode)
    }
    folder = drive.folder(new.parent)
    for names in (folder.entries, folder.durable):
        names[new.name] = Folder(dict(content), dict(content))


def stays_away(drive: Drive) -> None:
    """The volume does not exist."""


def is_a_file(drive: Drive) -> None:
    drive.root.link("absent", Inode(b"content"))


def is_read_only(drive: Drive) -> None:
    drive.root.link("absent", Folder())


@pytest.mark.parametrize(
    ("prepare", "why"),
    [(stays_away, "does not exist"), (is_a_file, "is not a directory"), (is_read_only, "is not writable")],
)
def test_a_volume_that_cannot_be_used_ends_the_start(
    prepare: Callable[[Drive], None], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """000, "Starting StorageNode": without `/<volume>`, which must be a writable directory, an error and the end; the
    error names the volume (R-SN-1)."""
    absent = Path("/absent")
    monkeypatch.setattr(SimDisk, "is_writable", lambda disk, path: path != absent and disk.is_directory(path))

    async def story() -> None:
        varlog, _ = await three_volumes()
        await varlog.host("SN1").stop()
        prepare(varlog.host("SN1").drive)
        varlog.node_settings["volumes"] = (*VOLUMES, absent)
        with pytest.raises(StartupError, match=f"volume /absent {why}"):
            await varlog.boot("SN1")
        assert not varlog.host("SN1").up

    run_story(story)


def test_a_node_id_that_was_not_given_is_drawn_and_kept() -> None:
    """001, "Storage Node 시작": the id is given, or the process draws one; R-SN-1: and keeps it."""

    async def story() -> None:
        varlog = Varlog(1, registered=False, node_settings={"node": None})
        await varlog.start()
        drawn = varlog.storage_node("SN1").node
        for _ in range(3):
            varlog.fail("SN1")
            await varlog.boot("SN1")
            assert varlog.storage_node("SN1").node == drawn

    run_story(story)


def test_every_log_stream_is_restored() -> None:
    """000: what is in `/<volume>/cid=<cid>/snid=<snid>/lsid=<lsid>` is read and restored (R-SN-3), of this cluster and
    storage node."""

    async def story() -> None:
        varlog = await Varlog(2, streams=3).drawn()
        cl = await varlog.client("CL")
        for number in range(9):
            await cl.do(cl.log.append(b"%d" % number))
        await asyncio.sleep(1)

        def known() -> list[tuple[Any, ...]]:
            found = varlog.storage_node("SN1").status().replicas
            return sorted(
                (one.log_stream, one.epoch, one.committed_end, one.durable_end, one.path) for one in found
            )

        before = known()
        assert sum(committed_end - 1 for _, _, committed_end, _, _ in before) == 9
        varlog.fail("MCL")
        varlog.fail("SN1")
        await varlog.boot("SN1")
        assert known() == before

    run_story(story)


def test_a_log_stream_on_two_volumes_ends_the_start() -> None:
    """000: `LogStreamID==10` under /volume1 and under /volume2 is an error and the end; it names both (R-SN-4)."""

    async def story() -> None:
        varlog, mcl = await three_volumes()
        await add(varlog, mcl, 10, "/volume1")
        host, home = varlog.host("SN1"), "cid=1/snid=1/lsid=10"
        await host.stop()
        copy_folder(host.drive, Path("/volume1") / home, Path("/volume2") / home)
        with pytest.raises(StartupError, match=f"10 exists twice, in /volume1/{home} and in /volume2/{home}"):
            await varlog.boot("SN1")
        assert not host.up

    run_story(story)


def test_error_if_exists() -> None:
    """000, `--error-if-exists`: an existing StorageNodePath of this cluster and storage node is an error and the end
    (R-SN-5); on an empty volume the storage node starts."""

    async def story() -> None:
        varlog = Varlog(1, node_settings={"error_if_exists": True})
        await varlog.start()
        await varlog.host("SN1").stop()
        with pytest.raises(StartupError, match="/data/cid=1/snid=1 exists already"):
            await varlog.boot("SN1")
        assert not varlog.host("SN1").up
        del varlog.node_settings["error_if_exists"]
        await varlog.boot("SN1")

    run_story(story)


def rename(host: Host) -> None:
    """The directory of storage node 1 gets the name of storage node 2's."""
    host.drive.folder(VOLUME / "cid=1").rename("snid=1", "snid=2")


@pytest.mark.parametrize(
    ("settings", "prepare", "why"),
    [
        ({"cluster_key": "another"}, lambda host: None, "was created with another cluster key"),
        ({"node": 2}, rename, "belongs to node 1 of cluster 1, not to node 2"),
    ],
)
def test_a_directory_is_not_trusted_by_its_name(
    settings: dict[str, Any], prepare: Callable[[Host], None], why: str
) -> None:
    """000, "Open Issues": restoring by the names of directories alone is not safe. An identity file holds a fingerprint
    of the cluster's key and the owner of the directory; a storage node that does not match ends with an error
    (R-SN-7)."""

    async def story() -> None:
        varlog = Varlog(1, node_settings={"cluster_key": "secret"})
        await varlog.start()
        await varlog.host("SN1").stop()
        await varlog.boot("SN1")
        await varlog.host("SN1").stop()
        prepare(varlog.host("SN1"))
        varlog.node_settings |= settings
        with pytest.raises(StartupError, match=why):
            await varlog.boot("SN1")
        assert not varlog.host("SN1").up

    run_story(story)


# --- State diagrams ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arrow", [arrow for arrow in arrows(PROPOSED) if arrow.begin != START], ids="{0.begin} {0.event}".format
)
def test_the_arrows_of_the_state_diagram(arrow: Arrow) -> None:
    """000, "State Diagram of Log Stream Replica", the second one, arrow by arrow (R-SEAL-1). Those without an arrow are in
    `test_varlog_002.py`."""

    async def story() -> None:
        executor = await Executor.at(arrow.begin, behind=arrow.event == LESS)
        await executor.do(arrow.event)
        assert executor.state == arrow.end

    run_story(story)


def test_a_new_replica_starts_sealing() -> None:
    """000, `[*] --> SEALING`: no client learns that it can append before the replica is known to hold everything
    (R-SN-8)."""

    async def story() -> None:
        varlog = Varlog(1)
        await varlog.start()
        mcl = varlog.by_hand("MCL")
        await add(varlog, mcl, 1)
        assert [one.state for one in varlog.storage_node("SN1").status().replicas] == [ReplicaState.SEALING]
        with pytest.raises(Sealed):
            await varlog.by_hand("CL").ask("SN1", Append(LogStreamID(1)), batch(b"entry"))

    run_story(story)


@pytest.mark.parametrize("state", ["RUNNING", "SEALING", "SEALED"])
def test_a_restored_replica_starts_sealing(state: str) -> None:
    """000, `[*] --> SEALING`: whatever its state was when the storage node ended (R-SN-8), and it is sealed and
    unsealed like a new one."""

    async def story() -> None:
        executor = await Executor.at(state)
        executor.varlog.fail("SN2")
        await executor.varlog.boot("SN2")
        assert executor.state == "SEALING"
        await executor.varlog.wait(lambda: executor.committed_end == 4)
        await executor.seal()
        await executor.unseal()
        assert executor.state == "RUNNING"

    run_story(story)


# --- LogStreamContext -------------------------------------------------------------------------------------------------


class Context(NamedTuple):
    """What 000 calls LogStreamContext, of a replica: the names there are globalHWM, uncommittedLLSNBegin,
    uncommittedLLSNEnd, localLWM and localHWM. committedLLSNEnd is uncommittedLLSNBegin here: one value cannot differ
    from itself."""

    global_high_watermark: GLSN
    uncommitted_begin: LLSN
    uncommitted_end: LLSN
    low_watermark: GLSN
    high_watermark: GLSN


class Contexts:
    """Two log streams of one topic: the first on SN1 and SN2, the second on SN3 and SN4."""

    def __init__(self, varlog: Varlog, cl: Client) -> None:
        self.varlog, self.cl = varlog, cl
        self.one, self.two = (stream.log_stream for stream in varlog.view.streams)

    @classmethod
    async def drawn(cls) -> Contexts:
        varlog = await Varlog(4, streams=2).drawn()
        return cls(varlog, await varlog.client("CL"))

    async def of(self, name: str) -> Context:
        """What a replica of the first log stream knows; the global high watermark as it reports it to a repository."""
        facts, _ = await self.cl.ask(name, GetNodeFacts())
        assert isinstance(facts, GetNodeFactsReply)
        found = self.varlog.replica(name, self.one)
        high = facts.marks[0].high_watermark
        return Context(
            high, found.committed_end, found.durable_end, found.low_watermark, found.high_watermark
        )

    async def append(self, log_stream: LogStreamID) -> None:
        await self.cl.do(self.cl.log.append(b"entry", log_stream=log_stream))

    def hold(self, seconds: float) -> None:
        """The reports of the backups to the repository arrive later, all of them at once."""
        until = asyncio.get_running_loop().time() + seconds
        for name in ("SN2", "SN4"):
            self.varlog.network.cut_off(self.varlog.place(name), "mr", until, one_way=True)

    async def append_in_one_commit(self) -> None:
        """Two batches to the first log stream and one to the second, which one commit message of the repository orders."""
        self.hold(2)
        log_streams = (self.one, self.one, self.two)
        writes = [
            self.cl.start(self.cl.log.append_batch([b"entry"], log_stream=found)) for found in log_streams
        ]
        await asyncio.gather(*writes)

    async def restart(self, name: str) -> None:
        """Without manager and repository: the storage node has only its disk."""
        await asyncio.sleep(1)  # commit contexts are written by then
        self.varlog.fail("MCL")
        self.varlog.fail("MR")
        self.varlog.fail(name)
        await self.varlog.boot(name)


def test_the_fields_of_a_log_stream_context() -> None:
    """000, "LogStreamContext", R-CTX-1: uncommittedLLSNEnd grows with appends; globalHWM and uncommittedLLSNBegin change
    together with a commit, and so does localHWM; localLWM grows with trims."""

    async def story() -> None:
        contexts = await Contexts.drawn()
        assert await contexts.of("SN1") == Context(GLSN(0), LLSN(1), LLSN(1), GLSN(0), GLSN(0))
        await contexts.append(contexts.one)
        assert await contexts.of("SN1") == Context(GLSN(1), LLSN(2), LLSN(2), GLSN(0), GLSN(1))
        await contexts.append(contexts.two)
        await contexts.varlog.wait(lambda: contexts.varlog.replica("SN3", contexts.two).high_watermark == 2)
        await asyncio.sleep(1)
        assert await contexts.of("SN1") == Context(GLSN(2), LLSN(2), LLSN(2), GLSN(0), GLSN(1))
        contexts.hold(5)
        appending = contexts.cl.start(contexts.append(contexts.one))
        await contexts.varlog.wait(lambda: contexts.varlog.replica("SN1", contexts.one).durable_end == 3)
        assert await contexts.of("SN1") == Context(GLSN(2), LLSN(2), LLSN(3), GLSN(0), GLSN(1))
        await appending
        assert await contexts.of("SN1") == Context(GLSN(3), LLSN(3), LLSN(3), GLSN(0), GLSN(3))
        await contexts.cl.do(contexts.cl.log.trim(2))
        assert await contexts.of("SN1") == Context(GLSN(3), LLSN(3), LLSN(3), GLSN(2), GLSN(3))

    run_story(story)


def test_a_log_stream_context_is_restored_from_its_last_commit_context() -> None:
    """000, "CommitContext", the first branch of the code there: lastCC.lastCommittedGLSN == lastLE.GLSN, so globalHWM
    is lastCC.hwm, which is more than the log stream's own last position, and uncommittedLLSNBegin is lastLE.LLSN+1
    (R-CTX-2, R-CTX-3). The uncommitted tail is present, and stays uncommitted."""

    async def story() -> None:
        contexts = await Contexts.drawn()
        await contexts.append(contexts.one)
        await contexts.append(contexts.two)
        await contexts.append_in_one_commit()
        contexts.hold(60)
        _ = contexts.cl.start(contexts.append(contexts.one))
        await contexts.varlog.wait(lambda: contexts.varlog.replica("SN1", contexts.one).durable_end == 5)
        before = await contexts.of("SN1")
        assert before == Context(GLSN(5), LLSN(4), LLSN(5), GLSN(0), GLSN(4))
        await contexts.restart("SN1")
        assert await contexts.of("SN1") == before

    run_story(story)


def look(host: Host) -> ReplicaRecovery:
    """The files of the one replica of a storage node whose process is gone."""
    return survey(host.environment(Process("look")).disk, host.replica_paths()[0])


def lose_last_batch(host: Host) -> None:
    """Whether it is missing on the disk."""
    segment = look(host).segments[-1]
    file = host.drive.file(segment.path)
    *_, (at, _) = walk(file.content[: segment.size])
    file.rewrite(bytes(file.content[:at]))


def test_a_partial_commit_is_dropped() -> None:
    """000, the other branch: an entry of the last commit is missing, so the context is that of the commit before
    (R-CTX-3), including its globalHWM, 1; the code there uses lastCC.prevHWM, 2, which is newer by what the other log
    stream had in between. No read depends on it: a storage node that has started serves none before the repository has
    sent it the tail. "Alternatives": the other entry of the commit, which is on disk, is not used to repair it, but is
    uncommitted again. Then the log stream is repaired, and the replica stores and commits again what it had
    (R-CTX-4)."""

    async def story() -> None:
        contexts = await Contexts.drawn()
        varlog = contexts.varlog
        await contexts.append(contexts.one)
        await contexts.append(contexts.two)
        await contexts.append_in_one_commit()
        await asyncio.sleep(1)
        assert await contexts.of("SN2") == Context(GLSN(5), LLSN(4), LLSN(4), GLSN(0), GLSN(4))
        varlog.fail("MCL")
        varlog.fail("MR")
        varlog.fail("SN2")
        lose_last_batch(varlog.host("SN2"))
        await varlog.boot("SN2")
        found = await contexts.of("SN2")
        assert found == Context(GLSN(1), LLSN(2), LLSN(3), GLSN(0), GLSN(1))

        await varlog.boot("MR")
        await varlog.boot("MCL")
        await varlog.wait(lambda: varlog.all_running() and varlog.stream.epoch == 2)
        fetched, _ = await contexts.cl.ask("SN2", Fetch(contexts.one, LLSN(1)))
        assert isinstance(fetched, FetchReply)
        assert fetched.rows == ((1, 1, 1), (2, 3, 2))
        assert (await contexts.of("SN2"))[1:] == (await contexts.of("SN1"))[1:] == (4, 4, 0, 4)

    run_story(story)


def test_a_commit_context_on_disk_means_that_its_entries_are_on_disk() -> None:
    """000: `CC (i+N)` on disk implies `LE (i+N-1)` on disk (R-CTX-2), wherever the storage node crashes; here its own
    entries are present too, because only what is durable is reported, and only what was reported is committed."""

    async def story() -> None:
        varlog = await Varlog(2).drawn()
        cl = await varlog.client("CL")
        host, rows = varlog.host("SN1"), 0
        for operations in range(1, 16):
            assert host.disk is not None
            host.disk.crash_at = host.disk.operations + operations
            while host.up:
                _ = cl.start(cl.log.append_batch([b"entry"] * 3, timeout_s=60))
                await asyncio.sleep(0.1)
            found = look(host)
            assert found.rows_kept == len(found.rows)
            assert found.committed_end <= found.written_end
            rows += len(found.rows)
            await varlog.boot("SN1")
            await varlog.wait(varlog.all_running)
        assert rows > 0

    run_story(story)
