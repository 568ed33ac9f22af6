"""FencedResource: a call with an older token is refused, whatever its holder assumes."""

from __future__ import annotations

import pytest

from varlog.model.errors import InvalidRequest
from varlog.recipes.errors import StaleToken
from varlog.recipes.lock.guard import FencedResource


def test_an_older_token_is_refused_once_a_newer_one_was_there() -> None:
    """R-USE-2: what a lock protects takes nothing of a former holder."""
    files = FencedResource("files", newest=3)
    assert [files.admit(3), files.admit(7), files.admit(7)] == [3, 7, 7]
    with pytest.raises(
        StaleToken, match="files has seen token 7, and accepts nothing with the older 3"
    ) as stale:
        files.admit(3)
    assert (stale.value.token, stale.value.newest) == (3, 7)
    assert files.newest == 7


@pytest.mark.parametrize("wrong", [0, -1])
def test_what_is_no_token_is_refused(wrong: int) -> None:
    with pytest.raises(InvalidRequest, match="is no fencing token"):
        FencedResource("files").admit(wrong)
