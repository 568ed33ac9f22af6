"""Pages of docs/reference that are rendered are what the code says today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.reference import pages

REFERENCE = Path(__file__).parents[2] / "docs/reference"


@pytest.mark.parametrize("name", sorted(pages()))
def test_a_page_is_current(name: str) -> None:
    assert (REFERENCE / name).read_text("utf-8") == pages()[name](), (
        f"docs/reference/{name} is stale: make reference"
    )
