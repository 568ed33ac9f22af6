"""docs/operate/backup-restore.md: its commands print what is shown below them.

They are typed at a cluster in that situation.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.e2e.pages import blocks, broken_links
from tests.e2e.shell import PROMPT, Shell, alike, typed_in
from varlog.localcluster.wait import wait_until
from varlog.model.cluster import Ordering
from varlog.testing.cluster_under_load import plan_for
from varlog.testing.harms.harmed_cluster import COMMITTED, HarmedCluster, harmed_cluster
from varlog.testing.processes import PATIENCE_S, command

PAGE = "docs/operate/backup-restore.md"
BLOCKS = [block for block in blocks(PAGE) if block.code.startswith(PROMPT)]
# The names on the page.
REPOSITORY, NODES = 7100, (7110, 7111, 7112)
CHANCE = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "UUID",
    r"revision \d+": "revision N",
    r"\bterm (seen )?\d+": "term N",
    r"\bnode [12] knows": "node 1 knows",
    r"from node [12]:": "from node 1:",
}


class Reader:
    """Types the blocks of the page, at a cluster whose files and ports are elsewhere."""

    def __init__(self, directory: Path, cluster: HarmedCluster) -> None:
        addresses = (cluster.plan.repository, *cluster.plan.node_addresses)
        ports = [int(address.rpartition(":")[2]) for address in addresses]
        said = (REPOSITORY, *NODES)
        self._real = {
            f"127.0.0.1:{one}": f"127.0.0.1:{other}" for one, other in zip(said, ports, strict=True)
        }
        # The manager listens beside the repository.
        ports_of = dict(zip((*said, REPOSITORY + 1), (*ports, ports[0] + 1), strict=True))
        self._real |= {"/backup/": f"{directory}/backup/", "/data/vmr/": f"{cluster.plan.data}/vmr/"}
        self._shell = Shell(directory, ports_of)

    def type(self, number: int) -> None:
        """The block of this number."""
        for typed in typed_in(BLOCKS[number]):
            printed = self.run(typed.command)
            assert alike(printed, typed.shown, masks=CHANCE), f"{typed.where}\n{printed}"

    def run(self, line: str) -> str:
        for said, real in self._real.items():
            line = line.replace(said, real)
        printed = self._shell.run(line)
        for said, real in self._real.items():
            printed = printed.replace(self._shell.as_shown(real), said)
        return printed


def test_every_link_of_the_recovery_page_resolves() -> None:
    assert not broken_links(PAGE)


@pytest.mark.process
def test_the_commands_of_the_page_print_what_is_shown_below_them(tmp_path: Path) -> None:
    # Those of the committed topic: a sequenced one is tested in tests/hardening.
    named = [
        number for number, block in enumerate(BLOCKS) if "orders" in block.code or "metadata.db" in block.code
    ]
    backup, recover, stopped, continued = named

    async def story() -> None:
        plan = plan_for(tmp_path / "cluster", replicas=3, streams=1)
        (tmp_path / "backup").mkdir()
        async with harmed_cluster(plan, [Ordering.COMMITTED]) as cluster:
            reader, store = Reader(tmp_path, cluster), plan.data / "vmr" / "metadata.db"
            for number in range(1, 4):
                reader.run(f"varlog append {COMMITTED} 'order {number}'")
            reader.type(backup)
            for number in range(4, 7):
                reader.run(f"varlog append {COMMITTED} 'order {number}'")
            await cluster.wait_rows_synced()
            cluster.kill("vmr", "vsn-3")
            shutil.rmtree(store.parent)
            store.parent.mkdir()
            shutil.copy(tmp_path / "backup" / "metadata.db", store)
            await cluster.restart("vmr")
            await cluster.wait_status(lambda seen: any(topic.stopped for topic in seen.view.topics))
            reader.type(stopped)
            await cluster.restart("vsn-3")
            await cluster.wait_healed()
            reader.type(continued)
            await cluster.wait_rows_synced()
            await wait_copies(plan.data)
            cluster.kill("vmc", "vseq", "vmr")
            shutil.rmtree(store.parent)
            store.parent.mkdir()
            reader.type(recover)
            nodes = ",".join(plan.node_addresses)
            written = command(
                "varlog.cli.serve", ["vmr", "recover", f"--store={store}", f"--nodes={nodes}", "--yes"]
            )
            assert written.returncode == 0, written.stdout + written.stderr
            await cluster.restart("vmr", "vseq", "vmc")
            await cluster.wait_healed()
            assert "order 7" in reader.run(f"varlog read {COMMITTED} 7")

    asyncio.run(story())


async def wait_copies(data: Path) -> None:
    """Wait until every node has the same copy of the view."""
    async with asyncio.timeout(PATIENCE_S):
        await wait_until(
            lambda: len({path.read_bytes() for path in data.glob("vsn-*/cid=*/snid=*/view")}) == 1
        )
