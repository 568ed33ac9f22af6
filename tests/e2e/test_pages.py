"""Guides do what they say.

Their blocks are run in order, as typed, and print what is shown below them.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.e2e.pages import Block, blocks, broken_links, lines, page, run_typed
from varlog import recipes
from varlog.recipes import blocking
from varlog.testing.tcp_cluster import running

# The ports of `varlog up`; the tests' cluster listens elsewhere.
ADDRESS = "127.0.0.1:7100"


async def type_all(found: list[Block], address: str, work: Path) -> int:
    """How many blocks were run."""
    names: dict[str, object] = {"__name__": "__main__"}
    for block in found:
        printed = await run_typed(
            block, names, lambda text: text.replace(ADDRESS, address).replace("work/", f"{work}/")
        )
        assert lines(printed) == lines(block.prints), str(block)
    return len(found)


def test_every_block_about_recipes_prints_what_is_shown_below_it(tmp_path: Path) -> None:
    """R-USE-2: each recipe on a real log, as a user types it."""
    typed = [block for block in blocks("docs/guide/recipes.md") if block.language == "python"]
    with running(tmp_path, auto_create_topics=True) as (cluster, _):
        assert asyncio.run(type_all(typed, cluster.repository.address, tmp_path)) > 10


def test_every_block_about_embedded_logs_prints_what_is_shown_below_it(tmp_path: Path) -> None:
    """R-USE-2: the public names on a directory, as a user types them."""
    typed = [block for block in blocks("docs/guide/embedded.md") if block.language == "python"]
    assert asyncio.run(type_all(typed, ADDRESS, tmp_path)) >= 4


def test_every_recipe_and_every_error_is_in_the_page() -> None:
    content = page("docs/guide/recipes.md")
    documented = {*recipes.__all__, *blocking.__all__}
    # Types that are returned by others, and never constructed by the reader.
    documented -= {
        "Change",
        "LockGuard",
        "LockHolder",
        "KeyRange",
        "Leader",
        "Leadership",
        "Claim",
        "Transaction",
        "Isolation",
    }
    documented -= {"QueueSize", "Snapshots", "StateMachine"}
    assert {name for name in documented if f"{name}" not in content} == set()


@pytest.mark.parametrize(
    "name", ["docs/guide/recipes.md", "docs/guide/embedded.md", "docs/getting-started.md"]
)
def test_every_link_of_the_page_resolves(name: str) -> None:
    assert broken_links(name) == []
