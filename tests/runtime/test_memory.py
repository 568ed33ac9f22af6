"""Buffers that are not zeroed first are buffers like any other."""

from __future__ import annotations

import pytest

from varlog.runtime.process import keep_freed, unfilled


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 3_000_000])
def test_an_unfilled_buffer_has_its_size_and_takes_what_is_written(size: int) -> None:
    one, other = unfilled(size), unfilled(size)
    assert type(one) is bytearray
    assert len(one) == size
    one[:] = b"a" * size
    other[:] = b"b" * size
    assert one.count(b"a") == other.count(b"b") == size
    one += b"more"
    assert one.endswith(b"more")


def test_keeping_freed_memory_may_be_requested_again() -> None:
    keep_freed()
    keep_freed()
    assert unfilled(1_000_000)
