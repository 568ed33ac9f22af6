"""D6: terms are durable and bounded, and each opening of a store has a nonce.

Nodes accepted any larger term and kept it in memory alone: a restored repository led old nodes after their restart, and
a forged term locked the real repository out forever.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.hardening.witness_cluster import RewoundCluster
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed, VarlogError
from varlog.model.ids import LogStreamID, NodeID, TopicID
from varlog.model.lsn import GLSN
from varlog.model.projection import Chain, Projection, Proposal, Range, SequencerID, Stripe
from varlog.rpc import messages as m
from varlog.runtime.disk import OsDisk
from varlog.testing.sim.core.loop import run_simulated

NODE = NodeID(3)


def test_d6_an_older_term_a_twin_and_an_impossible_term_are_refused() -> None:
    from varlog.model.errors import StaleTerm
    from varlog.model.limits import TERM_JUMP_MAX
    from varlog.storagenode.commit_service import check_term

    check_term(NODE, 5, 77, 6, 1)
    check_term(NODE, 5, 77, 5, 77)
    check_term(NODE, 0, 0, 5, 77)
    check_term(NODE, 5, 0, 5, 77)  # seen by a version that sent no nonce
    with pytest.raises(StaleTerm, match=r"term 4 .* has seen term 5"):
        check_term(NODE, 5, 77, 4, 1)
    with pytest.raises(StaleTerm, match="another metadata repository in term 5"):
        check_term(NODE, 5, 77, 5, 78)
    with pytest.raises(PreconditionFailed, match="too far above"):
        check_term(NODE, 5, 77, 6 + TERM_JUMP_MAX, 1)


async def believes(cluster: RewoundCluster, address: str, term: int) -> bool:
    """Whether a node opens a session for a repository that names this term."""
    try:
        await cluster.ask(address, m.OpenSession(term))
    except VarlogError:
        return False
    return True


def test_d6_a_node_that_restarts_still_refuses_the_terms_before() -> None:
    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"first")
        await log.close()
        cluster.repository.crash()
        cluster.repository.boot()  # in term 2
        await cluster.until(cluster.runs)
        await asyncio.sleep(2.0)
        cluster.repository.crash()
        cluster.nodes[1].crash()
        cluster.nodes[1].boot()
        await asyncio.sleep(1.0)
        assert not await believes(cluster, "sn1:7110", 1)
        from varlog.model.errors import StaleTerm

        for term in (1, 2):
            with pytest.raises(StaleTerm):
                await cluster.ask("sn1:7110", m.OpenSession(term, nonce=99))

    run_simulated(story())


def test_d6_a_forged_term_does_not_lock_the_repository_out() -> None:
    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        await log.append(b"first")
        believed = [await believes(cluster, f"sn{number}:7110", 1 << 62) for number in cluster.nodes]
        try:
            acknowledged = int((await log.append(b"second")).glsn)
        except VarlogError as error:
            acknowledged = 0
            print(error)
        await log.close()
        assert (believed, acknowledged) == ([False] * 3, 2)
        with pytest.raises(PreconditionFailed, match="too far above"):
            await cluster.ask("sn1:7110", m.OpenSession(1 << 62))

    run_simulated(story())


def test_d6_a_repository_whose_terms_went_back_rises_above_them_and_checks_every_topic() -> None:
    """The store is the copy of an hour ago: its next term was seen long ago."""

    async def story() -> None:
        cluster = RewoundCluster()
        cluster.start()
        log = await cluster.log(create=True)
        appended = [await log.append(b"%d" % number) for number in range(3)]
        old = cluster.copy()
        for _ in range(4):
            cluster.repository.crash()
            cluster.repository.boot()
            appended.append(await log.append(b"more"))
        await asyncio.sleep(1.0)
        cluster.restore(old, term=old.term)

        async def resumes() -> bool:
            return (
                await cluster.runs()
                and not await cluster.is_stopped()
                and await cluster.tail() == len(appended)
            )

        await cluster.until(resumes)
        assert (await log.append(b"after")).glsn == len(appended) + 1
        # The raised term is durable: the next start does not depend on a node's report.
        cluster.repository.crash()
        cluster.repository.boot()
        assert (await log.append(b"and on")).glsn == len(appended) + 2
        await log.close()

    run_simulated(story())


def test_d6_the_witness_file_is_kept_on_every_volume_and_a_damaged_copy_does_no_harm(tmp_path: Path) -> None:
    from varlog.storage.witness_file import Witness, WitnessFile

    volumes = [tmp_path / "a", tmp_path / "b"]
    for volume in volumes:
        volume.mkdir()
    seen = Witness(7, 42, ((TopicID(3), Epoch(9)),))
    file = WitnessFile(OsDisk(), volumes)
    assert file.read() == Witness()
    file.keep(seen)
    assert file.read() == seen
    content = bytearray((volumes[0] / "witness").read_bytes())
    content[content.index(b"7")] ^= 1
    (volumes[0] / "witness").write_bytes(content)
    assert file.read() == seen


def test_d6_of_the_proposals_on_several_volumes_the_newest_of_each_topic_is_read(tmp_path: Path) -> None:
    from varlog.storage.witness_file import Witness, WitnessFile

    volumes = [tmp_path / "a", tmp_path / "b"]
    for volume in volumes:
        volume.mkdir()
    old, new = Proposal(2, 9, proposed(3)), Proposal(3, 1, proposed(3, 2))
    assert WitnessFile(OsDisk(), volumes[:1]).keep(Witness(3).keeping(old).keeping(new))
    assert WitnessFile(OsDisk(), volumes[1:]).keep(
        Witness(2).keeping(Proposal(1, 1, proposed(5))).keeping(old)
    )
    assert set(WitnessFile(OsDisk(), volumes).read().proposed) == {new, Proposal(1, 1, proposed(5))}
    assert not WitnessFile(OsDisk(), [tmp_path / "missing"]).keep(Witness(3)), "no volume takes it"


def proposed(topic: int, epoch: int = 1) -> Projection:
    streams = (LogStreamID(4),)
    return Projection(
        TopicID(topic),
        Epoch(epoch),
        GLSN(1),
        (Range(GLSN(1), tuple(map(Stripe, streams)), 16),),
        tuple(Chain(stream, (NodeID(2), NodeID(3))) for stream in streams),
        SequencerID("s:7113", 77),
    )


@pytest.mark.parametrize("proposals", [False, True])
def test_d6_the_witness_file_is_read_and_written_compatibly(proposals: bool) -> None:
    """Versions 1 and 2 had other keys."""
    from varlog.storage.witness_file import Witness, decode_witness, encode_witness

    golden, name = Path(__file__).parents[1] / "golden", "_proposed.json" if proposals else ".json"
    kept = (Proposal(7, 2, proposed(3, 10)),) if proposals else ()
    seen = Witness(7, 42, ((TopicID(3), Epoch(9)),), kept)
    assert encode_witness(seen) == (golden / f"witness_v3{name}").read_bytes()
    for version in (1, 2, 3):
        assert decode_witness((golden / f"witness_v{version}{name}").read_bytes()) == seen
