"""Which process of a sequenced topic dies: the head, the middle or the tail of its first chain, or its sequencer."""

from __future__ import annotations

from varlog import aio
from varlog.cli.supervisor import Supervisor
from varlog.model.errors import Unavailable
from varlog.model.projection import Projection


async def head(supervisor: Supervisor) -> str:
    return f"vsn-{(await _projection(supervisor)).chains[0].head}"


async def middle(supervisor: Supervisor) -> str:
    nodes = (await _projection(supervisor)).chains[0].nodes
    return f"vsn-{nodes[len(nodes) // 2]}"


async def tail(supervisor: Supervisor) -> str:
    return f"vsn-{(await _projection(supervisor)).chains[0].tail}"


async def sequencer(supervisor: Supervisor) -> str:
    """The process that gives the positions now."""
    return next(name for name in supervisor.pids() if name.startswith("vseq"))


async def _projection(supervisor: Supervisor) -> Projection:
    async with aio.admin(supervisor.address) as admin:
        projections = (await admin.view()).projections
    if not projections:
        raise Unavailable("no sequenced topic has begun yet: there is no chain to choose from")
    return projections[0]
