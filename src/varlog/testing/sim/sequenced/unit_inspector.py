"""UnitInspector: checks the units of living nodes while they work.

Chains fill from head to tail, and what the tail had stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

from varlog.model.cluster import ClusterView
from varlog.model.ids import LogStreamID, NodeID
from varlog.model.projection import Chain, Projection
from varlog.storage.sequenced.page_store import PageStore
from varlog.storagenode.node import StorageNodeServer
from varlog.storagenode.sequenced.unit import LogUnit
from varlog.testing.sim.core.host import Host
from varlog.verify.history import History

# How often it looks, in virtual seconds.
LOOK_S = 0.1
PAGES_A_LOOK = 1_000_000

# One batch: how many entries from its LLSN on, the checksum of its header, whether it is junk.
What = tuple[int, int, bool]
Pages = dict[int, What]


class UnitInspector:
    """`view` is what the leading repository knows; None while nobody leads beyond doubt."""

    def __init__(
        self,
        nodes: Sequence[Host],
        view: Callable[[], ClusterView | None],
        history: History,
    ) -> None:
        self._nodes = {NodeID(number): host for number, host in enumerate(nodes, 1)}
        self._view = view
        self._facts = history.sequenced_facts
        self._final: dict[LogStreamID, Pages] = {}  # what the tail of a chain had
        self._seen: dict[LogStreamID, object] = {}  # how the chain was when it was last looked at

    async def work(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    def look(self) -> None:
        """All chains, as they are at this moment."""
        view = self._view()
        for present in view.projections if view is not None else ():
            # One that went back in time has an older one than some client or node received.
            received = self._facts.projections.get(present.topic, {})
            projection = max([present, *received.values()], key=lambda found: found.epoch)
            for chain in projection.chains:
                self._look_at(projection, chain)

    def _look_at(self, projection: Projection, chain: Chain) -> None:
        units = {
            node: unit for node in chain.nodes if (unit := self._unit(node, chain, projection)) is not None
        }
        # What is trimmed is neither served nor taken any more, also while its disk does not know it yet.
        lows = {node: unit.point().low for node, unit in units.items()}
        stores = {node: unit.store for node, unit in units.items()}
        state = (
            projection.epoch,
            tuple((node, id(one), one.bytes, lows[node]) for node, one in stores.items()),
        )
        if self._seen.get(chain.log_stream) == state:
            return
        self._seen[chain.log_stream] = state
        pages = {node: _pages(store) for node, store in stores.items()}
        nodes = list(stores)
        for before, behind in pairwise(nodes):
            self._compare(
                chain,
                (before, pages[before]),
                (behind, pages[behind]),
                max(lows[before], lows[behind]),
            )
        if chain.tail in stores:
            self._keep(chain, pages[chain.tail], lows[chain.tail])

    def _unit(self, node: NodeID, chain: Chain, projection: Projection) -> LogUnit | None:
        """The node's, if the node lives and it serves: one that was created again is in no epoch until it has been filled."""
        host = self._nodes.get(node)
        if host is None or not host.up or not isinstance(host.service, StorageNodeServer):
            return None
        unit = host.service._units.get(chain.log_stream)
        # One that was restored from its disk answers nobody until it has been compared with its chain.
        serves = unit is not None and unit.epoch >= projection.epoch and not unit.unverified
        return unit if serves else None

    def _compare(
        self, chain: Chain, before: tuple[NodeID, Pages], behind: tuple[NodeID, Pages], low: int
    ) -> None:
        for llsn, what in behind[1].items():
            if llsn >= low and before[1].get(llsn) != what:
                self._facts.broken_chains.append(
                    f"{chain}: node {behind[0]} has {what} at {llsn}, node {before[0]} before it {before[1].get(llsn)}"
                )
                return

    def _keep(self, chain: Chain, pages: Pages, low: int) -> None:
        final = self._final.setdefault(chain.log_stream, {})
        for llsn, what in final.items():
            if llsn >= low and pages.get(llsn) != what:
                self._facts.written_twice.append(
                    f"{chain}: its tail had {what} at {llsn}, and now {pages.get(llsn)}"
                )
                break
        final.update(pages)


def _pages(store: PageStore) -> Pages:
    return {
        page.first_llsn: (page.count, page.crc, page.is_junk)
        for page in store.pages_from(store.low, PAGES_A_LOOK)
    }
