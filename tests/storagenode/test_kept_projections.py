"""A node keeps the next projection of a topic for the repository in session, durably, and says so only then."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.storagenode.scripted import STREAM, TIMEOUT_S, TOPIC, Bench, run
from varlog.model.epoch import Epoch
from varlog.model.errors import PreconditionFailed, Unavailable
from varlog.model.ids import NodeID
from varlog.model.lsn import GLSN
from varlog.model.projection import Chain, Projection, Proposal, Range, Stripe
from varlog.rpc.messages import Done, GetNodeFacts, GetNodeFactsReply, KeepProjection
from varlog.runtime.disk import OsDisk
from varlog.storage.witness_file import WITNESS_NAME


def proposal(serial: int, epoch: int) -> Proposal:
    ranges = (Range(GLSN(1), (Stripe(STREAM),)),)
    return Proposal(
        1, serial, Projection(TOPIC, Epoch(epoch), GLSN(1), ranges, (Chain(STREAM, (NodeID(1),)),))
    )


async def kept(bench: Bench) -> tuple[Proposal, ...]:
    facts, _ = await bench.call(GetNodeFacts())
    assert isinstance(facts, GetNodeFactsReply)
    return facts.proposed


def test_the_newest_proposal_is_kept_over_restarts_and_new_terms(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.start()
        repository = await bench.session()
        for number in (1, 2):
            asked = KeepProjection(proposal(number, number))
            assert (await repository.connection.call(asked, timeout_s=TIMEOUT_S))[0] == Done()
        await bench.stop()
        await bench.start()
        await bench.session(term=2)
        assert await kept(bench) == (proposal(2, 2),)

    run(tmp_path, story)


def test_nothing_is_kept_for_one_that_is_not_in_session(tmp_path: Path) -> None:
    async def story(bench: Bench) -> None:
        await bench.start()
        await bench.session()
        with pytest.raises(PreconditionFailed, match="in session"):
            await bench.call(KeepProjection(proposal(1, 1)))
        assert await kept(bench) == ()

    run(tmp_path, story)


class NoWitness(OsDisk):
    """Takes everything but what the node has seen of repositories."""

    full = False

    def replace_file(self, path: Path, content: bytes) -> None:
        if self.full and path.name == WITNESS_NAME:
            raise OSError(errno.ENOSPC, "no room")
        super().replace_file(path, content)


def test_what_no_disk_accepts_is_not_reported_as_kept(tmp_path: Path) -> None:
    """Law 1."""

    async def story(bench: Bench) -> None:
        disk = bench.disk = NoWitness()
        await bench.start()
        repository = await bench.session()
        disk.full = True
        with pytest.raises(Unavailable, match="no disk of node 1 accepts"):
            await repository.connection.call(KeepProjection(proposal(1, 1)), timeout_s=TIMEOUT_S)

    run(tmp_path, story)
