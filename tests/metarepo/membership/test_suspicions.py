"""Suspicions: watchers of the view learn immediately of a node that a client could not use, and when that is over."""

from __future__ import annotations

import asyncio

import pytest

from tests.metarepo.helpers import run, settle, world
from varlog.metarepo.membership import suspicions
from varlog.metarepo.membership.suspicions import Suspicions
from varlog.model.ids import NodeID
from varlog.rpc import messages as m

ONE, TWO = NodeID(1), NodeID(2)


def test_a_suspicion_answers_waiters_for_a_newer_view() -> None:
    """R-FAIL-2: clients share suspicions through the repository."""

    async def body() -> None:
        async with world(1, 2) as w:
            revision = (await w.view()).revision
            waiting = asyncio.create_task(w.ask(m.GetView(revision, 30), m.GetViewReply))
            await settle()
            await w.ask(m.Suspect(TWO, "it does not answer"), m.Done)
            answer = await waiting
            assert (answer.suspects, answer.view.revision) == ((TWO,), revision)
            assert (await w.ask(m.GetView(), m.GetViewReply)).suspects == (TWO,)

    run(body())


def test_a_suspicion_expires_and_that_is_published_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """R-FAIL-2: a suspicion expires."""
    monkeypatch.setattr(suspicions, "SUSPECTED_S", 0.01)

    async def body() -> None:
        async with world(1) as w:
            await w.ask(m.Suspect(ONE, ""), m.Done)
            while (seen := await w.ask(m.GetView((await w.view()).revision, 30), m.GetViewReply)).suspects:
                pass
            assert seen.suspects == ()

    run(body())


def test_a_node_that_is_not_registered_is_not_suspected() -> None:
    async def body() -> None:
        async with world(1) as w:
            await w.ask(m.Suspect(NodeID(99), "it does not answer"), m.Done)
            assert (await w.ask(m.GetView(), m.GetViewReply)).suspects == ()
            await w.ask(m.Suspect(ONE, ""), m.Done)
            await w.ask(m.UnregisterNode(ONE), m.Done)
            assert (await w.ask(m.GetView(), m.GetViewReply)).suspects == ()

    run(body())


def test_only_changes_are_published() -> None:
    async def body() -> None:
        published: list[tuple[NodeID, ...]] = []
        found = Suspicions(lambda: published.append(found.nodes))
        for node in (TWO, ONE, TWO, ONE):
            found.suspect(node)
        assert published == [(TWO,), (ONE, TWO)]
        found.clear()
        assert found.nodes == () and len(published) == 2

    run(body())
